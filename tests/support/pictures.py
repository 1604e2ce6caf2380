"""Takes the README's screenshots of the dashboard, with real jobs on the demo's tables.

python -m tests.support.pictures
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from service.cli.demo_data import write_tables
from tests.support.browser import Tab, running_browser
from tests.support.service import Service, running_service
from tests.support.tables import parquet

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
_REPORTS = 6_000_000
_SLOTS = 8
"""Enough to see that one task is slower than the others."""
_WIDE = {"width": 1280, "height": 1010}

EAGER = {
    "name": "altitude per carrier",
    "tables": {"r": parquet("reports"), "f": parquet("flights")},
    "sql": "SELECT f.carrier, COUNT(*) AS pairs, AVG(r.altitude) AS mean_altitude, MAX(r.altitude) AS highest "
    "FROM r JOIN f ON r.tailnum = f.tailnum GROUP BY f.carrier ORDER BY pairs DESC",
}
SKEWED = {
    "name": "stuck transponder",
    "tables": {"r": parquet("reports")},
    "sql": "SELECT r.tailnum, COUNT(*) AS reports, AVG(r.altitude) AS mean_altitude FROM r GROUP BY r.tailnum",
    "settings": {"agg_phase": "ONE_PHASE", "skew": {"factor": 1.5, "threshold": "1MB"}},
}


def main() -> None:
    """Writes `plan.png` and `skew.png`."""
    PICTURES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as directory,
        running_service(Path(directory), {"EVENKEEL_SPARK_MASTER": f"local[{_SLOTS}]"}) as service,
        running_browser() as browser,
    ):
        write_tables(service.data, _REPORTS)
        tab = Tab(browser, service.address, viewport=_WIDE)
        _take(tab, service, EAGER, "plan")
        _take(tab, service, SKEWED, "skew")
        tab.check()


def _take(tab: Tab, service: Service, spec: dict[str, Any], section: str) -> None:
    job_id = service.submit(spec)
    job = service.wait(job_id, seconds=300)
    assert job["status"] == "SUCCEEDED", job["error"]
    page = tab.open(f"#/jobs/{job_id}/{section}")
    page.wait_for_load_state("networkidle")
    page.screenshot(path=PICTURES / f"{section}.png")


if __name__ == "__main__":
    main()
