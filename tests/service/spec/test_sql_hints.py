"""Hints of joins, in Spark's and in Flink's words."""

from __future__ import annotations

import pytest

from service.spec.compile import compile_job
from service.spec.ddl import parse_schema
from service.spec.errors import SpecError
from service.spec.job import JobSpec

SCHEMAS = {name: parse_schema("k BIGINT, v STRING", "/x") for name in "abc"}
TABLES = {name: {"format": "parquet", "path": name} for name in SCHEMAS}
CHAIN = "x.v FROM a AS x JOIN b ON x.k = b.k LEFT JOIN c AS `the c` ON x.k = `the c`.k"

NOTHING = (None, None)
BROADCAST_LEFT = ("BROADCAST_LEFT", "HASH_LEFT")
BROADCAST_RIGHT = ("BROADCAST_RIGHT", "HASH_RIGHT")
HASH_LEFT = ("REPARTITION", "HASH_LEFT")
HASH_RIGHT = ("REPARTITION", "HASH_RIGHT")
MERGE = ("REPARTITION", "SORT_MERGE")


def ways(sql: str) -> list[tuple[str | None, str | None]]:
    query = compile_job(JobSpec.model_validate({"tables": TABLES, "sql": sql}), SCHEMAS)
    return [(join.ship and join.ship.value, join.local and join.local.value) for join in query.joins]


def refusal(sql: str) -> tuple[str, int | None, int | None, str]:
    with pytest.raises(SpecError) as caught:
        ways(sql)
    issue = caught.value.issues[0]
    assert issue.pointer == "/sql"
    return issue.code, issue.line, issue.column, issue.detail


@pytest.mark.parametrize(
    ("hints", "expected"),
    [
        ("BROADCAST(b)", [BROADCAST_RIGHT, NOTHING]),
        ("broadcastjoin(X)", [BROADCAST_LEFT, NOTHING]),
        ("MAPJOIN(b, `the c`)", [BROADCAST_RIGHT, BROADCAST_RIGHT]),
        ("SHUFFLE_HASH(x)", [HASH_LEFT, NOTHING]),
        ("SHUFFLE_HASH(b), MERGE(`The C`)", [HASH_RIGHT, MERGE]),
        ("SHUFFLE_MERGE(x, b) BROADCAST(`the c`)", [MERGE, BROADCAST_RIGHT]),
        ("MERGEJOIN(b) , SHUFFLE_MERGE(x)", [MERGE, NOTHING]),
        # Both sides in one hint: the first, as in Flink.
        ("BROADCAST(x, b)", [BROADCAST_LEFT, NOTHING]),
        ("SHUFFLE_HASH(b, x)", [HASH_RIGHT, NOTHING]),
    ],
)
def test_hints_are_about_the_join_of_the_table_that_they_name(
    hints: str, expected: list[tuple[str | None, str | None]]
) -> None:
    assert ways(f"SELECT /*+ {hints} */ {CHAIN}") == expected


def test_of_both_sides_the_first_that_the_kind_allows_is_taken() -> None:
    assert ways("SELECT /*+ BROADCAST(a, b) */ a.v FROM a LEFT JOIN b ON a.k = b.k") == [BROADCAST_RIGHT]
    assert ways("SELECT /*+ SHUFFLE_HASH(a, b) */ a.v FROM a LEFT SEMI JOIN b ON a.k = b.k") == [HASH_RIGHT]


def test_hints_stand_before_distinct_and_beside_comments() -> None:
    assert ways("SELECT /*+ BROADCAST(b) */ DISTINCT a.v /* plain */ FROM a JOIN b ON a.k = b.k -- /*+ no */") == [
        BROADCAST_RIGHT
    ]
    assert ways("SELECT a.v AS `/*+ x */`, '/*+ x */' AS t FROM a JOIN b ON a.k = b.k") == [NOTHING]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        (
            f"SELECT\n /*+ BROADCAST(b),\n BROADCST(b) */ {CHAIN}",
            (
                "unsupported_hint",
                3,
                2,
                "There is no hint BROADCST here: BROADCAST, SHUFFLE_HASH, SHUFFLE_MERGE and their synonyms are read.",
            ),
        ),
        (f"SELECT /*+ REPARTITION(3) */ {CHAIN}", ("unsupported_hint", 1, 12, "There is no hint REPARTITION here")),
        (f"SELECT /*+ SHUFFLE_REPLICATE_NL(b) */ {CHAIN}", ("unsupported_hint", 1, 12, "no hint SHUFFLE_REPLICATE")),
        (
            f"SELECT /*+ BROADCAST(\n  a) */ {CHAIN}",
            ("unknown_table", 2, 3, "BROADCAST names a, which is no table of its FROM."),
        ),
        (
            f"SELECT /*+ BROADCAST(b), SHUFFLE_HASH(b) */ {CHAIN}",
            ("conflicting_hints", 1, 39, "BROADCAST and SHUFFLE_HASH say different things of the join with b."),
        ),
        ("SELECT /*+ BROADCAST(a) */ a.v FROM a", ("unsupported_hint", 1, 22, "BROADCAST(a) has no effect")),
        (f"SELECT /*+ BROADCAST */ {CHAIN}", ("sql_syntax", 1, 12, "BROADCAST needs the names of tables")),
        (f"SELECT /*+ BROADCAST(b */ {CHAIN}", ("sql_syntax", 1, 8, "BROADCAST takes names of tables")),
        (f"SELECT /*+ BROADCAST(d.b) */ {CHAIN}", ("sql_syntax", 1, 23, "takes names of tables")),
        (f"SELECT /*+ BROADCAST('b') */ {CHAIN}", ("sql_syntax", 1, 22, "takes names of tables")),
        (f"SELECT /*+ BROADCAST(b), */ {CHAIN}", ("sql_syntax", 1, 8, "The hint ends")),
        (f"SELECT /*+ */ {CHAIN}", ("sql_syntax", 1, 8, "The hint ends")),
        (f"SELECT /*+ 'b' */ {CHAIN}", ("sql_syntax", 1, 12, "A hint is NAME(table, …).")),
        # The kind of the join forbids it.
        (
            "SELECT /*+ BROADCAST(a) */ a.v\nFROM a LEFT JOIN b ON a.k = b.k",
            ("unsupported_join_strategy", 1, 22, "left join cannot broadcast its left side"),
        ),
        (
            "SELECT /*+ BROADCAST(a, b) */ a.v FROM a FULL JOIN b ON a.k = b.k",
            ("unsupported_join_strategy", 1, 25, "full join cannot broadcast"),
        ),
        # Where no SELECT sees it.
        ("SELECT a.v FROM /*+ BROADCAST(b) */ a JOIN b ON a.k = b.k", ("unsupported_construct", 1, 17, "A hint")),
        ("SELECT /*+ MERGE(b) */ /*+ MERGE(b) */ a.v FROM a JOIN b ON a.k = b.k", ("unsupported_construct", 1, 24, "")),
    ],
)
def test_what_cannot_be_followed_is_refused_where_it_stands(sql: str, expected: tuple[str, int, int, str]) -> None:
    code, line, column, detail = refusal(sql)
    assert (code, line, column) == expected[:3], detail
    assert expected[3] in detail
