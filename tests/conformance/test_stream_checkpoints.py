"""Tests that streams continue from checkpoints of earlier releases."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.checkpoints import DDL, KEPT, reopened, rows_of
from tests.conformance.stream_runs import in_batch
from tests.support.rows import difference
from workers.engine.streaming.state import differences

pytestmark = pytest.mark.spark

_ARCHIVES = sorted((Path(__file__).parents[1] / "data" / "checkpoints").glob("*.tar.xz"))


def _name(archive: Path) -> str:
    return archive.name.removesuffix(".tar.xz")


@pytest.fixture(scope="module", params=_ARCHIVES, ids=_name)
def archive(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of an earlier release's archive."""
    directory = tmp_path_factory.mktemp("archive")
    shutil.unpack_archive(request.param, directory)
    return directory


def test_archives_exist() -> None:
    assert _ARCHIVES


@pytest.mark.parametrize("name", KEPT)
def test_stream_continues_from_a_checkpoint_of_an_earlier_release(
    spark: SparkSession, tmp_path: Path, archive: Path, name: str
) -> None:
    if not (archive / name).is_dir():
        pytest.fail(f"the archive has no {name}: that query is younger, give it a name that archives of its time have")
    kept = KEPT[name]
    run, layout = reopened(spark, tmp_path / "run", archive / name, kept)
    assert differences(layout, run.planned.layout) == ()
    before = run.next_batch
    files = {stream: sorted((archive / name / "rows").glob(f"{stream}*.parquet")) for stream in kept.streams}
    for stream in kept.streams:
        files[stream].append(rows_of(spark, stream, 2, tmp_path / "rows"))
        run.put(stream, files[stream][-1])
    assert run.catch_up() is None
    assert run.next_batch > before
    expected = in_batch(spark, kept.batch or kept.sql, files, dict.fromkeys(kept.streams, DDL))
    assert difference(expected, run.rows) is None
