"""The estimates of groups by keys without common statistics, which only reports have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.query import JoinKind
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, DATE, Field
from tests.support.scalars import scalar
from workers.engine.plan.nodes import Aggregate, Filter, Join, Named, Node, Scan
from workers.engine.statistics.cardinality import estimate_rows
from workers.engine.statistics.model import KeySketch, Statistics, TableSize, ValueRange

pytestmark = pytest.mark.quick

ORDERS = Scan("orders", "o", tuple((Field(f"o.{name}", BIGINT), name) for name in ("k", "u", "s")))
DAYS = Scan("days", "d", ((Field("d.k", BIGINT), "k"), (Field("d.day", DATE), "day")))
JOINED = Join(ORDERS, DAYS, JoinKind.INNER, ((column("o.k", BIGINT), column("d.k", BIGINT)),))
SIZES = {alias: TableSize(alias, 1, 100 * rows, rows, True) for alias, rows in (("o", 100_000), ("d", 1_000))}
SKETCHES: dict[tuple[str, ...], KeySketch] = {
    ("o.s",): KeySketch("o", ("o.s",), 100_000, 20, 0.0, ()),
    ("o.k",): KeySketch("o", ("o.k",), 100_000, 1_000, 0.0, ()),
    ("d.k",): KeySketch("d", ("d.k",), 1_000, 1_000, 0.0, ()),
}
STATISTICS = Statistics(SIZES, SKETCHES, slots=2, ranges={"d.day": ValueRange(20_000, 20_099)})


def groups(rows: Node, *keys: Scalar) -> Aggregate:
    return Aggregate(rows, tuple(Named(key, f"k{place}") for place, key in enumerate(keys)), ())


@pytest.mark.parametrize(
    ("node", "known", "guessed"),
    [
        # One table's statistics suffice.
        (groups(JOINED, column("o.s", BIGINT)), 20, 20),
        # 20 values of the one, 100 days of the other.
        (groups(JOINED, column("o.s", BIGINT), column("d.day", DATE)), None, 2_000),
        # Without statistics, each row of the table may be another value; some groups have several rows.
        (groups(JOINED, column("o.u", BIGINT), column("d.day", DATE)), None, 99_502),
        (groups(JOINED, column("o.u", BIGINT)), None, None),
        # Not more than there are rows of the small table.
        (groups(JOINED, column("d.day", DATE), column("d.k", BIGINT)), None, 1_000),
        # Of an expression, its columns count.
        (groups(JOINED, scalar("`o.s` + 1", BIGINT)), None, 20),
        # What is above such groups has an estimate too.
        (Filter(groups(JOINED, column("o.s", BIGINT), column("d.day", DATE)), scalar("k0 > 1", BIGINT)), None, 667),
    ],
)
def test_groups_without_statistics(node: Node, known: int | None, guessed: int | None) -> None:
    assert estimate_rows(node, STATISTICS) == known
    assert estimate_rows(node, replace(STATISTICS, guesses=True)) == guessed
