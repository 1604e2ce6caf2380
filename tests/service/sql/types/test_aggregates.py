"""Result types of aggregates are Spark's."""

from __future__ import annotations

from itertools import product

import pytest

from service.contract.query import AggregateFunction
from service.sql.ddl import parse_schema
from service.sql.types.aggregates import NEAREST, OF_GROUPING_SETS, PAIRED, result_type, takes
from service.sql.types.data_types import DataType, TypeName
from tests.service.sql.conftest import COLUMNS, TypesInSpark

WRITTEN = {
    AggregateFunction.PERCENTILE_DISC: "percentile_disc(0.5) WITHIN GROUP (ORDER BY {column})",
    AggregateFunction.APPROX_PERCENTILE: "approx_percentile({column}, 0.5)",
    **dict.fromkeys(PAIRED, "{function}({column}, {column})"),
    **dict.fromkeys(NEAREST, "{function}({column}, `t.i`)"),
    AggregateFunction.PERCENTILE: "percentile({column}, 0.5)",
    AggregateFunction.HISTOGRAM_NUMERIC: "histogram_numeric({column}, 3)",
    AggregateFunction.COUNT_MIN_SKETCH: "count_min_sketch({column}, 0.5D, 0.5D, 1)",
    AggregateFunction.LISTAGG: "listagg({column}) WITHIN GROUP (ORDER BY {column})",
}


def _spelled(type_: DataType | None) -> str:
    """The type as Spark spells it, in upper case."""
    return (
        str(type_).upper().replace(": ", ":").replace(", ", ",")
        if type_ is not None and type_.is_nested
        else str(type_)
    )


@pytest.mark.spark
def test_every_function_over_every_type(types_in_spark: TypesInSpark) -> None:
    types = {
        name: parse_schema(f"x {type_}", "/x").fields[0].type
        for name, type_ in {**COLUMNS, "CAST(`t.i` AS DECIMAL(38,2))": "DECIMAL(38,2)"}.items()
    }
    claims: dict[str, str | None] = {}
    functions = [function for function in AggregateFunction if function not in OF_GROUPING_SETS]
    for function, (name, type_) in product(functions, types.items()):
        column = name if "(" in name else f"`t.{name}`"
        text = WRITTEN.get(function, "{function}({column})").format(function=function, column=column)
        claims[text] = _spelled(result_type(function, type_)) if takes(function, type_) else None
    accepted = {text: type_ for text, type_ in claims.items() if type_ is not None}
    refused = [text for text, type_ in claims.items() if type_ is None]
    found = types_in_spark(list(accepted), True)
    assert dict(zip(accepted, found, strict=True)) == accepted
    assert types_in_spark(refused, False) == [None] * len(refused)


def test_maps_can_be_counted_and_listed_alone() -> None:
    nested = DataType(TypeName.OTHER, text="MAP<INT, INT>")
    taking = {function for function in AggregateFunction if takes(function, nested)}
    lists = {AggregateFunction.COLLECT_LIST, AggregateFunction.FIRST, AggregateFunction.LAST}
    assert taking == {AggregateFunction.COUNT, *lists, *OF_GROUPING_SETS}


def test_an_unknown_argument_gives_an_unknown_result_except_for_count() -> None:
    assert str(result_type(AggregateFunction.COUNT, None)) == "BIGINT"
    assert result_type(AggregateFunction.SUM, None) is None
