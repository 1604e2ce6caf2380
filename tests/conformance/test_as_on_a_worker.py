"""Rewritten plans as a worker runs them equal plain Spark's answer: with generated code and adaptive execution.

Elsewhere tiny queries are interpreted and run as they were planned, which takes a fraction of the time, and says
nothing of expressions that generated code computes earlier or once for several calls, nor of partitions that are put
together or joins that become broadcasts while a query runs. Each plan is a query of its own here. By default some
queries of each kind are tried with a few settings; EVENKEEL_CONFORMANCE asks for all, each choice by itself.
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
    """The nasty tables, as files."""
    root = nasty_tables.write_all(tmp_path_factory.mktemp("nasty"))
    found = Laboratory(spark, root, nasty_tables.AS_PARQUET, cached=False, one_by_one=True)
    yield found
    found.close()


@pytest.mark.parametrize("text", TEXTS)
def test_what_a_worker_would_run_gives_sparks_answer(spark: SparkSession, laboratory: Laboratory, text: str) -> None:
    assert (spark.conf.get("spark.sql.adaptive.enabled"), spark.conf.get("spark.sql.codegen.wholeStage")) == (
        "true",
    ) * 2
    choices = alone(laboratory.choices(text))
    forced = choices[2:]
    some = Random(text).sample(forced, min(_CHOICES, len(forced)))
    wanted: list[Settings] = choices if IS_WIDE else [{}, *some]
    tally = laboratory.check(text, wanted)
    assert tally.wrong == []
