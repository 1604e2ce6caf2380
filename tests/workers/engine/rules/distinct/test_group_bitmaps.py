"""Bitmaps of groups: what stands against them, and how they are shown. `tests/conformance/test_distinct_methods.py` has
what they count.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from service.contract.options import AggPhase
from service.contract.query import AggregateFunction as F
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, STRING, Field
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Aggregate, Call, Named, Scan
from workers.engine.rules.distinct.bitmaps import group_bitmap_aggregate, group_bitmap_obstacle

UID, ITEM, NAME = column("o.uid", BIGINT), column("o.item", BIGINT), column("o.name", STRING)
FIELDS = (Field("o.uid", BIGINT), Field("o.item", BIGINT), Field("o.name", STRING))
ORDERS = Scan("orders", "o", tuple((field, field.name.removeprefix("o.")) for field in FIELDS))
NAMES = Call(F.COUNT, (NAME,), Field("names", BIGINT), distinct=True)
ITEMS = Call(F.COUNT, (ITEM,), Field("items", BIGINT), distinct=True)
ROWS = Call(F.COUNT, (), Field("n", BIGINT))
BY_NAME = Aggregate(ORDERS, (Named(UID, "uid"),), (NAMES,))


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (replace(BY_NAME, keys=(Named(NAME, "name"),)), "The group key has the type STRING"),
        (replace(BY_NAME, keys=()), "0 group keys"),
        (replace(BY_NAME, calls=(NAMES, ROWS)), "needs all rows of a group together"),
        (replace(BY_NAME, calls=(NAMES, ITEMS)), "2 sets"),
        (replace(BY_NAME, calls=tuple(replace(NAMES, output=Field(f"n{n}", BIGINT)) for n in range(9))), "9 counts"),
    ],
)
def test_obstacles_to_bitmaps_of_groups(node: Aggregate, words: str) -> None:
    assert words in (group_bitmap_obstacle(node) or "")
    with pytest.raises(ValueError, match=re.escape(words)):
        group_bitmap_aggregate(node, None, AggPhase.AUTO)


def test_what_is_done_for_each_bit_is_shown_once() -> None:
    text = text_of(group_bitmap_aggregate(BY_NAME, None, AggPhase.AUTO))
    assert "shiftright($p0, 0) & 1L, 0L)) AS $f1, … 62 more …, SUM(if(" in text
    assert "element_at(array($f1, …, $f64), $place)" in text
    assert max(map(len, text.splitlines())) < 400
