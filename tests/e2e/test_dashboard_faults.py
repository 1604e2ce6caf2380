"""The dashboard of a service that is slow, refuses, or is away for a while."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Request, Route, expect

from tests.support.browser import Watched
from tests.support.processes import wait_for
from tests.support.service import Service
from tests.support.tables import parquet

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

Open = Callable[..., Watched]
LIST = "**/v1/jobs?*"
SUBMIT = "**/v1/jobs"
DRAFT = {"name": "drafted", "mode": "batch", "tables": {"o": parquet("orders")}, "sql": "SELECT COUNT(*) AS n FROM o"}
FULL = {
    "title": "Too many jobs",
    "status": 429,
    "detail": "5 jobs are queued, as many as may be.",
    "code": "too_many_jobs",
}


@pytest.fixture
def drafting(open_tab: Open) -> Watched:
    """A tab with the editor, in which a job is written already."""
    tab = open_tab()
    page = tab.open("#/new")
    page.evaluate("draft => sessionStorage.setItem('evenkeel.draft', JSON.stringify(draft))", DRAFT)
    page.reload()
    expect(page.get_by_role("textbox", name="SQL of the job")).to_contain_text("COUNT(*)")
    return tab


def test_a_service_that_goes_away_is_said_to_and_comes_back(open_tab: Open, service: Service) -> None:
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


def test_it_asks_no_sooner_than_the_service_wants(open_tab: Open) -> None:
    tab = open_tab()
    tab.expect_refusals(503)
    asked: list[Route] = []

    def refuse(route: Route) -> None:
        asked.append(route)
        route.fulfill(status=503, headers={"Retry-After": "600"}, json={"title": "Stopping", "detail": "It stops."})

    tab.page.clock.install()
    tab.page.route(LIST, refuse)
    page = tab.open("#/jobs")
    expect(page.get_by_role("alert")).to_contain_text("It stops.")
    before = len(asked)
    page.clock.run_for(599_000)
    # Neither by itself nor because somebody looks.
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    page.clock.run_for(500)
    assert len(asked) == before
    page.clock.run_for(60_000)
    expect(page.get_by_role("alert")).to_contain_text("It stops.")
    assert len(asked) > before


def test_a_hidden_tab_asks_less_often(open_tab: Open) -> None:
    tab = open_tab()
    asked: list[Request] = []
    answered: list[Request] = []
    tab.page.clock.install()
    page = tab.open("#/jobs")
    page.wait_for_load_state("networkidle")
    page.on("request", lambda request: asked.append(request))
    page.on("requestfinished", lambda request: answered.append(request))

    def asked_in_a_minute() -> int:
        before = len(asked)
        for _ in range(60):
            page.clock.run_for(1_000)
            # Time stands still until the page has its answer.
            wait_for("the answer", lambda: page.evaluate("1") and len(answered) == len(asked), 20)
        return len(asked) - before

    shown = asked_in_a_minute()
    page.evaluate("Object.defineProperty(document, 'hidden', {get: () => true})")
    hidden = asked_in_a_minute()
    assert 0 < hidden <= shown / 4, (shown, hidden)


def test_a_submission_that_is_refused_for_now_is_sent_again_by_hand(drafting: Watched) -> None:
    drafting.expect_refusals(404, 429)
    page = drafting.page
    page.route(SUBMIT, lambda route: route.fulfill(status=429, headers={"Retry-After": "5"}, json=FULL))
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_contain_text("5 jobs are queued, as many as may be.")
    page.unroute(SUBMIT)
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("drafted")


def test_an_answer_that_comes_late_pulls_nobody_away(drafting: Watched) -> None:
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
    expect(page.get_by_text("Last sign of life").first).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text("Workers")


def test_charts_follow_the_theme_and_the_system(open_tab: Open, service: Service) -> None:
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
    page.get_by_label("Colours").select_option("light")
    expect(root).to_have_attribute("data-theme", "light")
    page.reload()
    expect(root).to_have_attribute("data-theme", "light")
    service.http.post(f"/v1/jobs/{job_id}/cancel")
    service.wait(job_id)
