"""Takes the screenshots of README.md and of the tutorial, with real jobs on the demo's tables.

python -m tests.support.pictures
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from service.cli.demo_data import REPORTS, write_tables
from tests.support.browser import Tab, running_browser
from tests.support.service import Service, running_service
from tests.support.tables import parquet

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
_WIDE = {"width": 1280, "height": 1010}

EAGER = {
    "name": "altitude per carrier",
    "tables": {"r": parquet("reports"), "f": parquet("flights")},
    "sql": "SELECT f.carrier, COUNT(*) AS pairs, AVG(r.altitude) AS mean_altitude, MAX(r.altitude) AS highest "
    "FROM r JOIN f ON r.tailnum = f.tailnum GROUP BY f.carrier ORDER BY pairs DESC",
}
"""The job of README.md's picture."""
SKEWED = {
    "name": "stuck",
    "tables": {"r": parquet("reports")},
    "sql": "SELECT r.tailnum, COUNT(*) AS reports, ROUND(AVG(r.altitude), 1) AS mean_altitude\n"
    "FROM r GROUP BY r.tailnum ORDER BY reports DESC LIMIT 3",
    "settings": {"agg_phase": "ONE_PHASE", "skew": {"factor": 1.2, "threshold": "1MB"}},
}
"""The tutorial's first job."""


def main() -> None:
    """Writes `plan.png` and `skew.png`."""
    PICTURES.mkdir(exist_ok=True)
    with running_browser() as browser:
        for spec, section, reports, slots in ((EAGER, "plan", 6_000_000, 8), (SKEWED, "skew", REPORTS, 2)):
            with (
                tempfile.TemporaryDirectory() as directory,
                running_service(Path(directory), {"EVENKEEL_SPARK_MASTER": f"local[{slots}]"}) as service,
            ):
                write_tables(service.data, reports)
                # The first job also waits for Spark to start.
                service.wait(service.submit(spec), seconds=300)
                tab = Tab(browser, service.address, viewport=_WIDE)
                _take(tab, service, spec, section)
                tab.check()
                tab.close()


def _take(tab: Tab, service: Service, spec: dict[str, Any], section: str) -> None:
    job_id = service.submit(spec)
    job = service.wait(job_id, seconds=300)
    assert job["status"] == "SUCCEEDED", job["error"]
    page = tab.open(f"#/jobs/{job_id}/{section}")
    page.wait_for_load_state("networkidle")
    page.screenshot(path=PICTURES / f"{section}.png")


if __name__ == "__main__":
    main()
