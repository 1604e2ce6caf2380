"""Tests of streams against the oracle: for any order of rows, division into mini-batches and retries, a stream's result
is that of a batch query over the same rows.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from service.contract.options import DistinctMethod, StateProvider
from service.sql.types.data_types import Schema
from tests.conformance.conftest import FACTS, NAMES, SEED, facts
from tests.conformance.stream_runs import StreamRun, catch_up_roughly, in_batch, write_rows
from tests.sql.case_files import named_texts
from tests.support.rows import difference
from workers.engine.streaming.stream_plan import Shape

pytestmark = pytest.mark.spark

_DDL = ", ".join(f"{field.name} {field.type}" for field in FACTS.fields)
_ROWS = 120

QUERIES = {name: sql for kind in ("plain", "distinct", "rows") for name, sql in named_texts(f"streams/{kind}").items()}
BITMAPS, JOINED, BESIDE_STATIC = (named_texts(f"streams/{name}") for name in ("bitmaps", "joined", "beside_static"))


def _cut(random: Random, directory: Path, number_of_rows: int = _ROWS, most: int = 3) -> list[Path]:
    """Writes rows in random order to one to `most` files, some of which may be empty."""
    rows = facts(number_of_rows, 0.3, random.randint(0, 1 << 30))
    random.shuffle(rows)
    borders = sorted(random.sample(range(len(rows) + 1), random.randint(0, most - 1)))
    pieces = zip([0, *borders], [*borders, len(rows)], strict=True)
    return [
        write_rows(directory / f"{number}.parquet", FACTS, rows[start:end])
        for number, (start, end) in enumerate(pieces)
    ]


@pytest.mark.parametrize(
    ("name", "method"),
    [(name, DistinctMethod.NATIVE) for name in QUERIES] + [(name, DistinctMethod.BITMAP) for name in BITMAPS],
)
def test_stream_has_the_batch_result(spark: SparkSession, tmp_path: Path, name: str, method: DistinctMethod) -> None:
    random = Random(f"{SEED} {name} {method}")
    sql = BITMAPS[name] if method is DistinctMethod.BITMAP else QUERIES[name]
    files = _cut(random, tmp_path / "cuts")
    provider = random.choice(list(StateProvider))
    run = StreamRun(spark, tmp_path / "run", sql, {"s": Schema(FACTS.fields)}, provider=provider, method=method)
    assert (run.planned.plan.shape is Shape.BITMAP) == (method is DistinctMethod.BITMAP)
    story: list[str] = []
    for file in files:
        run.put("s", file)
        if random.random() < 0.5:
            continue
        catch_up_roughly(run, random, story)
    catch_up_roughly(run, random, story)
    assert run.catch_up() is None
    expected = in_batch(spark, sql, {"s": files}, {"s": _DDL})
    assert difference(expected, run.rows) is None, (provider, len(files), story)


@pytest.mark.slow
@pytest.mark.parametrize("name", JOINED)
def test_two_streams_have_the_batch_result_of_their_join(spark: SparkSession, tmp_path: Path, name: str) -> None:
    random = Random(f"{SEED} {name}")
    sql = JOINED[name]
    files = {table: _cut(random, tmp_path / table, rows) for table, rows in (("s", 60), ("t", 40))}
    provider = random.choice(list(StateProvider))
    schemas = {table: Schema(FACTS.fields) for table in files}
    run = StreamRun(spark, tmp_path / "run", sql, schemas, provider=provider)
    steps = [(table, file) for table, cut in files.items() for file in cut]
    random.shuffle(steps)
    story: list[str] = []
    for table, file in steps:
        run.put(table, file)
        if random.random() < 0.4:
            catch_up_roughly(run, random, story)
    catch_up_roughly(run, random, story)
    assert run.catch_up() is None
    expected = in_batch(spark, sql, files, dict.fromkeys(files, _DDL))
    assert difference(expected, run.rows) is None, (provider, steps, story)


@pytest.mark.parametrize("name", BESIDE_STATIC)
def test_stream_with_a_static_table(spark: SparkSession, tmp_path: Path, name: str) -> None:
    random = Random(f"{SEED} {name}")
    sql = BESIDE_STATIC[name]
    files = _cut(random, tmp_path / "cuts", 80)
    names = [(-1, "x", 0.5), (1, "y", 1.5), (1, "z", None), (2, None, 0.0), (None, "w", 1.0)]
    static = tmp_path / "static" / "n"
    write_rows(static / "n.parquet", NAMES, names)
    run = StreamRun(spark, tmp_path / "run", sql, {"s": Schema(FACTS.fields)}, {"n": static.parent})
    for file in files:
        run.put("s", file)
    story: list[str] = []
    catch_up_roughly(run, random, story)
    assert run.catch_up() is None
    expected = in_batch(spark, sql, {"s": files, "n": [static / "n.parquet"]}, {"s": _DDL})
    assert difference(expected, run.rows) is None, story
