"""Tests that streams continue from checkpoints of earlier releases."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.checkpoints import ARCHIVES, DDL, reopened, rows_of
from tests.conformance.stream_runs import in_batch
from tests.support.rows import difference
from workers.engine.streaming.state import differences

pytestmark = pytest.mark.spark

_DIRECTORY = Path(__file__).parents[1] / "data" / "checkpoints"


@pytest.mark.parametrize(("archive", "name"), [(archive, name) for archive in ARCHIVES for name in ARCHIVES[archive]])
def test_stream_continues_from_a_checkpoint_of_an_earlier_release(
    spark: SparkSession, tmp_path: Path, archive: str, name: str
) -> None:
    archived = tmp_path / "archive" / name
    shutil.unpack_archive(_DIRECTORY / f"{archive}.tar.xz", tmp_path / "archive")
    kept = ARCHIVES[archive][name]
    run, layout = reopened(spark, tmp_path / "run", archived, kept)
    assert differences(layout, run.planned.layout) == ()
    before = run.next_batch
    files = {stream: sorted((archived / "rows").glob(f"{stream}*.parquet")) for stream in kept.streams}
    for stream in kept.streams:
        files[stream].append(rows_of(spark, stream, 2, tmp_path / "rows"))
        run.put(stream, files[stream][-1])
    assert run.catch_up() is None
    assert run.next_batch > before
    expected = in_batch(spark, kept.batch or kept.sql, files, dict.fromkeys(kept.streams, DDL))
    assert difference(expected, run.rows) is None
