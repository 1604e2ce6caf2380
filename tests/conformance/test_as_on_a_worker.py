"""Tests of rewritten plans with generated code and adaptive execution, as on a worker, against plain Spark.

Other tests interpret tiny queries without adaptive execution, which takes a fraction of the time. They do not test
expressions that generated code evaluates earlier or only once, coalesced partitions, or joins that become broadcasts at
run time. Here, each plan is its own query. By default, some queries of each kind run with a few settings; with
EVENKEEL_CONFORMANCE, all run, with each choice alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

import pytest
from pyspark.sql import SparkSession

from tests.conformance import nasty_tables
from tests.conformance.broad_queries import GROUPS, QUERIES
from tests.conformance.combinations import Settings, alone
from tests.conformance.laboratory import Laboratory

pytestmark = pytest.mark.spark

IS_WIDE = "EVENKEEL_CONFORMANCE" in os.environ
_SOME = {"distinct": 4, "eager": 4, "rows of joins": 3, "whole queries": 1, "plain aggregates": 1}
TEXTS = (
    QUERIES
    if IS_WIDE
    else [text for kind, number in _SOME.items() for text in Random(kind).sample(GROUPS[kind], number)]
)
_CHOICES = 3


@pytest.fixture(scope="module")
def laboratory(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    """A laboratory with the nasty tables as files."""
    root = nasty_tables.write_all(tmp_path_factory.mktemp("nasty"))
    found = Laboratory(spark, root, nasty_tables.AS_PARQUET, cached=False, one_by_one=True)
    yield found
    found.close()


@pytest.mark.parametrize("text", TEXTS)
def test_plans_as_on_a_worker_have_sparks_rows(spark: SparkSession, laboratory: Laboratory, text: str) -> None:
    assert (spark.conf.get("spark.sql.adaptive.enabled"), spark.conf.get("spark.sql.codegen.wholeStage")) == (
        "true",
    ) * 2
    choices = alone(laboratory.choices(text))
    forced = choices[2:]
    some = Random(text).sample(forced, min(_CHOICES, len(forced)))
    wanted: list[Settings] = choices if IS_WIDE else [{}, *some]
    tally = laboratory.check(text, wanted)
    assert tally.wrong == []
