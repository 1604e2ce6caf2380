"""Tests random queries of `tests/conformance/change_queries.py`: after each mini-batch, also if it was interrupted,
their results by changes are those of a batch query.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.conformance.change_runs import check
from tests.conformance.stream_runs import in_one_piece
from tests.support.counts import count

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SEED = 20_261_129


@pytest.mark.timeout(1_800)
def test_random_queries_by_changes_have_the_batch_result(spark: SparkSession, tmp_path: Path) -> None:
    session = in_one_piece(spark)
    refused = 0
    for number in range(count(sample=15, full=200)):
        sql, found = check(spark, session, tmp_path, SEED, number)
        refused += found.startswith("refused")
        assert not found or found.startswith("refused"), f"query {number}: {found}\n{sql}"
    assert refused <= count(sample=1, full=5)
