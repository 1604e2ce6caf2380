"""Measures the selectivity of conditions: the share of a sample's rows that they keep, evaluated with Arrow.

Supported are comparisons, IN, BETWEEN, LIKE and IS, combined by AND, OR and NOT, over columns, literals and simple
arithmetic. Other expressions are unknown. The result is an estimate: decimals are compared as doubles, and Arrow and
Spark may differ in some rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from service.sql.expressions.nodes import (
    Arithmetic,
    Between,
    Boolean,
    Cast,
    Column,
    Comparison,
    Connective,
    Expression,
    InList,
    Like,
    Negation,
    Not,
    Null,
    Number,
    String,
    Test,
    walk,
)
from service.sql.types.data_types import DataType, TypeName

SECONDS = 0.1
"""The time limit. Conditions that are not evaluated by then are unknown."""

MAX_PATTERNS, MAX_PATTERN_LENGTH = 8, 200
"""The most patterns of one condition, and the most characters of a pattern. Beyond that, the condition is unknown."""

PATTERN_ROWS = 8_192
"""Rows of the sample on which conditions with patterns are evaluated: a pattern takes far longer than a comparison."""

Array = Any
"""A chunked array or a scalar of Arrow."""

_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_CALCULATE: dict[str, Callable[[Array, Array], Array]] = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}

_TYPES: dict[TypeName, pa.DataType] = {
    TypeName.BOOLEAN: pa.bool_(),
    TypeName.TINYINT: pa.int64(),
    TypeName.SMALLINT: pa.int64(),
    TypeName.INT: pa.int64(),
    TypeName.BIGINT: pa.int64(),
    TypeName.FLOAT: pa.float64(),
    TypeName.DOUBLE: pa.float64(),
    TypeName.DECIMAL: pa.float64(),
    TypeName.STRING: pa.string(),
    TypeName.DATE: pa.date32(),
}


class _UnknownError(Exception):
    """The expression is not supported, or there is no time left to evaluate it."""


def share_kept(
    terms: Sequence[Expression],
    sample: Mapping[str, pa.ChunkedArray],
    rows: int,
    is_whole: bool,
    clock: Callable[[], float] = time.monotonic,
) -> tuple[float | None, int]:
    """Returns the share of the `rows` sampled rows for which all `terms` are true, and the number of unknown terms.

    `sample` has the columns by the names in the terms. The share is None if no term is known. It is 0 only if the
    sample is the whole table, because the rest of the table may have rows that match. `clock` returns seconds.
    """
    deadline = clock() + SECONDS
    if rows > PATTERN_ROWS and any(isinstance(node, Like) for term in terms for node in walk(term)):
        # Evenly from the whole sample, since files may be sorted.
        chosen = pa.array(range(0, rows, -(-rows // PATTERN_ROWS)))
        sample = {name: values.take(chosen) for name, values in sample.items()}
        is_whole, rows = False, len(chosen)
    evaluation = _Evaluation(sample, deadline, clock)
    kept: Array = None
    unknown = 0
    for term in terms:
        mask = evaluation.mask(term)
        if mask is None:
            unknown += 1
        else:
            kept = mask if kept is None else pc.and_kleene(kept, mask)
    if kept is None or not rows:
        return None, unknown
    matching = _matching(kept, rows)
    return (matching if is_whole else max(matching, 0.5)) / rows, unknown


def ranges_kept(
    terms: Sequence[Expression],
    sample: Mapping[str, pa.ChunkedArray],
    keys: Mapping[str, pa.ChunkedArray],
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, tuple[int, int]]:
    """Returns the smallest and the largest value of each of `keys`, columns of the rows of `sample`, among the rows for
    which all known `terms` are true. Only keys of integers have one, if there is such a row. None has one if a term
    has a pattern, which takes long.
    """
    if any(isinstance(node, Like) for term in terms for node in walk(term)):
        return {}
    evaluation = _Evaluation(sample, clock() + SECONDS, clock)
    masks = [mask for mask in map(evaluation.mask, terms) if mask is not None and not isinstance(mask, pa.Scalar)]
    if not masks:
        return {}
    kept = reduce(pc.and_kleene, masks)
    whole = {name: values for name, values in keys.items() if pa.types.is_integer(values.type)}
    found = {name: pc.min_max(values.filter(kept)).as_py() for name, values in whole.items()}
    return {name: (each["min"], each["max"]) for name, each in found.items() if each["min"] is not None}


def typed(values: pa.ChunkedArray, type_: DataType) -> pa.ChunkedArray:
    """Returns the values of a column in the type in which they are compared; text files have them as strings. Values
    of a type without an Arrow type stay as they are.
    """
    wanted = _TYPES.get(type_.name)
    if wanted is None or values.type == wanted:
        return values
    try:
        return values.cast(wanted)
    except (pa.ArrowException, ValueError):
        return values


def _matching(kept: Array, rows: int) -> float:
    if isinstance(kept, pa.Scalar):
        return float(rows) if kept.as_py() else 0.0
    return float(pc.sum(kept).as_py() or 0)


class _Evaluation:
    """Evaluates expressions over `sample` until `deadline`, in seconds of `clock`."""

    def __init__(self, sample: Mapping[str, pa.ChunkedArray], deadline: float, clock: Callable[[], float]) -> None:
        self._sample = sample
        self._deadline = deadline
        self._clock = clock
        self._patterns = 0

    def mask(self, term: Expression) -> Array | None:
        """Returns for which rows `term` is true; None if it is not supported, or if there is no time left."""
        try:
            mask = self._value(term)
            return mask if pa.types.is_boolean(mask.type) else None
        except (_UnknownError, pa.ArrowException, ValueError, TypeError, OverflowError):
            return None

    def _value(self, node: Expression) -> Array:
        if self._clock() >= self._deadline:
            raise _UnknownError
        match node:
            case Column(name) if name in self._sample:
                return self._sample[name]
            case Null():
                return pa.scalar(None, pa.bool_())
            case Boolean(value):
                return pa.scalar(value)
            case Number(text):
                return pa.scalar(int(text)) if node.is_integer else pa.scalar(float(text))
            case String(value):
                return pa.scalar(value)
            case Cast(operand, type_) if type_.name in _TYPES:
                return self._value(operand).cast(_TYPES[type_.name])
            case Negation(operand):
                return pc.negate(self._value(operand))
            case Arithmetic(operator, left, right):
                return _calculated(operator, self._value(left), self._value(right))
            case _:
                return self._predicate(node)

    def _predicate(self, node: Expression) -> Array:
        match node:
            case Comparison(operator, left, right):
                return _compared(operator, self._value(left), self._value(right))
            case Connective(operator, terms):
                combine = pc.and_kleene if operator == "AND" else pc.or_kleene
                made = self._value(terms[0])
                for term in terms[1:]:
                    made = combine(made, self._value(term))
                return made
            case Not(operand):
                return pc.invert(self._value(operand))
            case Test(operand, what):
                return _tested(self._value(operand), what)
            case InList(operand, items):
                return self._in_list(operand, items)
            case Between(operand, low, high):
                both = (Comparison(">=", operand, low), Comparison("<=", operand, high))
                return self._predicate(Connective("AND", both))
            case Like(operator, operand, String(pattern), None):
                return self._matched(operator, self._value(operand), pattern)
            case _:
                raise _UnknownError

    def _in_list(self, operand: Expression, items: Sequence[Expression]) -> Array:
        """Evaluates all items that are literals of the operand's type at once, and compares the others one by one."""
        values = self._value(operand)
        wanted: list[pa.Scalar] = []
        others: list[Expression] = []
        for item in items:
            made = self._value(item) if isinstance(item, String | Number | Negation) else None
            alike = isinstance(made, pa.Scalar) and made.type == values.type
            wanted += [made] if alike else []
            others += [] if alike else [item]
        found: Array = None
        if wanted:
            texts = pa.array([one.as_py() for one in wanted], values.type)
            # For NULL the result is NULL.
            found = pc.if_else(pc.is_valid(values), pc.is_in(values, value_set=texts), pa.scalar(None, pa.bool_()))
        for other in others:
            made = _compared("=", values, self._value(other))
            found = made if found is None else pc.or_kleene(found, made)
        return found

    def _matched(self, operator: str, values: Array, pattern: str) -> Array:
        self._patterns += 1
        if self._patterns > MAX_PATTERNS or len(pattern) > MAX_PATTERN_LENGTH:
            raise _UnknownError
        if operator == "RLIKE":
            return pc.match_substring_regex(values, pattern)
        return pc.match_like(values, pattern, ignore_case=operator == "ILIKE")


def _compared(operator: str, left: Array, right: Array) -> Array:
    left, right = _alike(left, right)
    if operator == "<=>":
        both_null = pc.and_(pc.is_null(left), pc.is_null(right))
        return pc.or_(both_null, pc.fill_null(pc.equal(left, right), pa.scalar(False)))
    return _COMPARE[operator](left, right)


def _alike(left: Array, right: Array) -> tuple[Array, Array]:
    """Returns both in one type. As in Spark, a string that is compared with a date, time or number is cast to it."""
    if isinstance(right, pa.Scalar) and not right.is_valid:
        return left, pa.scalar(None, left.type)
    if isinstance(left, pa.Scalar) and not left.is_valid:
        return pa.scalar(None, right.type), right
    if pa.types.is_string(left.type) and not pa.types.is_string(right.type):
        return left.cast(right.type), right
    if pa.types.is_string(right.type) and not pa.types.is_string(left.type):
        return left, right.cast(left.type)
    return left, right


def _calculated(operator: str, left: Array, right: Array) -> Array:
    if operator == "%":
        whole = pc.trunc(pc.divide(left.cast(pa.float64()), right.cast(pa.float64())))
        return pc.subtract(left.cast(pa.float64()), pc.multiply(whole, right.cast(pa.float64())))
    if operator not in _CALCULATE:
        raise _UnknownError
    return _CALCULATE[operator](left, right)


def _tested(value: Array, what: str) -> Array:
    if what == "NULL":
        # NaN is a value in Spark, and by default in Arrow.
        return pc.is_null(value)
    if what == "NOT NULL":
        return pc.is_valid(value)
    expected = pa.scalar(what == "TRUE")
    return pc.fill_null(pc.equal(value, expected), pa.scalar(False))
