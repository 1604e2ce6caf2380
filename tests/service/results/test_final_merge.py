"""Groups from their parts, against plain sums."""

from __future__ import annotations

import math
from decimal import Decimal

import pyarrow as pa
import pytest

from service.results import merge as final_merge
from service.results.columns import arrow_schema
from service.results.merge import check_mergeable, finals
from service.sql.types.aggregates import FinalColumn, FinalLevel, Merge, MergedColumn
from service.sql.types.data_types import BIGINT, DOUBLE, STRING, DataType, Field, decimal


def one(merge: Merge, values: pa.Array, type_: DataType, *, zero: bool = False) -> list[object]:
    """The merged values of the groups 0 and 1, to which the values belong in turns."""
    final = FinalLevel(("k",), ("p",), (MergedColumn("v", merge),), (FinalColumn(Field("V", type_), "v", zero=zero),))
    parts = pa.table({"k": [index % 2 for index in range(len(values))], "v": values})
    tables = [parts.slice(start, 1) for start in range(parts.num_rows)]
    return [
        value
        for table in finals(tables, final, arrow_schema([column.field for column in final.output]))
        for value in table.column("V").to_pylist()
    ]


@pytest.mark.parametrize("at_once", [1, 2, 1 << 20])
def test_merges(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr(final_merge, "_ROWS_PER_BATCH", at_once)
    numbers = pa.array([1, None, 3, None, 5], pa.int64())
    assert one(Merge.SUM, numbers, BIGINT) == [9, None]
    assert one(Merge.SUM, numbers, BIGINT, zero=True) == [9, 0]
    assert one(Merge.MIN, numbers, BIGINT) == [1, None]
    assert one(Merge.MAX, numbers, BIGINT) == [5, None]
    assert one(Merge.MAX, pa.array(["a", "b", "c"]), STRING) == ["c", "b"]
    money = pa.array([Decimal("9" * 36 + ".50"), Decimal("0.25"), Decimal("0.25")], pa.decimal128(38, 2))
    assert one(Merge.SUM, money, decimal(38, 2)) == [Decimal("9" * 36 + ".75"), Decimal("0.25")]


def test_nan_is_above_all_numbers() -> None:
    values = pa.array([1.0, math.nan, math.nan, 2.0, 3.0])
    assert [repr(value) for value in one(Merge.MAX, values, DOUBLE)] == ["nan", "nan"]
    assert one(Merge.MIN, values, DOUBLE) == [1.0, 2.0]


def test_a_sum_may_leave_its_type_on_the_way_but_not_at_the_end() -> None:
    most = 2**63 - 1
    assert one(Merge.SUM, pa.array([most, 0, 1, 0, -1]), BIGINT) == [most, 0]
    with pytest.raises(pa.ArrowInvalid):
        one(Merge.SUM, pa.array([most, 0, 1]), BIGINT)


def test_a_quotient_is_null_where_it_is_divided_by_nothing() -> None:
    final = FinalLevel(
        (),
        ("p",),
        (MergedColumn("s", Merge.SUM), MergedColumn("n", Merge.SUM)),
        (FinalColumn(Field("mean", DOUBLE), "s", divisor="n"),),
    )
    schema = arrow_schema([column.field for column in final.output])
    for sums, counts, expected in (([1.0, 4.0], [1, 1], 2.5), ([0.0], [0], None), ([None], [None], None)):
        parts = pa.table({"s": pa.array(sums, pa.float64()), "n": pa.array(counts, pa.int64())})
        assert [table.to_pydict() for table in finals([parts], final, schema)] == [{"mean": [expected]}]
    exact = pa.table({"s": pa.array([Decimal("7.50")], pa.decimal128(38, 2)), "n": pa.array([2], pa.int64())})
    assert next(iter(finals([exact], final, schema))).to_pydict() == {"mean": [3.75]}
    assert list(finals([], final, schema)) == []


@pytest.mark.parametrize(
    ("merge", "kind"), [(Merge.SUM, pa.string()), (Merge.MIN, pa.list_(pa.int8())), (Merge.SUM, pa.bool_())]
)
def test_what_cannot_be_merged_is_named(merge: Merge, kind: pa.DataType) -> None:
    final = FinalLevel(("k",), ("p",), (MergedColumn("v", merge),), ())
    with pytest.raises(ValueError, match=f"The column v of type .* does not support {merge}"):
        check_mergeable(final, pa.schema([("v", kind)]))
