"""Measures how smooth the dashboard is with 10,000 jobs in its list and with a plan of 200 nodes.

    python -m tests.benchmarks.dashboard [--rounds 5] [--jobs 10000]

Starts the whole service, runs a job, stores 10,000 copies of it and shows them in Chromium. Prints medians over the
rounds: frames while scrolling through everything, and long tasks of the page's main thread, which exceed 50 ms and
block the page.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page
from rich.console import Console
from rich.table import Table

from service.store.session import Database
from tests.support.browser import Tab, running_browser
from tests.support.lifecycle import add_finished
from tests.support.service import Service, running_service
from tests.support.tables import parquet, write_orders

_NODES = 200
_OBSERVE = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => window.longTasks.push(...list.getEntries().map((one) => one.duration)))
    .observe({type: 'longtask'});
}"""
_TASKS = "() => { const found = window.longTasks; window.longTasks = []; return found; }"
_SCROLL = """async (selector) => {
  const place = selector ? document.querySelector(selector) : document.scrollingElement;
  const frames = [];
  let before = performance.now();
  for (let step = 0; step <= 120; step += 1) {
    place.scrollTo(0, (place.scrollHeight * step) / 120);
    await new Promise(requestAnimationFrame);
    frames.push(performance.now() - before);
    before = performance.now();
  }
  return frames;
}"""
_LOAD_ALL = """async (wanted) => {
  const loaded = () => Number(document.querySelector('.jobs').dataset.loaded);
  while (loaded() < wanted) {
    document.querySelector('.list-end button')?.click();
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}"""


def wide_query(nodes: int) -> dict[str, Any]:
    """Returns a job whose plan has at least this number of nodes, in branches of a UNION ALL."""
    branch = "SELECT o.category AS k, COUNT(*) AS n FROM o WHERE o.uid > {} GROUP BY o.category"
    sql = " UNION ALL ".join(branch.format(place) for place in range(nodes // 4))
    return {"name": "wide", "tables": {"o": parquet("orders")}, "sql": sql}


def main() -> None:
    """Prints a table of medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=10_000)
    arguments = parser.parse_args()
    figures: dict[str, list[float]] = {}
    with (
        tempfile.TemporaryDirectory() as directory,
        running_service(Path(directory)) as service,
        running_browser() as browser,
    ):
        write_orders(service.data)
        wide = service.submit(wide_query(_NODES))
        service.wait(wide, seconds=300)
        with closing(Database(f"sqlite:///{service.state_dir / 'evenkeel.db'}")) as database:
            add_finished(database, wide, arguments.jobs)
        for _ in range(arguments.rounds):
            for what, value in _round(browser, service, wide, arguments.jobs):
                figures.setdefault(what, []).append(value)
    table = Table("what", "median", "worst", box=None)
    for what, values in figures.items():
        table.add_row(what, f"{statistics.median(values):,.0f}", f"{max(values):,.0f}")
    Console().print(table)


def _round(browser: Browser, service: Service, wide: str, jobs: int) -> Iterator[tuple[str, float]]:
    tab = Tab(browser, service.address)
    tab.page.set_default_timeout(120_000)
    began = time.perf_counter()
    page = tab.open("#/jobs")
    page.locator(".job-name").first.wait_for()
    yield "jobs: first rows seen, ms", (time.perf_counter() - began) * 1000
    began = time.perf_counter()
    page.evaluate(_OBSERVE)
    page.evaluate(_LOAD_ALL, jobs)
    yield f"jobs: all {jobs:,} loaded, ms", (time.perf_counter() - began) * 1000
    yield from _long_tasks("jobs: loading them", page)
    yield from _frames("jobs: scrolling through all", page.evaluate(_SCROLL, ""))
    page.evaluate(_TASKS)
    page.wait_for_timeout(10_000)
    yield from _long_tasks("jobs: 10 s of polling", page)

    began = time.perf_counter()
    page = tab.open(f"#/jobs/{wide}/plan")
    page.locator(".graph-node").first.wait_for()
    yield "plan: graph seen, ms", (time.perf_counter() - began) * 1000
    yield "plan: nodes drawn", page.locator(".graph-node").count()
    page.evaluate(_OBSERVE)
    page.evaluate(_TASKS)
    page.get_by_role("button", name="Larger").last.click()
    page.get_by_role("button", name="Larger").last.click()
    yield from _long_tasks("plan: zooming twice", page)
    yield from _frames("plan: scrolling through it", page.evaluate(_SCROLL, ".graph-view"))
    tab.close()


def _long_tasks(what: str, page: Page) -> Iterator[tuple[str, float]]:
    tasks = page.evaluate(_TASKS)
    yield f"{what}: longest task, ms", max(tasks, default=0)
    yield f"{what}: long tasks together, ms", sum(tasks)


def _frames(what: str, frames: list[float]) -> Iterator[tuple[str, float]]:
    yield f"{what}: median frame, ms", statistics.median(frames)
    yield f"{what}: longest frame, ms", max(frames)


if __name__ == "__main__":
    main()
