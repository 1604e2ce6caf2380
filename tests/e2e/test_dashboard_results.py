"""Tests of results on the dashboard: paging, downloads in every format, and the list of many jobs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pyarrow.ipc
import pyarrow.parquet as pq
import pytest
from playwright.sync_api import Page, expect

from service.store.session import Database
from tests.support.browser import Tab
from tests.support.lifecycle import add_finished
from tests.support.service import Service
from tests.support.tables import parquet

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

Open = Callable[..., Tab]
ROWS = 250
WIDE = {
    "name": "two hundred and fifty",
    "tables": {"o": parquet("orders")},
    "sql": f"SELECT o.price, COUNT(*) AS n FROM o WHERE o.price < {ROWS / 2} GROUP BY o.price ORDER BY o.price",
}


@pytest.fixture(scope="module")
def job_id(service: Service) -> str:
    """The id of a job with more rows than fit on a page."""
    submitted = service.submit(WIDE)
    assert service.wait(submitted)["result"]["rows"] == ROWS
    return submitted


def test_pages_forward_and_back(open_tab: Open, job_id: str) -> None:
    page = open_tab().open(f"#/jobs/{job_id}/result")
    first = page.get_by_role("region", name="Rows of the result").get_by_role("cell").first
    # A double click skips no page.
    expect(page.get_by_text("Rows 1 to 100 of 250")).to_be_visible()
    page.get_by_role("button", name="Next").dblclick()
    expect(page.get_by_text("Rows 101 to 200 of 250")).to_be_visible()
    page.get_by_role("button", name="Previous").click()
    for rows, value in (("1 to 100", "0"), ("101 to 200", "50"), ("201 to 250", "100")):
        expect(page.get_by_text(f"Rows {rows} of 250")).to_be_visible()
        expect(first).to_have_text(value)
        if rows != "201 to 250":
            page.get_by_role("button", name="Next").click()
    expect(page.get_by_role("button", name="Next")).to_be_disabled()
    page.get_by_role("button", name="Previous").click()
    expect(page.get_by_text("Rows 101 to 200 of 250")).to_be_visible()
    expect(first).to_have_text("50")


def downloaded(page: Page, name: str, path: Path) -> Path:
    with page.expect_download() as downloading:
        page.get_by_role("button", name=f"Download {name}").click()
    downloading.value.save_as(path)
    return path


def test_result_is_downloaded_as_parquet_and_arrow(open_tab: Open, job_id: str, tmp_path: Path) -> None:
    page = open_tab(downloads=True).open(f"#/jobs/{job_id}/result")
    wanted = {"price": [place / 2 for place in range(ROWS)], "n": [1] * ROWS}
    assert pq.read_table(downloaded(page, "Parquet", tmp_path / "rows.parquet")).to_pydict() == wanted
    with pyarrow.ipc.open_stream(downloaded(page, "Arrow", tmp_path / "rows.arrows")) as stream:
        assert stream.read_all().to_pydict() == wanted


def test_failed_page_is_reloaded(open_tab: Open, job_id: str) -> None:
    tab = open_tab()
    tab.expect_refusals(503)
    problem = {"title": "Storage unavailable", "detail": "The storage is unavailable.", "code": "storage_unavailable"}
    tab.page.route("**/result?*", lambda route: route.fulfill(status=503, json=problem))
    page = tab.open(f"#/jobs/{job_id}/result")
    expect(page.get_by_role("alert")).to_contain_text("The storage is unavailable.")
    page.unroute("**/result?*")
    page.get_by_role("button", name="Reload").click()
    expect(page.get_by_text("Rows 1 to 100 of 250")).to_be_visible()


def test_long_list_is_loaded_on_scrolling(open_tab: Open, service: Service, job_id: str) -> None:
    with closing(Database(f"sqlite:///{service.state_dir / 'evenkeel.db'}")) as database:
        copies = add_finished(database, job_id, 300)
    try:
        tab = open_tab()
        # The copies have no plan.
        tab.expect_refusals(404)
        page = tab.open("#/jobs?name=two%20hundred")
        expect(page.locator(".jobs[data-loaded='50']")).to_be_visible()
        for loaded in (250, 301):
            page.locator(".list-end").scroll_into_view_if_needed()
            expect(page.locator(f".jobs[data-loaded='{loaded}']")).to_be_visible()
        expect(page.get_by_text("301 jobs")).to_be_visible()
        # Only the visible rows and those around them are in the page.
        assert page.locator(".job-name").count() < 100
        scrolled = page.evaluate("scrollY")
        # The clicked row is visible: for another one, the browser would scroll.
        page.evaluate("document.elementFromPoint(300, 300).closest('.job-row').querySelector('a').click()")
        expect(page.get_by_role("heading", level=1)).to_have_text("two hundred and fifty")
        page.go_back()
        expect(page.locator(".jobs[data-loaded='301']")).to_be_visible()
        page.wait_for_function("before => Math.abs(scrollY - before) < 100", arg=scrolled)
    finally:
        for copy in copies:
            service.http.delete(f"/v1/jobs/{copy}")
