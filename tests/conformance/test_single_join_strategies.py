"""Tests of strategies for single joins, by hints in SQL or in the structured query, against plain Spark.

Each text runs with many hints or strategies for its joins, with default and with random settings for all joins; the
strategy of a join takes precedence over the settings. Tables say which combinations are refused at submission. Queries
are random; EVENKEEL_CONFORMANCE increases their number.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import product
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from service.contract.options import JoinLocal, JoinShip, JoinSkew
from service.sql.compile import compile_sql
from tests.conformance import nasty_tables
from tests.conformance.combinations import Settings, all_together
from tests.conformance.laboratory import Asked, Laboratory, interpreted
from tests.conformance.refusals import allows_skew, allows_way

pytestmark = [pytest.mark.spark, pytest.mark.slow]

IS_WIDE = "EVENKEEL_CONFORMANCE" in os.environ
_DRAWN = 200 if IS_WIDE else 5
"""The number of random combinations of strategies for the joins of a query."""

JoinAlgorithm = tuple[str, str, str]
EVERY_WAY: list[JoinAlgorithm] = [
    (ship.value, local.value, skew.value) for ship, local, skew in product(JoinShip, JoinLocal, JoinSkew)
]
_JOINS = 2
"""The maximum number of joins in the texts."""

KINDS = ("INNER", "LEFT", "RIGHT", "FULL", "LEFT SEMI", "LEFT ANTI")
HINTS = {
    "BROADCAST": ("BROADCAST_LEFT HASH_LEFT", "BROADCAST_RIGHT HASH_RIGHT"),
    "MAPJOIN": ("BROADCAST_LEFT HASH_LEFT", "BROADCAST_RIGHT HASH_RIGHT"),
    "BROADCASTJOIN": ("BROADCAST_LEFT HASH_LEFT", "BROADCAST_RIGHT HASH_RIGHT"),
    "SHUFFLE_HASH": ("REPARTITION HASH_LEFT", "REPARTITION HASH_RIGHT"),
    "SHUFFLE_MERGE": ("REPARTITION SORT_MERGE", "REPARTITION SORT_MERGE"),
    "MERGE": ("REPARTITION SORT_MERGE", "REPARTITION SORT_MERGE"),
    "MERGEJOIN": ("REPARTITION SORT_MERGE", "REPARTITION SORT_MERGE"),
}
"""The strategy of each hint if it names the left table of a join, and if it names the right one."""

SEVERAL = {
    "SELECT {} t.id, u.name, v.v FROM h t JOIN u ON t.g = u.g LEFT JOIN u v ON t.k = v.k": [
        "BROADCAST(u), SHUFFLE_HASH(v)",
        "SHUFFLE_MERGE(u, v)",
        "SHUFFLE_HASH(t) BROADCAST(v)",
        "MAPJOIN(t), MERGE(v)",
        "BROADCAST(t, u, v)",
    ],
    "SELECT {} u.name, COUNT(*), SUM(t.b), MAX(v.x) FROM f t LEFT JOIN u ON t.g = u.g LEFT SEMI JOIN h z ON z.k = t.k "
    "JOIN u v ON v.d = t.d GROUP BY u.name": [
        "SHUFFLE_HASH(u, z, v)",
        "MERGE(u) BROADCAST(z, v)",
        "BROADCAST(u, z, v)",
    ],
    "SELECT a.k, COUNT(*), SUM(a.v), COUNT(DISTINCT a.g) FROM "
    "(SELECT {} t.k, t.g, u.v FROM h t JOIN u ON t.g = u.g) AS a LEFT JOIN u w ON w.k = a.k GROUP BY a.k": [
        "SHUFFLE_HASH(u)",
        "BROADCAST(t)",
        "MERGE(t)",
    ],
}
"""Texts with hints."""

TEXTS = {
    "SELECT t.id, t.g, u.name FROM h t {} JOIN u ON t.g = u.g AND (t.x < u.x OR u.v > 2)": ("INNER", "LEFT", "FULL"),
    "SELECT t.g, COUNT(*), SUM(t.b), SUM(u.v), MIN(t.big) FROM h t {} JOIN u ON t.g = u.g GROUP BY t.g": (
        "INNER",
        "RIGHT",
    ),
    "SELECT t.k, COUNT(*), COUNT(DISTINCT t.big), SUM(v.v) FROM h t {} JOIN u ON t.g = u.g LEFT JOIN u v ON v.k = t.k "
    "GROUP BY t.k": ("INNER", "LEFT ANTI"),
    "SELECT a.name, COUNT(*), SUM(a.b) FROM (SELECT u.name, t.b, t.k FROM f t {} JOIN u ON u.g = t.g) AS a "
    "JOIN h w ON w.k = a.k GROUP BY a.name": ("LEFT", "FULL"),
}
"""Texts in which the kind of the first join is replaced."""


@pytest.fixture(scope="module")
def laboratory(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    """The nasty tables, as files and in memory."""
    root = nasty_tables.write_all(tmp_path_factory.mktemp("nasty"))
    with interpreted(spark):
        found = Laboratory(spark, root, nasty_tables.AS_PARQUET, cached=True, thorough=IS_WIDE)
        yield found
        found.close()


def drawn_settings(laboratory: Laboratory, text: str, random: Random) -> Settings:
    """Draws a combination of settings for a query."""
    return random.choice(all_together(laboratory.choices(text)))


def one_join(kind: str) -> list[str]:
    """Returns texts with a join of this kind: its rows, and an aggregate over it."""
    has_right = not kind.startswith("LEFT ")
    columns, calls = (", u.name, u.v", ", SUM(u.v), MIN(u.name)") if has_right else ("", "")
    source = f"h t {kind} JOIN u ON t.g = u.g"
    return [
        f"SELECT {{}} t.id, t.x{columns} FROM {source}",
        f"SELECT {{}} t.k, COUNT(*), SUM(t.b){calls} FROM {source} GROUP BY t.k",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_hint_is_used_or_refused(laboratory: Laboratory, kind: str) -> None:
    for template in one_join(kind):
        text, random = template.format(""), Random(template)
        asked, refused = [], set()
        for hint, table in product(HINTS, "tu"):
            ship, local = HINTS[hint]["tu".index(table)].split()
            hinted = {"sql": template.format(f"/*+ {hint}({table}) */")}
            says = {"join.ship": ship, "join.local": local}
            described = f"{hint}({table}) "
            asked.append(Asked(hinted, {}, described, says))
            if not allows_way(kind, ship, local):
                refused.add(str(asked[-1]))
            elif hint in {"BROADCAST", "SHUFFLE_HASH", "SHUFFLE_MERGE"}:
                # The settings ask for another strategy.
                asked.append(Asked(hinted, drawn_settings(laboratory, text, random), described, says))
        tally = laboratory.check_asked(text, asked)
        assert tally.wrong == []
        assert tally.unheard == []
        assert {described for described in tally.refused if described.endswith(" {}")} == refused
        assert "join_strategy" in tally.fired


@pytest.mark.parametrize("template", SEVERAL)
def test_several_hints_in_one_text_have_sparks_rows(laboratory: Laboratory, template: str) -> None:
    text, random = template.format(""), Random(template)
    asked = [
        Asked({"sql": template.format(f"/*+ {hints} */")}, settings, hints)
        for hints in SEVERAL[template]
        for settings in ({}, drawn_settings(laboratory, text, random), drawn_settings(laboratory, text, random))
    ]
    tally = laboratory.check_asked(text, asked)
    assert tally.wrong == []
    assert not {str(one) for one in asked if not one.settings} & set(tally.refused)
    assert "join_strategy" in tally.fired


def joins_of(query: Any) -> Iterator[dict[str, Any]]:
    """Yields every join of a structured query in JSON, including nested ones."""
    if isinstance(query, dict):
        yield from query.get("joins", [])
    for part in query.values() if isinstance(query, dict) else query if isinstance(query, list) else ():
        yield from joins_of(part)


def tell_joins(query: dict[str, Any], ways: Iterator[JoinAlgorithm]) -> tuple[str, bool]:
    """Sets a strategy for each join of `query`. Returns the strategies, and whether every join supports its
    strategy.
    """
    described, can_all = [], True
    for join, (ship, local, skew) in zip(joins_of(query), ways, strict=False):
        join.update(ship=ship, local=local, skew=skew)
        kind = join["kind"].upper().replace("_", " ")
        can_all &= allows_way(kind, ship, local) and allows_skew(kind, ship, local, skew)
        described.append(f"{kind} {ship} {local} {skew}")
    return "; ".join(described), can_all


def drawn_ways(random: Random) -> Iterator[list[JoinAlgorithm]]:
    """Yields strategies for the joins of a query: supported by all, supported by none, and random ones."""
    yield from (
        [way] * _JOINS for way in (("REPARTITION", "AUTO", "ISOLATE"), ("BROADCAST_LEFT", "SORT_MERGE", "AUTO"))
    )
    while True:
        yield random.choices(EVERY_WAY, k=_JOINS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("template", "kind"), [(text, kind) for text, kinds in TEXTS.items() for kind in kinds])
def test_each_join_uses_its_own_strategy(laboratory: Laboratory, template: str, kind: str) -> None:
    text = template.format(kind)
    random = Random(text)
    plain = compile_sql(text, laboratory.schemas).query
    asked, refused = [], set()
    for ways in drawn_ways(random):
        query = plain.model_dump(mode="json")
        described, can_all = tell_joins(query, iter(ways))
        asked.append(Asked({"query": query}, {}, described))
        if not can_all:
            refused.add(str(asked[-1]))
        elif random.random() < 0.5:
            asked.append(Asked({"query": query}, drawn_settings(laboratory, text, random), f"{described} under "))
        if len(asked) - len(refused) >= _DRAWN:
            break
    tally = laboratory.check_asked(text, asked)
    assert tally.wrong == []
    assert {described for described in tally.refused if " under " not in described} == refused
    assert refused
    assert tally.fired >= {"join_strategy", "skewed_join"}
