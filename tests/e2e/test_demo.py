"""Tests of the demo: it verifies its results, leaves no files, and two can run at the same time."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.support.processes import end, family, start_python, wait_for, wait_until_gone
from tests.support.service import ENVIRONMENT

pytestmark = pytest.mark.e2e

_SECONDS = 240


@pytest.mark.slow
@pytest.mark.full
def test_two_concurrent_demos_verify_results_and_leave_nothing(tmp_path: Path) -> None:
    logs = [tmp_path / f"{number}.log" for number in range(2)]
    demos = [
        start_python(
            ["-m", "service.cli", "demo", "--reports", "300000"],
            environment={**ENVIRONMENT, "TMPDIR": str(tmp_path)},
            log=log,
            cwd=tmp_path,
        )
        for log in logs
    ]
    try:
        for demo, log in zip(demos, logs, strict=True):
            assert demo.wait(_SECONDS) == 0, log.read_text()
    finally:
        for demo in demos:
            end(demo)
    said = logs[0].read_text()
    for text in ("carriers", "manufacturers", "stuck transponder", "Every number agrees with pandas", "group key"):
        assert text in said
    assert said.count("equal to pandas in all") >= 3
    assert "split_distinct_aggregate" in said
    assert list(tmp_path.glob("evenkeel-demo-*")) == [], "temporary directories are left"


@pytest.mark.slow
def test_interrupted_demo_leaves_nothing(tmp_path: Path) -> None:
    log = tmp_path / "demo.log"
    demo = start_python(
        ["-m", "service.cli", "demo", "--reports", "300000"],
        environment={**ENVIRONMENT, "TMPDIR": str(tmp_path)},
        log=log,
        cwd=tmp_path,
    )
    wait_for("the first job", lambda: "Job 1" in log.read_text(), 150)
    processes = family(demo.pid)
    os.kill(demo.pid, 2)
    assert demo.wait(60) == 130
    wait_until_gone(list(processes), 2)
    assert "Traceback" not in log.read_text()
    assert list(tmp_path.glob("evenkeel-demo-*")) == []


def test_nonempty_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    log = Path(tempfile.mkstemp(dir=tmp_path)[1])
    demo = start_python(["-m", "service.cli", "demo", "--state-dir", str(tmp_path)], log=log, cwd=tmp_path)
    assert demo.wait(30) == 2
    assert "is not an empty directory" in log.read_text()
    assert (tmp_path / "precious").exists()
