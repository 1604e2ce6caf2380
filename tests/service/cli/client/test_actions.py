"""`evenkeel cancel`, `stop`, `resume` and `delete`."""

from __future__ import annotations

import json

import pytest

from tests.support import lifecycle
from tests.support.served import Evenkeel, Served

pytestmark = pytest.mark.one_database

STREAM = json.dumps(
    {
        "mode": "incremental",
        "tables": {"o": {"format": "parquet", "path": "arriving/"}},
        "sql": "SELECT o.uid, COUNT(*) AS n FROM o GROUP BY o.uid",
    }
)


@pytest.mark.not_quick
def test_a_job_is_cancelled_and_deleted(served: Served, evenkeel: Evenkeel) -> None:
    job_id = lifecycle.insert(served.database)
    assert evenkeel("delete", job_id).exit_code == 11
    cancelled = evenkeel("cancel", job_id)
    assert (cancelled.exit_code, cancelled.stdout) == (0, "CANCELLED\n")
    again = evenkeel("cancel", job_id, "--json")
    assert again.exit_code in {0, 11}
    assert json.loads(evenkeel("delete", job_id, "--json").stdout) == {"deleted": job_id}
    assert evenkeel("job", job_id).exit_code == 8


@pytest.mark.not_quick
def test_a_stream_is_stopped_and_resumed(served: Served, evenkeel: Evenkeel) -> None:
    arriving = served.settings.data_roots[0] / "arriving"
    arriving.mkdir()
    (served.settings.data_roots[0] / "orders.parquet").rename(arriving / "0.parquet")
    job_id = evenkeel("submit", "-", text=STREAM).stdout.strip()
    assert evenkeel("stop", job_id).stdout == "STOPPED\n"
    assert evenkeel("job", job_id, "--wait").exit_code == 0
    options = ("--from", "scratch", "--set", "mini_batch.size=7", "--json")
    resumed = json.loads(evenkeel("resume", job_id, *options).stdout)
    assert (resumed["status"], resumed["spec"]["settings"]["mini_batch"]["size"]) == ("QUEUED", 7)
    assert evenkeel("resume", job_id).exit_code == 11


def test_a_batch_job_has_nothing_to_resume(served: Served, evenkeel: Evenkeel) -> None:
    result = evenkeel("resume", lifecycle.insert(served.database))
    assert (result.exit_code, "[not_a_stream]" in result.stderr) == (11, True)
