"""Tests of the dashboard with a service that is slow, refuses requests or is unreachable for a while."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Request, Route, expect

from tests.support.browser import Tab
from tests.support.processes import wait_for
from tests.support.service import Service
from tests.support.tables import parquet

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

Open = Callable[..., Tab]
LIST = "**/v1/jobs?*"
SUBMIT = "**/v1/jobs"
DRAFT = {"name": "drafted", "mode": "batch", "tables": {"o": parquet("orders")}, "sql": "SELECT COUNT(*) AS n FROM o"}
FULL = {
    "title": "Too many jobs",
    "status": 429,
    "detail": "5 jobs are queued, which is the limit.",
    "code": "too_many_jobs",
}


@pytest.fixture
def drafting(open_tab: Open) -> Tab:
    """A tab with the editor and a draft of a job."""
    tab = open_tab()
    page = tab.open("#/new")
    page.evaluate("draft => sessionStorage.setItem('evenkeel.draft', JSON.stringify(draft))", DRAFT)
    page.reload()
    expect(page.get_by_role("textbox", name="SQL of the job")).to_contain_text("COUNT(*)")
    return tab


def test_outage_is_shown_until_the_service_is_back(open_tab: Open, service: Service) -> None:
    service.submit(DRAFT)
    tab = open_tab()
    page = tab.open("#/jobs")
    expect(page.get_by_role("link", name="drafted").first).to_be_visible()
    page.route("**/v1/**", lambda route: route.abort("connectionrefused"))
    expect(page.get_by_text("Not up to date")).to_be_visible(timeout=90_000)
    expect(page.get_by_role("link", name="drafted").first).to_be_visible()
    page.unroute("**/v1/**")
    expect(page.get_by_text("Not up to date")).to_have_count(0, timeout=180_000)
    tab.faults[:] = [fault for fault in tab.faults if "ERR_CONNECTION_REFUSED" not in fault]


def test_retry_after_is_respected(open_tab: Open) -> None:
    tab = open_tab()
    tab.expect_refusals(503)
    requests: list[Route] = []

    def refuse(route: Route) -> None:
        requests.append(route)
        route.fulfill(
            status=503, headers={"Retry-After": "600"}, json={"title": "Stopping", "detail": "It is stopping."}
        )

    tab.page.clock.install()
    tab.page.route(LIST, refuse)
    page = tab.open("#/jobs")
    expect(page.get_by_role("alert")).to_contain_text("It is stopping.")
    before = len(requests)
    page.clock.run_for(599_000)
    # Neither the timer nor showing the tab sends a request.
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.run_for(500)
    assert len(requests) == before
    page.clock.run_for(60_000)
    expect(page.get_by_role("alert")).to_contain_text("It is stopping.")
    assert len(requests) > before


def test_hidden_tab_sends_fewer_requests(open_tab: Open) -> None:
    tab = open_tab()
    requests: list[Request] = []
    responses: list[Request] = []
    tab.page.clock.install()
    page = tab.open("#/jobs")
    page.wait_for_load_state("networkidle")
    page.on("request", lambda request: requests.append(request))
    page.on("requestfinished", lambda request: responses.append(request))

    def requests_in_a_minute() -> int:
        before = len(requests)
        for _ in range(60):
            page.clock.run_for(1_000)
            # The page's clock does not run until the response has arrived.
            wait_for("the response", lambda: page.evaluate("1") and len(responses) == len(requests), 20)
        return len(requests) - before

    shown = requests_in_a_minute()
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true})")
    hidden = requests_in_a_minute()
    assert 0 < hidden <= shown / 4, (shown, hidden)


def test_submission_refused_for_now_can_be_repeated(drafting: Tab) -> None:
    drafting.expect_refusals(404, 429)
    page = drafting.page
    page.route(SUBMIT, lambda route: route.fulfill(status=429, headers={"Retry-After": "5"}, json=FULL))
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_contain_text("5 jobs are queued, which is the limit.")
    page.unroute(SUBMIT)
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("drafted")


def test_late_response_does_not_change_the_page(drafting: Tab) -> None:
    drafting.expect_refusals(404)
    page = drafting.page
    held: list[Route] = []
    page.route(SUBMIT, lambda route: held.append(route))
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("button", name="Submitting …")).to_be_disabled()
    page.get_by_role("link", name="Workers").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Workers")
    with page.expect_response(SUBMIT):
        held[0].continue_()
    expect(page.get_by_text("Last heartbeat").first).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text("Workers")


def test_charts_use_the_chosen_theme_or_the_systems(open_tab: Open, service: Service) -> None:
    spec = {
        "name": "coloured",
        "mode": "continuous",
        "tables": {"r": {"format": "rate", "rows_per_second": 100}},
        "sql": "SELECT r.value % 2 AS parity, COUNT(*) AS n FROM r GROUP BY r.value % 2",
        "settings": {"mini_batch.allow_latency": "1s"},
    }
    job_id = service.submit(spec)
    page = open_tab(color_scheme="light").open(f"#/jobs/{job_id}/stream")
    expect(page.locator(".uplot canvas")).to_have_count(4, timeout=180_000)
    root = page.locator("html")
    expect(root).to_have_attribute("data-theme", "light")
    page.evaluate("document.querySelectorAll('.uplot').forEach((one) => (one.dataset.old = 1))")
    page.emulate_media(color_scheme="dark")
    expect(root).to_have_attribute("data-theme", "dark")
    expect(page.locator(".uplot[data-old]")).to_have_count(0)
    page.get_by_label("Theme").select_option("light")
    expect(root).to_have_attribute("data-theme", "light")
    page.reload()
    expect(root).to_have_attribute("data-theme", "light")
    service.http.post(f"/v1/jobs/{job_id}/cancel")
    service.wait(job_id)
