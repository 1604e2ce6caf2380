"""The dashboard in a real browser, over a running service with real jobs."""

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

from tests.support.browser import DESKTOP, PHONE, Watched
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
"""Types a text; gives what the tab keeps before the browser comes to anything else, a frame or its end."""

Open = Callable[..., Watched]


@pytest.fixture(scope="module")
def jobs(service: Service) -> dict[str, str]:
    """Ids of a job of each kind, by what it is."""
    good, failing, endless, stream = map(service.submit, (GOOD, FAILING, ENDLESS, STREAM))
    assert service.wait(good)["status"] == "SUCCEEDED"
    assert service.wait(failing)["status"] == "FAILED"
    service.wait(endless, "RUNNING")
    service.http.post(f"/v1/jobs/{endless}/cancel")
    assert service.wait(endless)["status"] == "CANCELLED"
    wait_for("mini-batches", lambda: len(service.http.get(f"/v1/jobs/{stream}/batches").json()["batches"]) > 3, 120)
    return {"good": good, "failing": failing, "cancelled": endless, "stream": stream}


def pages(jobs: dict[str, str]) -> dict[str, str]:
    """Every page by a name of its own."""
    found = {"jobs": "#/jobs", "new": "#/new", "workers": "#/workers", "nowhere": "#/nowhere"}
    for kind, job_id in jobs.items():
        sections = ["", "plan", "result", "spec", "stream" if kind == "stream" else "skew"]
        found |= {f"{kind}-{section or 'overview'}": f"#/jobs/{job_id}/{section}".rstrip("/") for section in sections}
    return found


@pytest.mark.parametrize(
    ("viewport", "colours"), [(DESKTOP, "light"), (DESKTOP, "dark"), (PHONE, "light")], ids=["light", "dark", "phone"]
)
def test_every_page_is_sound(
    open_tab: Open, jobs: dict[str, str], viewport: dict[str, int], colours: str, tmp_path: Path
) -> None:
    tab = open_tab(viewport=viewport, color_scheme=colours)
    # What a job has not got is a 404, which the page says in words.
    tab.expect_refusals(404)
    pictures = Path(os.environ.get("EVENKEEL_TEST_PICTURES", tmp_path))
    for name, route in pages(jobs).items():
        page = tab.open(route)
        page.wait_for_load_state("networkidle")
        expect(page.get_by_text("Loading …")).to_have_count(0)
        tab.check()
        tab.check_accessibility()
        is_wide = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
        assert not page.evaluate(is_wide), f"{name} scrolls sideways"
        tab.keep_picture(pictures / f"{name}-{colours}-{viewport['width']}.png")


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


def test_from_the_editor_to_the_downloaded_result(open_tab: Open, service: Service, tmp_path: Path) -> None:
    tab = open_tab(downloads=True)
    tab.expect_refusals(404, 422)
    page = tab.open("#/jobs")
    page.get_by_role("link", name="New job").last.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("New job")

    page.get_by_label("Name", exact=True).first.fill("a journey")
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
    expect(page.get_by_role("heading", level=1)).to_have_text("a journey")
    expect(page.locator(".job-state").get_by_text("SUCCEEDED")).to_be_visible(timeout=180_000)
    expect(page.get_by_text("distinct_method = native")).to_be_visible()

    page.get_by_role("link", name="Result").click()
    expect(page.get_by_role("cell", name="c6")).to_be_visible()
    expect(page.get_by_text("Rows 1 to 7 of 7")).to_be_visible()
    with page.expect_download() as downloading:
        page.get_by_role("button", name="Download CSV").click()
    downloading.value.save_as(tmp_path / "result.csv")
    assert downloading.value.suggested_filename == "a-journey.csv"
    with (tmp_path / "result.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    job_id = re.search(r"#/jobs/([0-9a-f-]+)", page.url)
    assert job_id is not None
    assert rows == [["category", "users"]] + [[row["category"], str(row["users"])] for row in service.rows(job_id[1])]


def test_a_job_is_edited_as_a_new_one_and_deleted(open_tab: Open, service: Service, jobs: dict[str, str]) -> None:
    tab = open_tab()
    tab.expect_refusals(404)
    page = tab.open(f"#/jobs/{jobs['good']}")
    page.get_by_role("link", name="Edit as new").click()
    expect(page.get_by_label("Name", exact=True).first).to_have_value("users-per-category")
    expect(page.get_by_role("textbox", name="SQL of the job")).to_contain_text("COUNT(DISTINCT o.uid)")
    # What was changed of it outlives the page, however soon that is left, and is no draft of another job.
    assert "the copy" in page.get_by_label("Name", exact=True).first.evaluate(_TYPED, "the copy")
    page.reload()
    expect(page.get_by_label("Name", exact=True).first).to_have_value("the copy")
    page.get_by_role("button", name="Submit").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("the copy")
    expect(page.locator(".job-state").get_by_text("SUCCEEDED")).to_be_visible(timeout=180_000)
    copy = page.url.rpartition("/")[2]
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Keep it").click()
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Jobs")
    assert service.http.get(f"/v1/jobs/{copy}").status_code == 404


def test_a_running_job_is_seen_and_cancelled(open_tab: Open, service: Service) -> None:
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
    guaranteed="shown as the text that it is; nothing runs, and no request leaves for another host",
)
def test_a_name_is_a_text_whatever_is_in_it(open_tab: Open, jobs: dict[str, str]) -> None:
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


def test_a_failed_job_says_why(open_tab: Open, service: Service, jobs: dict[str, str]) -> None:
    page = open_tab().open(f"#/jobs/{jobs['failing']}")
    problem = service.job(jobs["failing"])["error"]
    expect(page.get_by_role("alert")).to_contain_text(problem["detail"][:100])


def test_integers_are_shown_as_they_are(open_tab: Open, service: Service) -> None:
    # The first one that a browser's numbers have not.
    sql = "SELECT o.category, 0 * COUNT(*) + 9007199254740993 AS n FROM o GROUP BY o.category LIMIT 1"
    job_id = service.submit({**GOOD, "sql": sql})
    service.wait(job_id)
    page = open_tab().open(f"#/jobs/{job_id}/result")
    expect(page.get_by_role("cell", name="9007199254740993")).to_be_visible()


def test_a_job_that_ends_leaves_the_list_of_active_ones(open_tab: Open, service: Service) -> None:
    job_id = service.submit({**ENDLESS, "name": "soon gone"})
    page = open_tab().open("#/jobs?state=active")
    expect(page.get_by_role("link", name="soon gone")).to_be_visible()
    service.http.post(f"/v1/jobs/{job_id}/cancel")
    expect(page.get_by_role("link", name="soon gone")).to_have_count(0, timeout=90_000)


def test_the_advice_is_taken_with_one_click(open_tab: Open, service: Service) -> None:
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
    expect(page.get_by_text("all of them go to one task")).to_be_visible()
    expect(page.get_by_role("rowheader", name="1", exact=True)).to_be_visible()
    page.get_by_label("Slots").fill("100")
    page.get_by_label("Slots").press("Enter")
    expect(page.get_by_text("on 100 slots its stages take")).to_be_visible()
    page.get_by_role("button", name="Run again with agg_phase = TWO_PHASE").click()
    page.wait_for_url(lambda url: before not in url)
    expect(page.locator(".job-state").get_by_text("SUCCEEDED")).to_be_visible(timeout=180_000)
    expect(page.get_by_text("agg_phase = TWO_PHASE", exact=True)).to_be_visible()
    page.get_by_role("link", name="Skew").click()
    expect(page.get_by_text("the job that it is compared with")).to_be_visible()
    expect(page.get_by_text("agg_phase: ONE_PHASE → TWO_PHASE")).to_be_visible()
    page.get_by_role("link", name="Plan", exact=True).click()
    page.get_by_role("button", name="As Spark ran it").click()
    expect(page.get_by_role("group", name="Spark's operators", exact=True).get_by_role("button")).not_to_have_count(0)


def test_the_skew_page_agrees_with_what_was_measured(open_tab: Open, service: Service) -> None:
    write_hot(service.data, "self")
    sql = "SELECT a.g AS ag, b.g AS bg, COUNT(*) AS n FROM t a JOIN t b ON a.k = b.k GROUP BY a.g, b.g"
    settings = {"join.ship": "REPARTITION"}
    job_id = service.submit({"name": "self", "tables": {"t": parquet("self")}, "sql": sql, "settings": settings})
    service.wait(job_id)
    tab = open_tab()
    tab.expect_refusals(404)
    page = tab.open(f"#/jobs/{job_id}/skew")
    expect(page.get_by_text("eager_aggregation aggregates its rows before the join, nothing needs to")).to_be_visible()
    expect(page.get_by_role("heading", name="Not skewed")).to_be_visible()
    expect(page.get_by_text("This estimate was wrong, so it says nothing about the saving")).to_be_visible()
    wrong = page.get_by_role("listitem").filter(has_text="The estimate was wrong")
    expect(wrong).to_contain_text("rows on the hottest task for #3 Aggregate BY a.g")
    page.get_by_role("link", name="Plan", exact=True).click()
    before = page.get_by_role("group", name="Plan before the rules", exact=True)
    expect(before.get_by_role("button", name="Aggregate eager_aggregation")).to_be_visible()
    expect(page.get_by_role("listitem").filter(has_text="fired eager_aggregation")).to_contain_text(
        "estimate was wrong"
    )


def test_a_live_stream_is_followed_stopped_and_resumed(open_tab: Open, jobs: dict[str, str]) -> None:
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


def test_the_list_is_live_and_searched_with_the_keyboard(
    open_tab: Open, service: Service, jobs: dict[str, str]
) -> None:
    tab = open_tab()
    tab.expect_refusals(404)
    page = tab.open("#/jobs")
    expect(page.get_by_role("link", name="users-per-category").first).to_be_visible()
    submitted = service.submit({**GOOD, "name": "came later"})
    expect(page.get_by_role("link", name="came later")).to_be_visible()
    service.wait(submitted)
    expect(page.get_by_role("row").filter(has_text="came later").get_by_text("SUCCEEDED")).to_be_visible()

    page.keyboard.press("/")
    page.keyboard.type("came l")
    expect(page.get_by_role("row")).to_have_count(2)
    page.keyboard.press("Tab")
    page.locator("h1").focus()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("came later")
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
    page.get_by_label("Keys by themselves do something").uncheck()
    page.get_by_role("button", name="Close").click()
    page.locator("h1").focus()
    page.keyboard.press("w")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.get_by_role("heading", level=1)).to_have_text("users-per-category")


def test_a_job_that_is_not_there_is_said_to_be_missing(open_tab: Open) -> None:
    tab = open_tab()
    tab.expect_refusals(404)
    page = tab.open("#/jobs/0b9f6c1e-6a44-4b7e-9d0e-0f6d5a3c2b1a")
    expect(page.get_by_role("alert")).to_contain_text("job_not_found")


def test_a_job_that_the_forms_cannot_show_is_not_taken(open_tab: Open) -> None:
    page = open_tab().open("#/new")
    page.get_by_text("All of it, as JSON").click()
    page.get_by_label("Specification").fill('{"tables": {"o": null}}')
    page.get_by_role("button", name="Take this").click()
    expect(page.get_by_role("alert")).to_contain_text("table o is an object")
    page.get_by_label("Specification").fill('{"tables": null, "settings": {"agg_phase": "ONE_PHASE"}}')
    page.get_by_role("button", name="Take this").click()
    expect(page.get_by_label("agg_phase")).to_have_value("ONE_PHASE")


def test_what_is_explained_is_told_to_be_of_an_earlier_text(open_tab: Open) -> None:
    page = open_tab().open("#/new")
    write_table(page, "o", "orders/")
    write_sql(page, QUERY)
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_role("heading", name="Rules", exact=True)).to_be_visible()
    expect(page.get_by_text("of an earlier text")).to_have_count(0)
    page.get_by_label("distinct_method").select_option("native")
    expect(page.get_by_text("of an earlier text")).to_be_visible()


def test_a_stream_begins_from_scratch(open_tab: Open, service: Service, jobs: dict[str, str]) -> None:
    service.http.post(f"/v1/jobs/{jobs['stream']}/stop")
    service.wait(jobs["stream"], "STOPPED")
    tab = open_tab()
    tab.expect_refusals(404)
    page = tab.open(f"#/jobs/{jobs['stream']}/stream")
    page.get_by_role("button", name="Resume from scratch").click()
    page.get_by_role("dialog").get_by_role("button", name="Begin from scratch").click()
    expect(page.locator(".job-state").get_by_text("RUNNING")).to_be_visible(timeout=180_000)
    expect(page.get_by_text("Generation")).to_be_visible()
