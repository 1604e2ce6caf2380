"""Tests of queries that are computed by changes: after each mini-batch, the result is that of a batch query over the
rows so far, for any division into mini-batches and any kills.
"""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from service.sql.types.data_types import Schema
from tests.conformance.conftest import FACTS, SEED, facts
from tests.conformance.stream_runs import StreamRun, catch_up_roughly, in_batch, write_rows
from tests.sql.case_files import named_texts
from tests.support.rows import difference
from workers.engine.streaming.stream_plan import Shape

pytestmark = pytest.mark.spark

_DDL = ", ".join(f"{field.name} {field.type}" for field in FACTS.fields)
QUERIES = named_texts("streams/changes")


@pytest.mark.parametrize("name", QUERIES)
def test_changes_have_the_batch_result(spark: SparkSession, tmp_path: Path, name: str) -> None:
    random = Random(f"{SEED} {name}")
    sql = QUERIES[name]
    tables = [table for table in "st" if re.search(rf"\b(FROM|JOIN) {table}\b", sql)]
    run = StreamRun(spark, tmp_path / "run", sql, dict.fromkeys(tables, Schema(FACTS.fields)), is_accepted=True)
    assert run.planned.plan.shape is Shape.CHANGES
    assert run.planned.plan.changes is not None
    put: dict[str, list[Path]] = {table: [] for table in tables}
    story: list[str] = []
    for number in range(3):
        for table in tables:
            rows = facts(40, 0.3, random.randint(0, 1 << 30))
            file = write_rows(tmp_path / "cuts" / f"{table}{number}.parquet", FACTS, rows)
            put[table].append(file)
            run.put(table, file)
            if random.random() < 0.3:
                break
        catch_up_roughly(run, random, story)
        assert run.catch_up() is None
        expected = in_batch(spark, sql, put, dict.fromkeys(put, _DDL))
        assert difference(expected, run.rows) is None, (number, story)
    # A mini-batch that is only committed again has no state.
    newest = [progress for progress in run.progress if progress.state][-1]
    assert [one.operator for one in newest.state] == [step.text for step in run.planned.plan.changes.steps]
    assert any(one.updated and one.state_bytes for one in newest.state) or "of no rows" in name
