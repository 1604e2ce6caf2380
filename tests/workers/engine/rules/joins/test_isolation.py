"""Splitting a join: which sides may be split, which rows bypass the join, which columns salts are computed from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.query import JoinKind
from service.sql.expressions.scalar import column
from service.sql.joins import Side
from service.sql.types.data_types import BIGINT, STRING, DataType, Field, TypeName
from tests.support.scalars import scalar
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Join, Scan, output_of
from workers.engine.plan.validation import check
from workers.engine.rules.joins.skew_rewrite import (
    PRESERVED_SIDES,
    PROBE_SIDES,
    HotPart,
    nulls_can_bypass,
    salt_columns,
    split_join,
)

SEVEN = (scalar("7L", BIGINT),)
LEFT = Scan("l", "l", ((Field("l.k", BIGINT), "k"), (Field("l.$salt", STRING), "$salt")))
RIGHT = Scan("r", "r", ((Field("r.k", BIGINT), "k"),))
JOIN = Join(LEFT, RIGHT, JoinKind.LEFT, ((column("l.k", BIGINT), column("r.k", BIGINT)),))


def test_no_side_is_copied_whose_rows_are_kept() -> None:
    for kind, sides in PROBE_SIDES.items():
        copied = {side.other for side in sides}
        assert copied.isdisjoint(PRESERVED_SIDES.get(kind, ()))
    assert set(PROBE_SIDES) == set(JoinKind)


@pytest.mark.parametrize("kind", list(PRESERVED_SIDES))
def test_the_parts_of_any_kind_make_a_valid_plan(kind: JoinKind) -> None:
    node = replace(JOIN, kind=kind)
    parts = tuple(HotPart((SEVEN,), probe, tasks=8) for probe in PROBE_SIDES[kind])
    after = split_join(node, parts, PRESERVED_SIDES[kind])
    check(after, "a test", output_of(node))


def test_a_salted_part_has_names_of_its_own() -> None:
    node = replace(JOIN, left=replace(LEFT, columns=((Field("k", BIGINT), "k"), (Field("$SALT", STRING), "s"))))
    node = replace(node, keys=((column("k", BIGINT), column("r.k", BIGINT)),))
    after = split_join(node, (HotPart((SEVEN,), Side.LEFT, salts=4),), ())
    check(after, "a test", output_of(node))
    assert "CAST(pmod(xxhash64($SALT), 4) + 1 AS INT) AS $salt_" in text_of(after)


def test_salts_are_made_of_other_columns_than_the_key() -> None:
    assert salt_columns(JOIN, Side.LEFT) == (column("l.$salt", STRING),)
    assert salt_columns(JOIN, Side.RIGHT) == ()
    with pytest.raises(ValueError, match="no column to compute a salt from"):
        split_join(JOIN, (HotPart((SEVEN,), Side.RIGHT, salts=4),), ())


def test_which_nulls_go_past() -> None:
    nested = replace(RIGHT, columns=(*RIGHT.columns, (Field("r.a", DataType(TypeName.OTHER, text="MAP")), "a")))
    assert nulls_can_bypass(JOIN, Side.LEFT)
    assert not nulls_can_bypass(JOIN, Side.RIGHT)
    assert not nulls_can_bypass(replace(JOIN, null_safe=True), Side.LEFT)
    assert not nulls_can_bypass(replace(JOIN, right=nested), Side.LEFT)
    assert nulls_can_bypass(replace(JOIN, right=nested, kind=JoinKind.LEFT_ANTI), Side.LEFT)
