"""Hot keys of a join: by the rows of a side, by the rows of the output, and NULL keys that are kept."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.options import SkewSettings
from service.contract.query import JoinKind
from service.contract.reports import HotKey
from service.sql.expressions.scalar import column
from service.sql.joins import Side
from service.sql.types.data_types import BIGINT, Field
from tests.support.scalars import scalar
from workers.engine.plan.nodes import Filter, Join, Named, Project, Scan
from workers.engine.rules.joins.hot_keys import (
    JoinProfile,
    filtered_by_key,
    frequent_keys,
    hot_key_loads,
    join_profile,
    sides_with_hot_nulls,
)
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

KEYS = ((column("l.k", BIGINT), column("r.k", BIGINT)),)
LEFT, RIGHT = (Scan(side, side, ((Field(f"{side}.k", BIGINT), "k"),)) for side in "lr")
JOIN = Join(LEFT, RIGHT, JoinKind.INNER, KEYS)
ANY_SIZE = SkewSettings(threshold=0)


def known(left: dict[str, float], right: dict[str, float], *, distinct: int = 1000, nulls: float = 0.0) -> Statistics:
    sizes = {side: TableSize(side, 4, 100_000_000, 1_000_000, True) for side in "lr"}
    sketches: dict[tuple[str, ...], KeySketch] = {}
    for side, shares in (("l", left), ("r", right)):
        hot = tuple(HotKey(value=value, share=share, estimated_rows=0) for value, share in shares.items())
        literals = tuple((scalar(f"{value}L", BIGINT),) for value in shares)
        key = (f"{side}.k",)
        sketches[key] = KeySketch(side, key, 60_000, distinct, nulls, hot, literals=literals)
    return Statistics(sizes, sketches, slots=4)


def profile(join: Join, statistics: Statistics) -> JoinProfile:
    found = join_profile(join, statistics)
    assert found is not None
    return found


def test_rows_of_a_key_on_both_sides() -> None:
    found = profile(JOIN, known({"7": 0.5}, {"8": 0.25}))
    assert [(load.value, round(load.left), round(load.right)) for load in found.loads] == [
        ("7", 500_000, 751),
        ("8", 501, 250_000),
    ]
    assert found.out(found.loads[0]) == found.loads[0].left * found.loads[0].right
    assert found.handled(found.loads[0]) > found.out(found.loads[0])
    assert profile(JOIN, replace(known({}, {}), slots=1)).slots == 1


@pytest.mark.parametrize(
    ("kind", "left", "right", "rows"),
    [
        (JoinKind.INNER, 3, 4, 12),
        (JoinKind.INNER, 3, 0, 0),
        (JoinKind.LEFT, 3, 0, 3),
        (JoinKind.RIGHT, 0, 4, 4),
        (JoinKind.FULL, 0, 4, 4),
        (JoinKind.LEFT_SEMI, 3, 4, 3),
        (JoinKind.LEFT_SEMI, 3, 0, 0),
        (JoinKind.LEFT_ANTI, 3, 4, 0),
        (JoinKind.LEFT_ANTI, 3, 0, 3),
    ],
)
def test_rows_that_a_key_emits(kind: JoinKind, left: float, right: float, rows: float) -> None:
    assert profile(replace(JOIN, kind=kind), known({}, {})).emitted(left, right) == rows


def test_hot_by_input_and_by_output() -> None:
    def hot(statistics: Statistics, skew: SkewSettings = ANY_SIZE) -> list[str]:
        return [load.value for load in hot_key_loads(profile(JOIN, statistics), skew)]

    assert hot(known({"7": 0.6, "8": 0.01}, {})) == ["7"]
    assert hot(known({"7": 0.6}, {}), SkewSettings(threshold=1 << 40)) == []
    assert hot(known({"7": 0.01}, {"7": 0.02}, distinct=1_000_000)) == ["7"]
    assert hot(known({"7": 0.01}, {}, distinct=1_000_000)) == []


def test_nulls_are_hot_where_they_are_kept() -> None:
    statistics = known({}, {}, nulls=0.9)
    assert sides_with_hot_nulls(profile(JOIN, statistics), ANY_SIZE) == ()
    assert sides_with_hot_nulls(profile(replace(JOIN, kind=JoinKind.FULL), statistics), ANY_SIZE) == (
        Side.LEFT,
        Side.RIGHT,
    )
    assert sides_with_hot_nulls(profile(replace(JOIN, kind=JoinKind.LEFT, null_safe=True), statistics), ANY_SIZE) == ()


def test_the_frequent_keys_if_none_is_hot() -> None:
    # More than an eighth of the rows, with two tasks on each of four slots.
    assert [load.value for load in frequent_keys(profile(JOIN, known({"7": 0.13, "8": 0.12}, {})))] == ["7"]
    assert [load.value for load in frequent_keys(profile(JOIN, known({"7": 0.02, "8": 0.01}, {})))] == ["7"]
    assert frequent_keys(profile(JOIN, known({}, {}))) == ()
    found = profile(JOIN, known({"7": 0.2, "8": 0.2}, {}))
    unnamed = replace(found, loads=(replace(found.loads[0], literals=None), found.loads[1]))
    assert frequent_keys(unnamed) == (found.loads[1],)


def test_a_literal_of_one_side_names_the_key_of_both() -> None:
    statistics = known({"7": 0.5}, {"7": 0.25})
    for side in ("l.k", "r.k"):
        bare = replace(statistics.keys[side,], literals=(None,))
        (load,) = profile(JOIN, replace(statistics, keys={**statistics.keys, (side,): bare})).loads
        assert (load.left, load.right, load.literals) == (500_000, 250_000, (scalar("7L", BIGINT),))


def test_two_texts_cut_to_the_same_one_are_a_key_without_a_literal() -> None:
    statistics = known({"7": 0.5}, {})
    (hot,), (literals,) = (statistics.keys["l.k",].hot_keys, statistics.keys["l.k",].literals)
    twice = replace(statistics.keys["l.k",], hot_keys=(hot, hot), literals=(literals, (scalar("8L", BIGINT),)))
    (load,) = profile(JOIN, replace(statistics, keys={**statistics.keys, ("l.k",): twice})).loads
    assert (load.value, load.left, load.literals) == ("7", 1_000_000, None)


def test_a_renamed_column_is_the_tables_and_an_expression_is_not() -> None:
    renamed = Project(LEFT, (Named(column("l.k", BIGINT), "t.uid"),))
    join = replace(JOIN, left=renamed, keys=((column("t.uid", BIGINT), KEYS[0][1]),))
    assert [load.literals for load in profile(join, known({"7": 0.5}, {})).loads] == [(scalar("7L", BIGINT),)]
    expression = replace(JOIN, keys=((scalar("`l.k` + 1", BIGINT), KEYS[0][1]),))
    assert join_profile(expression, known({"7": 0.5}, {})) is None
    twice = replace(JOIN, keys=(KEYS[0], KEYS[0]))
    assert join_profile(twice, known({"7": 0.5}, {})) is None


def test_conditions_above_and_below() -> None:
    """One about a side alone leaves a third of its rows; one about a key may be what removes the hot value."""
    side = scalar("`l.v` > 1", None)
    wider = replace(JOIN, left=replace(LEFT, columns=(*LEFT.columns, (Field("l.v", BIGINT), "v"))))
    known_rows = known({"7": 0.6}, {})
    narrowed = join_profile(wider, known_rows, (side, scalar("`l.v` > `r.k`", None)))
    assert narrowed is not None
    assert round(narrowed.loads[0].left) == 200_000
    assert not filtered_by_key(wider, known_rows, (side,))
    assert filtered_by_key(wider, known_rows, (scalar("`r.k` <> 7", None),))
    below = replace(wider, left=Filter(wider.left, scalar("`l.k` > 7", None)))
    assert filtered_by_key(below, known_rows, ())
    (load,) = profile(JOIN, known_rows).loads
    all_columns = join_profile(JOIN, known_rows, (scalar("`l.k` <> 8", None),))
    assert all_columns is not None
    assert all_columns.loads[0].left == pytest.approx(load.left / 3)
    # One about no column is about no side, and leaves the rows that there are.
    constant = join_profile(wider, known_rows, (scalar("1 = 1", None),))
    assert constant is not None
    assert round(constant.loads[0].left) == 600_000


def test_a_condition_on_the_key_under_another_name() -> None:
    about_key, about_value = scalar("`l.k` > 7", None), scalar("`l.v` > 7", None)
    scan = replace(LEFT, columns=(*LEFT.columns, (Field("l.v", BIGINT), "v")))
    for condition, expected in ((about_key, True), (about_value, False)):
        derived = Project(Filter(scan, condition), (Named(column("l.k", BIGINT), "d.k"),))
        node = Join(derived, RIGHT, JoinKind.INNER, ((column("d.k", BIGINT), column("r.k", BIGINT)),))
        assert filtered_by_key(node, known({}, {}), ()) is expected
        assert filtered_by_key(node, known({}, {}), (scalar("`d.k` > 7", None),))


def test_without_adaptive_execution_no_partition_is_split_at_run_time() -> None:
    statistics = known({"7": 0.5}, {})
    assert all(profile(JOIN, statistics).is_even.values())
    assert not any(profile(JOIN, replace(statistics, is_adaptive=False)).is_even.values())
