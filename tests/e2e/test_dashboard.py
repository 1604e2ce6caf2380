"""Tests of the dashboard in Chromium, with a running service and real jobs."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Page, expect

from tests.support.browser import DESKTOP, PHONE, Tab
from tests.support.processes import wait_for
from tests.support.service import Service
from tests.support.tables import ENDLESS, parquet, write_hot

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"
QUERY = "SELECT o.category, COUNT(DISTINCT o.uid) AS users FROM o GROUP BY o.category ORDER BY o.category"
GOOD = {"name": "users-per-category", "tables": {"o": parquet("orders")}, "sql": QUERY}
FAILING = {
    "name": f"fails {HOSTILE}",
    "tables": {"o": parquet("orders")},
    "sql": "SELECT o.category, SUM(CAST(o.category AS BIGINT)) AS s FROM o GROUP BY o.category",
}
STREAM = {
    "name": "parity",
    "mode": "continuous",
    "tables": {"r": {"format": "rate", "rows_per_second": 100}},
    "sql": "SELECT r.value % 2 AS parity, COUNT(*) AS n FROM r GROUP BY r.value % 2",
    "settings": {"mini_batch.allow_latency": "1s"},
}

_TYPED = """async (field, text) => {
  field.value = text;
  field.dispatchEvent(new Event("input", { bubbles: true }));
  for (let turn = 0; turn < 10; turn++) await null;
  return JSON.stringify(sessionStorage);
}"""
"""Types a text and returns the tab's session storage before the browser draws a frame or closes the tab."""

Open = Callable[..., Tab]


@pytest.fixture(scope="module")
def jobs(service: Service) -> dict[str, str]:
    """Ids of a job of each kind, by kind."""
    good, failing, endless, stream = map(service.submit, (GOOD, FAILING, ENDLESS, STREAM))
    assert service.wait(good)["status"] == "SUCCEEDED"
    assert service.wait(failing)["status"] == "FAILED"
    service.wait(endless, "RUNNING")
    service.http.post(f"/v1/jobs/{endless}/cancel")
    assert service.wait(endless)["status"] == "CANCELLED"
    wait_for("mini-batches", lambda: len(service.http.get(f"/v1/jobs/{stream}/batches").json()["batches"]) > 3, 120)
    return {"good": good, "failing": failing, "cancelled": endless, "stream": stream}


def pages(jobs: dict[str, str]) -> dict[str, str]:
    """Returns the route of each page by a unique name."""
    found = {"jobs": "#/jobs", "new": "#/new", "workers": "#/workers", "not-found": "#/nowhere"}
    for kind, job_id in jobs.items():
        sections = ["", "plan", "result", "spec", "stream" if kind == "stream" else "skew"]
        found |= {f"{kind}-{section or 'overview'}": f"#/jobs/{job_id}/{section}".rstrip("/") for section in sections}
    return found


@pytest.mark.parametrize(
    ("viewport", "colours"),
    [
        pytest.param(DESKTOP, "light", id="light"),
        pytest.param(DESKTOP, "dark", id="dark", marks=pytest.mark.full),
        pytest.param(PHONE, "light", id="phone"),
    ],
)
def test_every_page_has_no_errors(
    open_tab: Open, jobs: dict[str, str], viewport: dict[str, int], colours: str, tmp_path: Path
) -> None:
    tab = open_tab(viewport=viewport, color_scheme=colours)
    # Reports that a job does not have are 404; the page shows a text instead.
    tab.expect_refusals(404)
    pictures = Path(os.environ.get("EVENKEEL_TEST_PICTURES", tmp_path))
    for name, route in pages(jobs).items():
        page = tab.open(route)
        page.wait_for_load_state("networkidle")
        expect(page.get_by_text("Loading …")).to_have_count(0)
        tab.check()
        tab.check_accessibility()
        is_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.evaluate(is_wide), f"{name} scrolls horizontally"
        tab.save_screenshot(pictures / f"{name}-{colours}-{viewport['width']}.png")


def write_table(page: Page, name: str, path: str) -> None:
    page.get_by_role("button", name="Add a table").click()
    page.get_by_label("Name", exact=True).last.fill(name)
    page.get_by_label("Path").last.fill(path)


def write_sql(page: Page, text: str) -> None:
    editor = page.get_by_role("textbox", name="SQL of the job")
    editor.click()
    page.keyboard.press("Control+a")
    page.keyboard.press("Delete")
    page.keyboard.insert_text(text)


def test_job_from_editor_to_downloaded_result(open_tab: Open, service: Service, tmp_path: Path) -> None:
    tab = open_tab(downloads=True)
    tab.expect_refusals(404, 422)
    page = tab.open("#/jobs")
    page.get_by_role("link", name="New job").last.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("New job")

    page.get_by_label("Name", exact=True).first.fill("users by category")
    write_table(page, "o", "orders/")
    write_sql(page, QUERY.replace("o.uid)", "o.user)").replace(" FROM", "\nFROM"))
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("alert")).to_contain_text("There is no column o.user")
    expect(page.get_by_role("alert")).to_contain_text("Line 1, column 35")
    expect(page.locator(".cm-lintRange-error")).to_have_text("o.user")

    write_sql(page, QUERY)
    page.get_by_label("distinct_method").select_option("native")
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_role("group", name="Plan after the rules", exact=True).get_by_role("button")).not_to_have_count(
        0
    )
    expect(page.get_by_role("heading", name="Rules", exact=True)).to_be_visible()
    expect(page.get_by_role("alert")).to_have_count(0)

    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("users by category")
    expect(page.locator(".job-state").get_by_text("SUCCEEDED")).to_be_visible(timeout=180_000)
    expect(page.get_by_text("distinct_method = native")).to_be_visible()

    page.get_by_role("link", name="Result").click()
    expect(page.get_by_role("cell", name="c6")).to_be_visible()
    expect(page.get_by_text("Rows 1 to 7 of 7")).to_be_visible()
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download CSV").click()
    downloading.value.save_as(tmp_path / "result.csv")
    assert downloading.value.suggested_filename == "users-by-category.csv"
    with (tmp_path / "result.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    job_id = re.search(r"#/jobs/([0-9a-f-]+)", page.url)
    assert job_id is not None
    assert rows == [["category", "users"]] + [[row["category"], str(row["users"])] for row in service.rows(job_id[1])]


def test_copied_job_is_edited_submitted_and_deleted(open_tab: Open, service: Service, jobs: dict[str, str]) -> None:
    tab = open_tab()
    tab.expect_refusals(404)
    page = tab.open(f"#/jobs/{jobs['good']}")
    page.get_by_role("link", name="Edit as new").click()
    expect(page.get_by_label("Name", exact=True).first).to_have_value("users-per-category")
    expect(page.get_by_role("textbox", name="SQL of the job")).to_contain_text("COUNT(DISTINCT o.uid)")
    # The draft is stored at once and survives a reload; it belongs to this job only.
    assert "the copy" in page.get_by_label("Name", exact=True).first.evaluate(_TYPED, "the copy")
    page.reload()
    expect(page.get_by_label("Name", exact=True).first).to_have_value("the copy")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("the copy")
    expect(page.locator(".job-state").get_by_text("SUCCEEDED")).to_be_visible(timeout=180_000)
    copy = page.url.rpartition("/")[2]
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Go back").click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    assert service.http.get(f"/v1/jobs/{copy}").status_code == 404


def test_running_job_is_shown_and_cancelled(open_tab: Open, service: Service) -> None:
    job_id = service.submit(ENDLESS)
    tab = open_tab()
    tab.expect_refusals(404)
    page = tab.open(f"#/jobs/{job_id}")
    expect(page.locator(".job-state").get_by_text("RUNNING")).to_be_visible(timeout=180_000)
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".job-state").get_by_text("CANCELLED")).to_be_visible(timeout=180_000)
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    assert service.job(job_id)["status"] == "CANCELLED"


@pytest.mark.withstands(
    "HTML and script in the name of a job",
    kind="attack",
    how="a job named `<img src=x onerror=…><script>…` on every page of the dashboard, in Chromium",
    times=1,
    guaranteed="the name is shown as text; no script runs, and the page sends no request to another host",
)
def test_name_with_html_is_shown_as_text(open_tab: Open, jobs: dict[str, str]) -> None:
    tab = open_tab()
    tab.expect_refusals(404)
    page = tab.open("#/jobs")
    expect(page.get_by_role("link", name=f"fails {HOSTILE}")).to_be_visible()
    for name, route in pages(jobs).items():
        if name.startswith("failing"):
            expect(tab.open(route).get_by_role("heading", level=1)).to_have_text(f"fails {HOSTILE}")
            page.wait_for_load_state("networkidle")
    page = tab.open(f"#/new?from={jobs['failing']}")
    expect(page.get_by_label("Name", exact=True).first).to_have_value(f"fails {HOSTILE}")
    page = tab.open(f"#/jobs/{jobs['failing']}")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("dialog")).to_contain_text(HOSTILE)


def test_failed_job_shows_its_error(open_tab: Open, service: Service, jobs: dict[str, str]) -> None:
    page = open_tab().open(f"#/jobs/{jobs['failing']}")
    problem = service.job(jobs["failing"])["error"]
    expect(page.get_by_role("alert")).to_contain_text(problem["detail"][:100])


def test_large_integers_are_shown_exactly(open_tab: Open, service: Service) -> None:
    # The smallest positive integer that JavaScript numbers cannot represent.
    sql = "SELECT o.category, 0 * COUNT(*) + 9007199254740993 AS n FROM o GROUP BY o.category LIMIT 1"
    job_id = service.submit({**GOOD, "sql": sql})
    service.wait(job_id)
    page = open_tab().open(f"#/jobs/{job_id}/result")
    expect(page.get_by_role("cell", name="9007199254740993")).to_be_visible()


def test_ended_job_leaves_the_list_of_active_jobs(open_tab: Open, service: Service) -> None:
    job_id = service.submit({**ENDLESS, "name": "ends soon"})
    page = open_tab().open("#/jobs?state=active")
    expect(page.get_by_role("link", name="ends soon")).to_be_visible()
    service.http.post(f"/v1/jobs/{job_id}/cancel")
    expect(page.get_by_role("link", name="ends soon")).to_have_count(0, timeout=90_000)


def test_advice_is_followed_with_one_click(open_tab: Open, service: Service) -> None:
    directory = service.data / "hot"
    directory.mkdir()
    keys = pa.array([1 if place % 10 else place for place in range(600_000)], pa.int64())
    for part in range(4):
        pq.write_table(pa.table({"k": keys}).slice(part * 150_000, 150_000), directory / f"{part}.parquet")
    one_phase = {"agg_phase": "ONE_PHASE", "skew": {"threshold": "1KB", "factor": 1.5}}
    spec = {"name": "hot", "tables": {"h": parquet("hot")}, "sql": "SELECT h.k, COUNT(*) AS n FROM h GROUP BY h.k"}
    before = service.submit({**spec, "settings": one_phase})
    service.wait(before)
    tab = open_tab()
    tab.expect_refusals(404)
    page = tab.open(f"#/jobs/{before}/skew")
    expect(page.get_by_text("one task processes all of them")).to_be_visible()
    expect(page.get_by_role("rowheader", name="1", exact=True)).to_be_visible()
    page.get_by_label("Slots").fill("100")
    page.get_by_label("Slots").press("Enter")
    expect(page.get_by_text("on 100 slots, its stages take")).to_be_visible()
    page.get_by_role("button", name="Run again with agg_phase = TWO_PHASE").click()
    page.wait_for_url(lambda url: before not in url)
    expect(page.locator(".job-state").get_by_text("SUCCEEDED")).to_be_visible(timeout=180_000)
    expect(page.get_by_text("agg_phase = TWO_PHASE", exact=True)).to_be_visible()
    page.get_by_role("link", name="Skew").click()
    expect(page.get_by_text("the job it is compared with")).to_be_visible()
    expect(page.get_by_text("agg_phase: ONE_PHASE → TWO_PHASE")).to_be_visible()
    page.get_by_role("link", name="Plan", exact=True).click()
    page.get_by_role("button", name="Spark operators").click()
    expect(page.get_by_role("group", name="Spark's operators", exact=True).get_by_role("button")).not_to_have_count(0)


def test_skew_page_agrees_with_measurements(open_tab: Open, service: Service) -> None:
    write_hot(service.data, "self")
    sql = "SELECT a.g AS ag, b.g AS bg, COUNT(*) AS n FROM t a JOIN t b ON a.k = b.k GROUP BY a.g, b.g"
    settings = {"join.ship": "REPARTITION"}
    job_id = service.submit({"name": "self", "tables": {"t": parquet("self")}, "sql": sql, "settings": settings})
    service.wait(job_id)
    tab = open_tab()
    tab.expect_refusals(404)
    page = tab.open(f"#/jobs/{job_id}/skew")
    expect(page.get_by_text("These rows are aggregated before the join, by")).to_be_visible()
    expect(page.get_by_role("heading", name="Not skewed")).to_be_visible()
    expect(page.get_by_text("differs from the measurement, so it does not show the saving")).to_be_visible()
    wrong = page.get_by_role("listitem").filter(has_text="Estimated:")
    expect(wrong).to_contain_text("rows on the hottest task for #3 Aggregate BY a.g")
    page.get_by_role("link", name="Plan", exact=True).click()
    before = page.get_by_role("group", name="Plan before the rules", exact=True)
    expect(before.get_by_role("button", name="Aggregate eager_aggregation")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="Estimated:").first).to_be_visible()
    # The whole plan is visible without scrolling inside of its frame.
    assert before.evaluate("view => view.scrollHeight <= view.clientHeight")


def test_running_stream_is_shown_stopped_and_resumed(open_tab: Open, jobs: dict[str, str]) -> None:
    tab = open_tab()
    tab.expect_refusals(404)
    page = tab.open(f"#/jobs/{jobs['stream']}/stream")
    expect(page.locator(".uplot canvas")).to_have_count(4)
    newest = page.get_by_role("region", name="Newest mini-batches").get_by_role("rowheader").first
    before = int(newest.inner_text())
    page.wait_for_function(
        "before => document.querySelector('[aria-label=\"Newest mini-batches\"] tbody th').innerText > before + 1",
        arg=before,
        timeout=60_000,
    )
    page.get_by_role("button", name="Stop").click()
    expect(page.locator(".job-state").get_by_text("STOPPED")).to_be_visible(timeout=180_000)
    page.get_by_role("link", name="Result").click()
    expect(page.get_by_role("columnheader", name="parity")).to_be_visible()
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.locator(".job-state").get_by_text("RUNNING")).to_be_visible(timeout=180_000)


def test_list_is_refreshed_and_searched_with_the_keyboard(
    open_tab: Open, service: Service, jobs: dict[str, str]
) -> None:
    tab = open_tab()
    tab.expect_refusals(404)
    page = tab.open("#/jobs")
    expect(page.get_by_role("link", name="users-per-category").first).to_be_visible()
    submitted = service.submit({**GOOD, "name": "submitted later"})
    expect(page.get_by_role("link", name="submitted later")).to_be_visible()
    service.wait(submitted)
    expect(page.get_by_role("row").filter(has_text="submitted later").get_by_text("SUCCEEDED")).to_be_visible()

    page.keyboard.press("/")
    page.keyboard.type("submitted l")
    expect(page.get_by_role("row")).to_have_count(2)
    page.keyboard.press("Tab")
    page.locator("h1").focus()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("submitted later")
    page.keyboard.press("l")
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    page.get_by_label("State").select_option("failed")
    expect(page.get_by_role("row").filter(has_text="FAILED").first).to_be_visible()
    expect(page.get_by_role("row").filter(has_text="SUCCEEDED")).to_have_count(0)
    page.keyboard.press("Escape")
    page.locator("h1").focus()
    page.keyboard.press("/")
    page.keyboard.insert_text(jobs["good"])
    expect(page.get_by_role("heading", level=1)).to_have_text("users-per-category")
    page.locator("h1").focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("Search jobs")
    page.get_by_label("Enable single-key shortcuts").uncheck()
    page.get_by_role("button", name="Close").click()
    page.locator("h1").focus()
    page.keyboard.press("w")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_have_text("users-per-category")


def test_unknown_job_shows_an_error(open_tab: Open) -> None:
    tab = open_tab()
    tab.expect_refusals(404)
    page = tab.open("#/jobs/0b9f6c1e-6a44-4b7e-9d0e-0f6d5a3c2b1a")
    expect(page.get_by_role("alert")).to_contain_text("job_not_found")


def test_json_that_the_form_cannot_show_is_refused(open_tab: Open) -> None:
    page = open_tab().open("#/new")
    page.get_by_text("Edit as JSON").click()
    page.get_by_label("Specification").fill('{"tables": {"o": null}}')
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("alert")).to_contain_text("Table o must be an object")
    page.get_by_label("Specification").fill('{"tables": null, "settings": {"agg_phase": "ONE_PHASE"}}')
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_label("agg_phase")).to_have_value("ONE_PHASE")


def test_outdated_explanation_is_marked(open_tab: Open) -> None:
    page = open_tab().open("#/new")
    write_table(page, "o", "orders/")
    write_sql(page, QUERY)
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_role("heading", name="Rules", exact=True)).to_be_visible()
    expect(page.get_by_text("an earlier version of this job")).to_have_count(0)
    page.get_by_label("distinct_method").select_option("native")
    expect(page.get_by_text("an earlier version of this job")).to_be_visible()


def test_stream_is_resumed_from_scratch(open_tab: Open, service: Service, jobs: dict[str, str]) -> None:
    service.http.post(f"/v1/jobs/{jobs['stream']}/stop")
    service.wait(jobs["stream"], "STOPPED")
    tab = open_tab()
    tab.expect_refusals(404)
    page = tab.open(f"#/jobs/{jobs['stream']}/stream")
    page.get_by_role("button", name="Resume from scratch").click()
    page.get_by_role("dialog").get_by_role("button", name="Start from scratch").click()
    expect(page.locator(".job-state").get_by_text("RUNNING")).to_be_visible(timeout=180_000)
    expect(page.get_by_text("Generation")).to_be_visible()


def test_parameters_of_the_sql_have_rows(open_tab: Open) -> None:
    tab = open_tab(viewport=PHONE)
    tab.expect_refusals(404)
    page = tab.open("#/new")
    write_table(page, "o", "orders/")
    expect(page.get_by_label("Format")).to_have_value("")
    write_sql(page, "SELECT COUNT(*) AS n FROM o WHERE o.category <> :category AND o.uid >= :least")
    page.get_by_label("Value of :category").fill("c6")
    page.get_by_label("Type of :least").select_option("BIGINT")
    page.get_by_label("Value of :least").fill("5")
    page.get_by_role("button", name="Submit").click()
    expect(page.locator(".job-state").get_by_text("SUCCEEDED")).to_be_visible(timeout=180_000)
    page.get_by_role("link", name="Specification").click()
    expect(page.get_by_role("region", name="Specification of the job")).to_contain_text('"category": "c6"')
