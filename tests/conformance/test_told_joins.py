"""Joins that are told how to run one by one, by hints in the text or in the structured query, give plain Spark's rows.

Each text is asked with many hints, or with many ways for each of its joins, by default and with settings for all joins
drawn from the whole product: what a join says itself goes before what the settings say. Which are refused at submission
is told by tables of what goes. Small queries are drawn; EVENKEEL_CONFORMANCE asks for more of them.
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
"""Ways of telling the joins of a query, one by one, that are drawn of it."""

JoinAlgorithm = tuple[str, str, str]
EVERY_WAY: list[JoinAlgorithm] = [
    (ship.value, local.value, skew.value) for ship, local, skew in product(JoinShip, JoinLocal, JoinSkew)
]
_JOINS = 2
"""As many as any of the texts has."""

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
"""What each says of a join whose left table it names, and whose right one."""

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
"""Texts, and hints that stand in them."""

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
"""Texts, and what the first of their joins in the text is; the others are as they stand."""


@pytest.fixture(scope="module")
def laboratory(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Laboratory]:
    """The nasty tables, as files and in memory."""
    root = nasty_tables.write_all(tmp_path_factory.mktemp("nasty"))
    with interpreted(spark):
        found = Laboratory(spark, root, nasty_tables.AS_PARQUET, cached=True, thorough=IS_WIDE)
        yield found
        found.close()


def drawn_settings(laboratory: Laboratory, text: str, random: Random) -> Settings:
    """One of the product for such a query."""
    return random.choice(all_together(laboratory.choices(text)))


def one_join(kind: str) -> list[str]:
    """Texts with a join of that kind, for hints: its rows, and an aggregate over it."""
    has_right = not kind.startswith("LEFT ")
    columns, calls = (", u.name, u.v", ", SUM(u.v), MIN(u.name)") if has_right else ("", "")
    source = f"h t {kind} JOIN u ON t.g = u.g"
    return [
        f"SELECT {{}} t.id, t.x{columns} FROM {source}",
        f"SELECT {{}} t.k, COUNT(*), SUM(t.b){calls} FROM {source} GROUP BY t.k",
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_hint_is_followed_or_refused(laboratory: Laboratory, kind: str) -> None:
    for template in one_join(kind):
        text, random = template.format(""), Random(template)
        asked, refused = [], set()
        for hint, table in product(HINTS, "tu"):
            ship, local = HINTS[hint]["tu".index(table)].split()
            hinted = {"sql": template.format(f"/*+ {hint}({table}) */")}
            says = {"join.ship": ship, "join.local": local}
            told = f"{hint}({table}) "
            asked.append(Asked(hinted, {}, told, says))
            if not allows_way(kind, ship, local):
                refused.add(str(asked[-1]))
            elif hint in {"BROADCAST", "SHUFFLE_HASH", "SHUFFLE_MERGE"}:
                # Against what the settings want of every join.
                asked.append(Asked(hinted, drawn_settings(laboratory, text, random), told, says))
        tally = laboratory.check_asked(text, asked)
        assert tally.wrong == []
        assert tally.unheard == []
        assert {told for told in tally.refused if told.endswith(" {}")} == refused
        assert "join_strategy" in tally.fired


@pytest.mark.parametrize("template", SEVERAL)
def test_several_hints_in_one_text_give_sparks_rows(laboratory: Laboratory, template: str) -> None:
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
    """Every join of a structured query in JSON, and of those inside it."""
    if isinstance(query, dict):
        yield from query.get("joins", [])
    for part in query.values() if isinstance(query, dict) else query if isinstance(query, list) else ():
        yield from joins_of(part)


def tell_joins(query: dict[str, Any], ways: Iterator[JoinAlgorithm]) -> tuple[str, bool]:
    """Tells each join of `query` how to run, in the words that a job takes; gives them back, and whether every join can
    follow what it is told.
    """
    told, can_all = [], True
    for join, (ship, local, skew) in zip(joins_of(query), ways, strict=False):
        join.update(ship=ship, local=local, skew=skew)
        kind = join["kind"].upper().replace("_", " ")
        can_all &= allows_way(kind, ship, local) and allows_skew(kind, ship, local, skew)
        told.append(f"{kind} {ship} {local} {skew}")
    return "; ".join(told), can_all


def drawn_ways(random: Random) -> Iterator[list[JoinAlgorithm]]:
    """Ways for the joins of one query after the other: one that each can follow, one that none can, and others."""
    yield from (
        [way] * _JOINS for way in (("REPARTITION", "AUTO", "ISOLATE"), ("BROADCAST_LEFT", "SORT_MERGE", "AUTO"))
    )
    while True:
        yield random.choices(EVERY_WAY, k=_JOINS)


@pytest.mark.parametrize(("template", "kind"), [(text, kind) for text, kinds in TEXTS.items() for kind in kinds])
def test_each_join_runs_as_it_says_itself(laboratory: Laboratory, template: str, kind: str) -> None:
    text = template.format(kind)
    random = Random(text)
    plain = compile_sql(text, laboratory.schemas).query
    asked, refused = [], set()
    for ways in drawn_ways(random):
        query = plain.model_dump(mode="json")
        told, can_all = tell_joins(query, iter(ways))
        asked.append(Asked({"query": query}, {}, told))
        if not can_all:
            refused.add(str(asked[-1]))
        elif random.random() < 0.5:
            asked.append(Asked({"query": query}, drawn_settings(laboratory, text, random), f"{told} under "))
        if len(asked) - len(refused) >= _DRAWN:
            break
    tally = laboratory.check_asked(text, asked)
    assert tally.wrong == []
    assert {told for told in tally.refused if " under " not in told} == refused
    assert refused
    assert tally.fired >= {"join_strategy", "skewed_join"}
