"""Tests of queries over CSV tables against plain Spark with its own reader on the same files.

Other tests use Parquet. CSV tables get columns and types from the job, have estimated sizes and keys, and are parsed by
each branch of a plan. Here, they are written in three formats, with accents, quotes and NULLs. By default, some queries
of each kind run with a few settings; with EVENKEEL_CONFORMANCE, all run, with each choice alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from random import Random

import pytest
from pyspark.sql import SparkSession

from tests.conformance import nasty_tables
from tests.conformance.broad_queries import GROUPS
from tests.conformance.combinations import Settings, all_together, alone
from tests.conformance.laboratory import Laboratory, interpreted

pytestmark = pytest.mark.spark

IS_WIDE = "EVENKEEL_CONFORMANCE" in os.environ
_SOME = {"distinct": 3, "plain aggregates": 1, "eager": 3, "rows of joins": 2, "whole queries": 1, "overflows": 1}
TEXTS = [
    text
    for kind, number in _SOME.items()
    for text in (GROUPS[kind] if IS_WIDE else Random(kind).sample(GROUPS[kind], number))
]
_COMBINATIONS = 4


@pytest.fixture(scope="module")
def laboratory(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    """A laboratory with the nasty tables, except the nested one, as CSV."""
    root = tmp_path_factory.mktemp("text")
    tables = {name: nasty_tables.as_csv(name) for name in nasty_tables.SCHEMAS if name != "n"}
    for name, rows in nasty_tables.contents().items():
        if name in tables:
            nasty_tables.write_csv(root, name, rows)
    with interpreted(spark):
        found = Laboratory(spark, root, tables, cached=False)
        yield found
        found.close()


@pytest.mark.parametrize("text", TEXTS)
def test_every_setting_has_sparks_rows(laboratory: Laboratory, text: str) -> None:
    choices = laboratory.choices(text)
    product = all_together(choices)
    some: list[Settings] = [{}, *Random(text).sample(product, min(_COMBINATIONS, len(product)))]
    tally = laboratory.check(text, alone(choices) if IS_WIDE else some)
    assert tally.wrong == []
    assert tally.unheard == []


def test_tables_are_read_as_written(spark: SparkSession, laboratory: Laboratory) -> None:
    """Otherwise, a reader that returns only NULLs would pass."""
    found = spark.sql("SELECT f.k, f.m, f.ts, u.name FROM f JOIN u ON f.g = u.g WHERE f.k = 'ä' AND u.name = 'één'")
    assert [row.k for row in found.collect()] != []
    read = {name: spark.table(name).count() for name in ("f", "h", "u", "e", "o")}
    assert read == {name: len(rows) for name, rows in nasty_tables.contents().items() if name in read}
    for name, column in (("f", "w"), ("h", "ts"), ("u", "d"), ("h", "x")):
        place = nasty_tables.SCHEMAS[name].get_field_index(column)
        values = [row[0] for row in spark.table(name).select(column).collect()]
        wanted = [row[place] for row in nasty_tables.contents()[name]]
        assert values.count(None) == wanted.count(None)
        assert len({repr(value) for value in values}) == len({repr(value) for value in wanted})
