"""Arguments of aggregate functions that are literals, since they are the same for all rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.contract.query import AggregateFunction
from service.sql.expressions.nodes import Boolean, Call, Cast, Expression, Number, String
from service.sql.parser import Text
from service.sql.types.data_types import DOUBLE

MIN_DEVIATION, MAX_DEVIATION = 0.01, 0.39
"""The relative standard deviations of APPROX_COUNT_DISTINCT. Spark keeps a column for each ten of 1.2 / deviation^2
registers, and refuses larger deviations."""
MAX_PERCENTAGES = 100
"""The largest number of percentages of one call."""
MIN_SKETCH_SIZE, MAX_SKETCH_SIZE = 4, 21
"""The base-2 logarithms of the numbers of entries or buckets of a sketch. One of 2^21 entries has 16 MB."""
MAX_BINS = 10_000
"""The largest number of bins of HISTOGRAM_NUMERIC."""
_MIN_ERROR = 0.0001
MAX_ACCURACY = 1_000_000
"""The largest accuracy of APPROX_PERCENTILE. A group keeps so many samples."""


@dataclass(frozen=True)
class Parameter:
    """What a literal is: `what` names any other argument in messages, `hint` says what to write."""

    what: str
    hint: str
    is_valid: Callable[[Expression], bool]


def _is_fraction(node: Expression) -> bool:
    return isinstance(node, Number) and 0 <= float(node.text) <= 1


def _is_percentage(node: Expression) -> bool:
    if isinstance(node, Call) and node.name == "array":
        return 1 <= len(node.arguments) <= MAX_PERCENTAGES and all(map(_is_fraction, node.arguments))
    return _is_fraction(node)


def _is_deviation(node: Expression) -> bool:
    return isinstance(node, Number) and MIN_DEVIATION <= float(node.text) <= MAX_DEVIATION


def _is_accuracy(node: Expression) -> bool:
    is_whole = isinstance(node, Number) and node.is_integer and len(node.text) <= len(str(MAX_ACCURACY))
    return is_whole and isinstance(node, Number) and 1 <= int(node.text) <= MAX_ACCURACY


def _is_whole(least: int, most: int) -> Callable[[Expression], bool]:
    def is_valid(node: Expression) -> bool:
        is_number = isinstance(node, Number) and node.is_integer and not node.suffix and len(node.text) < 10
        return is_number and isinstance(node, Number) and least <= int(node.text) <= most

    return is_valid


def _whole(what: str, least: int, most: int, example: str) -> Parameter:
    return Parameter(
        f"{what} that is not an integer literal from {least:,} to {most:,}",
        f"Write for example {example}.",
        _is_whole(least, most),
    )


def _is_open_fraction(node: Expression) -> bool:
    if isinstance(node, Cast):
        # A literal such as 0.01D.
        return node.type == DOUBLE and isinstance(node.operand, Number) and _MIN_ERROR <= float(node.operand.text) < 1
    if isinstance(node, Number) and "e" not in node.text.lower():
        return False
    return isinstance(node, Number) and _MIN_ERROR <= float(node.text) < 1


def _percentage(example: str) -> Parameter:
    return Parameter(
        "A percentage that is not a number literal from 0 to 1, or an array of them,",
        f"Write for example {example}.",
        _is_percentage,
    )


def _switch(example: str) -> Parameter:
    return Parameter(
        "A second argument that is not TRUE or FALSE",
        f"Write for example {example}.",
        lambda node: isinstance(node, Boolean),
    )


_PARAMETERS: dict[tuple[AggregateFunction, int], Parameter] = {
    (AggregateFunction.LISTAGG, 1): Parameter(
        "A delimiter that is not a string literal",
        "Write for example LISTAGG(x, ', ') WITHIN GROUP (ORDER BY t).",
        lambda node: isinstance(node, String),
    ),
    (AggregateFunction.PERCENTILE, 1): _percentage("PERCENTILE(x, 0.9)"),
    (AggregateFunction.PERCENTILE_DISC, 1): _percentage("PERCENTILE_DISC(0.9) WITHIN GROUP (ORDER BY x)"),
    (AggregateFunction.APPROX_PERCENTILE, 1): _percentage("APPROX_PERCENTILE(x, 0.9)"),
    (AggregateFunction.APPROX_PERCENTILE, 2): Parameter(
        f"An accuracy that is not an integer literal from 1 to {MAX_ACCURACY:,}",
        "Write for example APPROX_PERCENTILE(x, 0.9, 10000).",
        _is_accuracy,
    ),
    (AggregateFunction.APPROX_COUNT_DISTINCT, 1): Parameter(
        f"A deviation that is not a number literal from {MIN_DEVIATION} to {MAX_DEVIATION}",
        "Write for example APPROX_COUNT_DISTINCT(x, 0.05).",
        _is_deviation,
    ),
    (AggregateFunction.FIRST, 1): _switch("FIRST(x, TRUE), which ignores NULLs"),
    (AggregateFunction.LAST, 1): _switch("LAST(x, TRUE), which ignores NULLs"),
    (AggregateFunction.MODE, 1): _switch("MODE(x, TRUE)"),
    (AggregateFunction.HISTOGRAM_NUMERIC, 1): _whole("A number of bins", 2, MAX_BINS, "HISTOGRAM_NUMERIC(x, 10)"),
    (AggregateFunction.HLL_UNION_AGG, 1): _switch("HLL_UNION_AGG(x, TRUE), which merges sketches of several sizes"),
    **{
        (function, 1): _whole("A size", MIN_SKETCH_SIZE, MAX_SKETCH_SIZE, f"{function}(x, 12)")
        for function in (
            AggregateFunction.HLL_SKETCH_AGG,
            AggregateFunction.THETA_SKETCH_AGG,
            AggregateFunction.THETA_UNION_AGG,
        )
    },
    **{
        (function, 1): _whole("A size", 8, 65_535, f"{function}(x, 200)")
        for function in AggregateFunction
        if function.startswith("KLL_")
    },
    **{
        (AggregateFunction.COUNT_MIN_SKETCH, place): Parameter(
            f"An error or confidence that is not a DOUBLE literal from {_MIN_ERROR} to 1",
            "Write for example COUNT_MIN_SKETCH(x, 0.01D, 0.95D, 1).",
            _is_open_fraction,
        )
        for place in (1, 2)
    },
    (AggregateFunction.COUNT_MIN_SKETCH, 3): _whole("A seed", 0, 999_999_999, "COUNT_MIN_SKETCH(x, 0.01D, 0.95D, 1)"),
    (AggregateFunction.APPROX_TOP_K, 1): _whole("A number of values", 1, 1_000, "APPROX_TOP_K(x, 5)"),
    (AggregateFunction.APPROX_TOP_K, 2): _whole(
        "A number of tracked values", 1, 1_000_000, "APPROX_TOP_K(x, 5, 10000)"
    ),
}
"""By function and position of the argument."""


def has_several_percentages(node: Expression) -> bool:
    """Whether a percentage is an array, so that the result is one too."""
    return isinstance(node, Call)


def is_parameter(function: AggregateFunction, index: int) -> bool:
    """Whether the argument at `index` is a literal."""
    return (function, index) in _PARAMETERS


def check_parameter(function: AggregateFunction, index: int, tree: Expression, source: Text) -> None:
    """Raises SpecError `unsupported_construct` unless `tree` is the literal that `function` takes at `index`."""
    parameter = _PARAMETERS[function, index]
    if not parameter.is_valid(tree):
        raise source.unsupported(parameter.what, hint=parameter.hint)
