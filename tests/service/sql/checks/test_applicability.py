"""Settings that a query cannot follow are refused when the job is compiled."""

from __future__ import annotations

from typing import Any

import pytest

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema

SCHEMAS = {"orders": parse_schema("uid INT", "/x"), "users": parse_schema("uid INT, name STRING", "/x")}
TABLES = {name: {"format": "parquet", "path": f"{name}/"} for name in SCHEMAS}


def compile_with(kind: str, settings: dict[str, Any] | None = None, **join: Any) -> None:
    keys = [] if kind == "cross" else [{"left": "orders.uid", "right": "users.uid"}]
    query = {
        "source": {"kind": "table", "table": "orders"},
        "joins": [{"kind": kind, "right": {"kind": "table", "table": "users"}, "on": keys, **join}],
        "select": [{"expression": "orders.uid", "name": "uid"}],
    }
    compile_job(JobSpec.model_validate({"tables": TABLES, "query": query, "settings": settings or {}}), SCHEMAS)


def refusals(kind: str, settings: dict[str, Any] | None = None, **join: Any) -> list[tuple[str | None, str]]:
    with pytest.raises(SpecError) as caught:
        compile_with(kind, settings, **join)
    assert {issue.code for issue in caught.value.issues} == {"unsupported_join_strategy"}
    return [(issue.pointer, issue.detail) for issue in caught.value.issues]


@pytest.mark.parametrize(
    ("ship", "local"),
    [
        ("BROADCAST_LEFT", "SORT_MERGE"),
        ("BROADCAST_LEFT", "HASH_RIGHT"),
        ("BROADCAST_RIGHT", "SORT_MERGE"),
        ("BROADCAST_RIGHT", "HASH_LEFT"),
    ],
)
def test_a_pair_that_spark_lacks_is_refused_wherever_it_is_said(ship: str, local: str) -> None:
    hashed = ship.replace("BROADCAST", "HASH")
    why = (
        f"{ship} with {local} is not supported for the inner join with users: Spark hashes the side that it "
        f"broadcasts, so {ship} requires {hashed}."
    )
    assert refusals("inner", {"join": {"ship": ship, "local": local}}) == [("/settings/join/local", why)]
    assert refusals("inner", ship=ship, local=local) == [("/query/joins/0/local", why)]
    assert refusals("inner", {"join.local": local}, ship=ship) == [("/query/joins/0/ship", why)]
    assert refusals("inner", {"join.ship": ship}, local=local) == [("/query/joins/0/local", why)]


@pytest.mark.parametrize(
    ("kind", "join", "at"),
    [
        ("left", {"ship": "BROADCAST_LEFT"}, "ship"),
        ("right", {"ship": "BROADCAST_RIGHT", "local": "HASH_RIGHT"}, "ship"),
        ("full", {"ship": "BROADCAST_RIGHT"}, "ship"),
        ("left_semi", {"ship": "BROADCAST_LEFT"}, "ship"),
        ("left_anti", {"local": "HASH_LEFT"}, "local"),
        ("cross", {"ship": "REPARTITION"}, "ship"),
        ("cross", {"local": "SORT_MERGE"}, "local"),
    ],
)
def test_a_way_that_the_kind_forbids_is_refused(kind: str, join: dict[str, Any], at: str) -> None:
    assert [pointer for pointer, _ in refusals(kind, **join)] == [f"/query/joins/0/{at}"]
    settings = {f"join.{key}": value for key, value in join.items()}
    assert [pointer for pointer, _ in refusals(kind, settings)] == [f"/settings/join/{at}"]


def test_a_join_that_says_something_else_is_not_bound_by_the_settings() -> None:
    compile_with("full", {"join.ship": "BROADCAST_LEFT"}, ship="REPARTITION")
    compile_with("left_semi", {"join.local": "HASH_LEFT"}, local="SORT_MERGE")


def test_auto_is_what_the_settings_say() -> None:
    assert [at for at, _ in refusals("full", {"join.ship": "BROADCAST_LEFT"}, ship="AUTO")] == ["/settings/join/ship"]


def test_what_spark_has_is_accepted() -> None:
    compile_with("full", ship="REPARTITION", local="HASH_LEFT")
    compile_with("left", ship="BROADCAST_RIGHT", local="HASH_RIGHT")
    compile_with("cross", ship="BROADCAST_LEFT")


def test_a_join_that_has_no_hot_key_or_cannot_be_salted_says_so() -> None:
    (crossed,) = refusals("cross", skew="ISOLATE")
    assert crossed[0] == "/query/joins/0/skew"
    assert "has no key, and so no hot key" in crossed[1]
    (full,) = refusals("full", skew="SALT")
    assert "would emit each unmatched copy" in full[1]
    compile_with("full", skew="ISOLATE")


def test_a_setting_of_skew_that_no_join_can_follow_says_so() -> None:
    (full,) = refusals("full", {"join": {"skew": "SALT"}})
    assert full[0] == "/settings/join/skew"
    assert "would emit each unmatched copy" in full[1]
    assert [at for at, _ in refusals("cross", {"join": {"skew": "ISOLATE"}})] == ["/settings/join/skew"]
    compile_with("full", {"join": {"skew": "ISOLATE"}})
    compile_with("left", {"join": {"skew": "SALT"}})
    compile_with("full", {"join": {"skew": "SALT"}}, skew="NONE")
    mixed = "SELECT a.uid FROM orders a FULL JOIN users b ON a.uid = b.uid JOIN users c ON a.uid = c.uid"
    compile_job(JobSpec.model_validate({"tables": TABLES, "sql": mixed, "settings": {"join.skew": "SALT"}}), SCHEMAS)


def test_salted_keys_are_sorted() -> None:
    for told in (
        refusals("inner", skew="SALT", local="HASH_LEFT"),
        refusals("inner", {"join.local": "HASH_LEFT"}, skew="SALT"),
    ):
        assert [(at, "joined by sort-merge" in detail) for at, detail in told] == [("/query/joins/0/skew", True)]
    (by_settings,) = refusals("inner", {"join": {"skew": "SALT", "local": "HASH_RIGHT"}})
    assert by_settings[0] == "/settings/join/skew"
    compile_with("inner", {"join": {"skew": "ISOLATE", "local": "HASH_RIGHT"}})
    compile_with("inner", {"join": {"skew": "SALT", "local": "HASH_RIGHT"}}, local="SORT_MERGE")


@pytest.mark.parametrize("ship", ["BROADCAST_LEFT", "BROADCAST_RIGHT"])
def test_no_key_is_hot_to_a_broadcast(ship: str) -> None:
    why = "the rows of the other side are not partitioned by key"
    for skew in ("ISOLATE", "SALT"):
        for told in (refusals("inner", ship=ship, skew=skew), refusals("inner", {"join.ship": ship}, skew=skew)):
            assert [(at, why in detail) for at, detail in told] == [("/query/joins/0/skew", True)]
        for told in (
            refusals("inner", {"join.skew": skew}, ship=ship),
            refusals("inner", {"join": {"skew": skew, "ship": ship}}),
        ):
            assert [(at, why in detail) for at, detail in told] == [("/settings/join/skew", True)]
    compile_with("inner", {"join.ship": ship}, ship="REPARTITION", skew="SALT")
    compile_with("inner", {"join.skew": "NONE"}, ship=ship)


def test_a_join_inside_a_structured_query_is_pointed_at() -> None:
    inner = {
        "source": {"kind": "table", "table": "orders"},
        "joins": [
            {
                "kind": "full",
                "right": {"kind": "table", "table": "users"},
                "on": [{"left": "orders.uid", "right": "users.uid"}],
                "ship": "BROADCAST_LEFT",
            }
        ],
        "select": [{"expression": "orders.uid", "name": "uid"}],
    }
    other = {"source": {"kind": "table", "table": "users"}, "select": [{"expression": "uid", "name": "uid"}]}
    for source, pointer in (
        ({"kind": "query", "query": inner, "alias": "d"}, "/query/source/query/joins/0/ship"),
        ({"kind": "union_all", "queries": [other, inner], "alias": "d"}, "/query/source/queries/1/joins/0/ship"),
    ):
        query = {"source": source, "select": [{"expression": "uid", "name": "uid"}]}
        with pytest.raises(SpecError) as caught:
            compile_job(JobSpec.model_validate({"tables": TABLES, "query": query}), SCHEMAS)
        assert [issue.pointer for issue in caught.value.issues] == [pointer]
