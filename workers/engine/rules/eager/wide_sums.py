"""Sums below a join that could overflow, and sums of products of both sides.

`SumBounds` says which sums of integers are certain to fit in a BIGINT. `halves_of` splits a BIGINT whose sums may not:
x = high * 2^32 + low, and so is the sum of the x. `summed_product` computes SUM(a * b) of a left and a right value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.contract.query import AggregateFunction
from service.sql.expressions.analysis import scalar_from, tree_of
from service.sql.expressions.nodes import Arithmetic
from service.sql.expressions.scalar import Scalar
from service.sql.joins import Side
from service.sql.types.aggregates import product_has_parts
from service.sql.types.data_types import BIGINT, DOUBLE, DataType, TypeName, as_decimal, decimal, decimal_arithmetic
from workers.engine.plan.expressions import compose
from workers.engine.plan.joined_aggregate import JoinedAggregate
from workers.engine.plan.nodes import Call

_LIMIT = 2**63
_OF_TYPE = {
    TypeName.TINYINT: (-(2**7), 2**7 - 1),
    TypeName.SMALLINT: (-(2**15), 2**15 - 1),
    TypeName.INT: (-(2**31), 2**31 - 1),
}

_HIGH = "shiftright({0}, 32) + (shiftright({0}, 31) & 1L)"
_LOW = "shiftright(shiftleft({0}, 32), 32)"
_WHOLE = "CAST({0} AS DECIMAL(20,0)) * 4294967296 + CAST({1} AS DECIMAL(20,0))"

WHOLE = decimal(32, 0)
"""The type of the sum that is computed from two sums of halves."""

SCALED = "({0}) * 5.421010862427522E-20D"
"""2^-64 times a DOUBLE, which is exact except for the smallest ones."""

_LARGEST = "1.7976931348623157E308D"
_UNSCALED = "3.402823669209385E38D"
"""2^128."""


@dataclass(frozen=True)
class SumBounds:
    """Decides which sums of BIGINTs below a join, and which multiples of them above it, are certain to fit in a BIGINT.

    `ranges` has the lowest and the highest value of columns by name, `rows` the most rows of each side; other ranges
    and rows are not known. With m the larger of |low| and |high|, l and r the most rows of the sides:

        a sum over rows of the side with the value     m * l < 2^63
        a multiple of it, and any sum of multiples     m * (l + 1) * (r + 1) < 2^63, or all values have one sign: then
                                                       no part is larger than the total; if one overflows, so does that

    A total may be a part of a join above: it is a BIGINT only if the first condition holds for it.

    The ranges are those of the files at planning time. If a file was replaced since then by one with far larger values,
    an overflow raises an error as usual; a result is never silently wrong.
    """

    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    rows: Mapping[Side, float] = field(default_factory=dict)

    def sum_fits(self, value: Scalar, side: Side) -> bool:
        """Whether any sum of `value`, an integer, over rows of `side` fits in a BIGINT."""
        bounds, rows = self._range_of(value), self.rows.get(side)
        return bounds is not None and rows is not None and _largest(bounds) * rows < _LIMIT

    def multiples_fit(self, value: Scalar) -> bool:
        """Whether sums of `value` times its number of partners overflow only if the query's own sum does."""
        bounds = self._range_of(value)
        if bounds is None:
            return False
        if bounds[0] >= 0 or bounds[1] <= 0:
            return True
        left, right = (self.rows.get(side) for side in Side)
        return left is not None and right is not None and _largest(bounds) * (left + 1) * (right + 1) < _LIMIT

    def _range_of(self, value: Scalar) -> tuple[int, int] | None:
        known = None if value.column is None else self.ranges.get(value.column)
        return known or (None if value.type is None else _OF_TYPE.get(value.type.name))


NOTHING_KNOWN = SumBounds()


def _largest(bounds: tuple[int, int]) -> int:
    return max(abs(bounds[0]), abs(bounds[1]))


def halves_of(value: Scalar) -> tuple[Scalar, Scalar]:
    """Returns the high and the low half of a BIGINT; both are BIGINTs of 32 bits, and NULL if it is NULL.

    Rows that a join drops, or that others cancel, could overflow a BIGINT's sum below the join. The sum of a half
    cannot overflow with fewer than 2^32 rows per group: enough for tables, but not for the output of joins.

    >>> from service.sql.expressions.scalar import column
    >>> [str(half) for half in halves_of(column("x", BIGINT))]
    ['shiftright(x, 32) + (shiftright(x, 31) & 1L)', 'shiftright(shiftleft(x, 32), 32)']
    """
    return compose(_HIGH, (value,), BIGINT), compose(_LOW, (value,), BIGINT)


def whole_of(high: Scalar, low: Scalar, type_: DataType = WHOLE) -> Scalar:
    """Returns the sum of the values from the sums of their halves."""
    return compose(_WHOLE, (high, low), type_)


def needs_halves(value: Scalar) -> bool:
    """Whether sums of `value` over a table's rows could overflow: those of a BIGINT."""
    return value.type is not None and value.type.name is TypeName.BIGINT


@dataclass(frozen=True)
class Factor:
    """One operand of a product; it uses only columns of `side`."""

    side: Side
    value: Scalar


@dataclass(frozen=True)
class Parts:
    """The partial aggregates of a factor, for one group: its smallest and largest value, and its sum, a DECIMAL or a
    DOUBLE; for a DOUBLE also the sum of `SCALED`. On a side that is not aggregated, all of them are the value itself.
    """

    low: Scalar
    high: Scalar
    total: Scalar
    scaled: Scalar | None = None


def factors_of(call: Call, over: JoinedAggregate) -> tuple[Factor, Factor] | None:
    """Returns the operands of the product that `call` sums, in order; None for any other call, and if the sum cannot be
    computed from sums of the operands.

    That is so if it is not exact: a product of two FLOATs is rounded to a FLOAT row by row, a product of DECIMALs with
    many digits to 38 digits.
    """
    if call.function is not AggregateFunction.SUM or call.distinct or len(call.arguments) != 1:
        return None
    tree = tree_of(call.arguments[0], over.joined_columns)
    if not isinstance(tree, Arithmetic) or tree.operator != "*":
        return None
    values = (scalar_from(tree.left), scalar_from(tree.right))
    if values[0] is None or values[1] is None:
        return None
    one, other = over.side_of(values[0]), over.side_of(values[1])
    if one is None or other is None or one is other:
        return None
    if not product_has_parts(call.arguments[0].type, values[0].type, values[1].type):
        return None
    return Factor(one, values[0]), Factor(other, values[1])


def summed_product(one: Parts, other: Parts, type_: DataType) -> tuple[Scalar, DataType]:
    """Returns the sum of a product of type `type_` over all pairs of rows of two groups, and the sum's type: DOUBLE, or
    a DECIMAL of 38 digits.

    Each row of a group matches all rows of the other side's group, so the sum over a, b of a * b is sum(a) * sum(b);
    NULLs are omitted on both sides, since a product with NULL is NULL. A side that is not aggregated has one row per
    group.

    Errors: a product of integers has their wider type and raises an error if it does not fit. Among all pairs, those of
    the smallest and largest values have the smallest and largest product, and they are rows of the join. If these four
    products fit, all do; if one does not, the query fails too. So they are computed first, by the query's operator.

    Infinity: infinity times 0, or a sum of infinities of both signs, is NaN, but sum(a) * sum(b) would not show it. If
    the four products are finite, all are, since they are the largest of each sign; if one is not, the sum of all
    products equals the sum of the four. If the sums overflow but no product does, they are computed of the values times
    2^-64.
    """
    corners = tuple(
        dict.fromkeys(
            compose("({0}) * ({1})", (left, right), type_)
            for left in dict.fromkeys((one.low, one.high))
            for right in dict.fromkeys((other.low, other.high))
        )
    )
    if type_.is_fractional:
        return _finite(one, other, corners), DOUBLE
    digits = [as_decimal(parts.total.type) if parts.total.type else (0, 0) for parts in (one, other)]
    made = decimal_arithmetic("*", digits[0], digits[1])
    product = compose("({0}) * ({1})", (one.total, other.total), made)
    if not type_.is_integral:
        return product, made
    largest = compose(f"GREATEST({_listed(len(corners))})", corners, type_)
    # The condition is always true, unless NULL: its purpose is to raise the error before the product is computed.
    return compose("IF({0} >= {1}, {2}, NULL)", (largest, corners[0], product), made), made


def _finite(one: Parts, other: Parts, corners: tuple[Scalar, ...]) -> Scalar:
    # A quarter of each, since their sum may exceed a DOUBLE.
    together = compose(" + ".join(f"{part} * 0.25D" for part in _listed(len(corners)).split(", ")), corners, DOUBLE)
    plain = compose("({0}) * ({1})", (one.total, other.total), DOUBLE)
    scaled = compose(f"({{0}}) * ({{1}}) * {_UNSCALED}", (one.scaled or one.total, other.scaled or other.total), DOUBLE)
    finite = f"abs({{0}}) <= {_LARGEST}"
    total = compose(f"IF({finite}, {{0}}, {{1}})", (plain, scaled), DOUBLE)
    return compose(f"IF({finite}, {{1}}, {{0}})", (together, total), DOUBLE)


def as_addend(value: Scalar) -> Scalar:
    """Returns an integer as a DECIMAL; any other value unchanged."""
    if value.type is None or not value.type.is_integral:
        return value
    return compose("CAST({0} AS DECIMAL(20,0))", (value,), decimal(20, 0))


def _listed(count: int) -> str:
    return ", ".join(f"{{{number}}}" for number in range(count))
