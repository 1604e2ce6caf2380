"""Tests of key profiles with real processes, compared with exact counts."""

from __future__ import annotations

import math
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.processes import wait_for
from tests.support.service import Service, running_service

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SEED = 20
ROWS = 120_000
FILES = 3
WITHIN = 0.02
"""The maximum error of a share in a sample of 64 Ki rows of each file; larger errors occur once in millions of
samples.
"""


def write_skewed(service: Service) -> list[dict[str, Any]]:
    """Writes `skewed/`: a third of the rows have one id, half have one name, a quarter has no ratio and a quarter
    NaN.
    """
    dice = random.Random(SEED)
    rows = [
        {
            "id": 7 if dice.random() < 1 / 3 else dice.randrange(1_000, 100_000),
            "name": "hot" if dice.random() < 1 / 2 else f"n{dice.randrange(50_000)}",
            "ratio": dice.choice([None, math.nan, dice.random(), dice.random()]),
        }
        for _ in range(ROWS)
    ]
    directory = service.data / "skewed"
    directory.mkdir()
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("ratio", pa.float64())])
    for part in range(FILES):
        pq.write_table(pa.Table.from_pylist(rows[part::FILES], schema=schema), directory / f"{part}.parquet")
    return rows


def profile(service: Service, table: dict[str, Any], *keys: Sequence[str], **more: Any) -> dict[str, Any]:
    answer = service.http.post("/v1/profiles", json={"table": table, "keys": keys, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def shares(key: dict[str, Any]) -> dict[str, float]:
    return {hot["value"]: hot["share"] for hot in key["hot_keys"]}


def exact(rows: list[dict[str, Any]], *columns: str) -> Counter[str]:
    def text(value: object) -> str:
        return "NULL" if value is None else ("nan" if value != value else str(value))

    return Counter(", ".join(text(row[column]) for column in columns) for row in rows)


def test_profile_of_a_sample_is_close_to_exact_counts(service: Service) -> None:
    rows = write_skewed(service)
    skewed = {"format": "parquet", "path": "skewed/"}
    keys = (("id",), ("name",), ("ratio",), ("id", "name"))
    found = profile(service, skewed, *keys, slots=100)
    assert found["table"]["rows"] == ROWS
    assert found["table"]["files"] == FILES
    for key, columns in zip(found["keys"], keys, strict=True):
        counted = exact(rows, *columns)
        for value, share in shares(key).items():
            assert share == pytest.approx(counted[value] / ROWS, abs=WITHIN), (columns, value)
        missed = {value for value, count in counted.most_common(2) if count / ROWS > 3 * WITHIN} - set(shares(key))
        assert not missed, (columns, missed)
        hottest = counted.most_common(1)[0][1]
        assert key["rows_on_hottest_task"] == pytest.approx(hottest + (ROWS - hottest) / 100, rel=0.1)
        assert key["skewed"] is False
        assert "that task is too small to matter" in key["advice"]
    assert found["keys"][2]["null_share"] == pytest.approx(1 / 4, abs=WITHIN)
    assert any(hot["is_null"] for hot in found["keys"][2]["hot_keys"])


def test_tables_of_every_kind(service: Service) -> None:
    (service.data / "csv").mkdir()
    (service.data / "csv" / "part.csv").write_text("k,v\n" + "a,1\n" * 90 + "b,2\n" * 10)
    declared = {"format": "csv", "path": "csv/", "schema": "k STRING, v INT", "options": {"header": True}}
    (key,) = profile(service, declared, ["k"])["keys"]
    assert shares(key)["a"] == pytest.approx(0.9, abs=0.05)
    pq.write_table(pa.table({"k": pa.array([], pa.int64())}), service.data / "empty.parquet")
    (key,) = profile(service, {"format": "parquet", "path": "empty.parquet"}, ["k"])["keys"]
    assert (key["rows"], key["hot_keys"], key["skewed"]) == (0, [], False)


def test_columns_that_cannot_be_grouped_are_refused(service: Service) -> None:
    maps = pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "k": pa.array([1], pa.int64())})
    pq.write_table(maps, service.data / "maps.parquet")
    table = {"format": "parquet", "path": "maps.parquet"}
    answer = service.http.post("/v1/profiles", json={"table": table, "keys": [["k"], ["m"]]})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"].startswith("/keys/1")


@pytest.mark.full
def test_killed_worker_fails_only_its_profile(tmp_path: Path) -> None:
    with running_service(tmp_path) as service, ThreadPoolExecutor(1) as pool:
        write_skewed(service)
        skewed = {"format": "parquet", "path": "skewed/"}
        asking = pool.submit(service.http.post, "/v1/profiles", json={"table": skewed, "keys": [["id"]]})
        worker = wait_for("a worker", lambda: _worker_of(service.process.pid), 60)
        os.kill(worker, signal.SIGKILL)
        assert asking.result(timeout=120).status_code in (200, 503)
        wait_for("a worker again", lambda: service.http.get("/readyz").status_code == 200, 120)
        assert wait_for("a profile", lambda: _profile(service, skewed), 120)
        assert service.http.get("/v1/jobs").json()["jobs"] == []


def _profile(service: Service, table: dict[str, Any]) -> bool:
    return service.http.post("/v1/profiles", json={"table": table, "keys": [["id"]]}).status_code == 200


def _worker_of(pid: int) -> int | None:
    for child in psutil.Process(pid).children(recursive=True):
        if "workers" in " ".join(child.cmdline()):
            return child.pid
    return None
