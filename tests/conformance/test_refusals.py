"""Tests that, of all combinations of forced settings, exactly the unsupported ones are refused."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import product
from random import Random

import pytest

from service.contract.job import JobSpec
from service.contract.options import AggPhase, DistinctMethod, JobSettings, JoinLocal, JoinShip, JoinSkew, Toggle
from service.contract.problems import SpecError
from service.sql.checks.settings import check_settings
from service.sql.compile import compile_job
from service.sql.resolve.bound import BoundQuery
from service.sql.types.data_types import Schema
from tests.conformance import nasty_tables
from tests.conformance.broad_queries import QUERIES
from tests.conformance.combinations import Settings
from tests.conformance.laboratory import table_input
from tests.conformance.refusals import Facts, facts_of, refused

PHASES = frozenset({"ONE_PHASE", "TWO_PHASE"})
OTHERS = {
    "SELECT t.id, u.v FROM f t CROSS JOIN u": Facts(("CROSS",)),
    "SELECT COUNT(*), COUNT(DISTINCT t.g) FROM f t CROSS JOIN u": Facts(
        ("CROSS",), frozenset({"split", "bitmap"}), phases=PHASES
    ),
    "SELECT t.id FROM f t CROSS JOIN u JOIN e z ON z.g = t.g": Facts(("CROSS", "INNER")),
    "SELECT t.g, COUNT(*) FROM f t FULL JOIN u ON t.g = u.g JOIN e z ON z.g = t.g GROUP BY t.g": Facts(
        ("FULL", "INNER"), eager=True, phases=PHASES
    ),
    "SELECT t.id FROM f t LEFT JOIN u ON t.g = u.g RIGHT JOIN e z ON z.g = t.g": Facts(("LEFT", "RIGHT")),
    "SELECT g, COUNT(DISTINCT k), COUNT(DISTINCT g) FROM f GROUP BY ROLLUP (g)": Facts(),
    "SELECT t.g, COUNT(*) FROM f t JOIN u ON t.g = u.g GROUP BY CUBE (t.g)": Facts(("INNER",)),
    "SELECT k, MIN(DISTINCT g), MAX(DISTINCT g) FROM f GROUP BY k": Facts(phases=PHASES),
    "SELECT g, COUNT(DISTINCT k) FROM f GROUP BY g": Facts((), frozenset({"split", "bitmap"}), phases=PHASES),
    "SELECT g, COUNT(DISTINCT k), COUNT(*) FROM f GROUP BY g": Facts((), frozenset({"split"}), phases=PHASES),
    "SELECT g, q, COUNT(DISTINCT k) FROM f GROUP BY g, q": Facts((), frozenset({"split"}), phases=PHASES),
    "SELECT COUNT(*), SUM(g) FROM f": Facts(phases=frozenset({"TWO_PHASE"})),
    "SELECT id FROM f": Facts(),
}
"""Kinds of queries that the broad queries do not include."""

OF_JOINS: Mapping[str, Iterable[StrEnum]] = {"join.ship": JoinShip, "join.local": JoinLocal, "join.skew": JoinSkew}
OF_AGGREGATES: Mapping[str, Iterable[StrEnum]] = {
    "agg_phase": AggPhase,
    "distinct_method": DistinctMethod,
    "distinct_split.enabled": Toggle,
    "eager_aggregation": Toggle,
}


def every_way(choices: Mapping[str, Iterable[StrEnum]]) -> list[Settings]:
    """Returns the product of all choices."""
    return [{key: way.value for key, way in zip(choices, ways, strict=True)} for ways in product(*choices.values())]


def chosen() -> list[Settings]:
    """Returns both products and some of their product; with EVENKEEL_CONFORMANCE, all of it."""
    together = every_way({**OF_JOINS, **OF_AGGREGATES})
    if os.environ.get("EVENKEEL_CONFORMANCE") == "product":
        return together
    return [*every_way(OF_JOINS), *every_way(OF_AGGREGATES), *Random(0).sample(together, 60)]


CHOSEN = chosen()


@pytest.fixture(scope="module")
def every() -> list[JobSettings]:
    """Returns the settings of jobs."""
    return [JobSettings.model_validate(settings) for settings in CHOSEN]


@pytest.fixture(scope="module")
def schemas(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Schema]:
    """The schemas of the nasty tables."""
    root = tmp_path_factory.mktemp("nasty")
    for name, schema in nasty_tables.SCHEMAS.items():
        nasty_tables.write(root, name, [], schema)
    return {name: table_input(root, name, source).schema for name, source in nasty_tables.AS_PARQUET.items()}


def pointers(query: BoundQuery, settings: JobSettings) -> set[str]:
    """Returns the pointers of the refused settings."""
    try:
        check_settings(query, settings)
    except SpecError as error:
        return {issue.pointer or "" for issue in error.issues}
    return set()


@pytest.mark.parametrize("text", [*QUERIES, *OTHERS])
def test_exactly_unsupported_settings_are_refused(
    schemas: dict[str, Schema], every: list[JobSettings], text: str
) -> None:
    tables = {name: source.model_dump(mode="json", by_alias=True) for name, source in nasty_tables.AS_PARQUET.items()}
    query = compile_job(JobSpec.model_validate({"tables": tables, "sql": text}), schemas)
    facts = OTHERS.get(text) or facts_of(text)
    wrong = []
    for given, settings in zip(CHOSEN, every, strict=True):
        expected = {"/settings/" + name.replace(".", "/") for name in refused(facts, given)}
        got = pointers(query, settings)
        if got != expected:
            wrong.append((given, expected, got))
    assert wrong == []
