"""SUM(a * b) of a left value and a right one, from rows that stand for several: sum(a) * sum(b), pair by pair.

Rows of one group of a side meet the same rows of the other, so that what they add up to is

    sum over a, b of a * b  =  sum(a) * sum(b)

with NULLs left out on either side, as the product of one is NULL. A side that is left as it is has one row a group.

What it fails of. A product of integers is of their wider type, and one that does not fit it is an error. Of all pairs
of a group, those of the smallest and largest values have the smallest and largest product, and are rows of the join
themselves: where these four fit, all do, and where one does not, the query fails of it too. So they are computed first,
by the query's own operator. The sums are DECIMALs of 38 digits.

What is not finite. Infinity times 0, and times numbers of both signs, is NaN in sum, which sum(a) * sum(b) does not
show. Again the four tell: as they are the largest of their sign, all products are finite where they are; where one is
not, the sum of all is that of the four. Sums that overflow where no product does are taken of 2^-64 of the values.

Where it is not exact: a product of two FLOATs is rounded to a FLOAT row by row, one of DECIMALs with many digits to 38.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.spec.coercion import as_decimal, decimal_arithmetic
from service.spec.query import AggregateFunction
from service.spec.scalar import Scalar
from service.spec.scalar_trees import scalar_from, tree_of
from service.spec.sum_parts import product_has_parts
from service.spec.tree import Arithmetic
from service.spec.types import DOUBLE, DataType, decimal
from workers.engine.plan.joined_aggregate import JoinedAggregate, Side
from workers.engine.plan.nodes import Call
from workers.engine.plan.scalars import compose

SCALED = "({0}) * 5.421010862427522E-20D"
"""2^-64 of a DOUBLE, which is exact but for the smallest ones."""

_LARGEST = "1.7976931348623157E308D"
_UNSCALED = "3.402823669209385E38D"
"""2^128."""


@dataclass(frozen=True)
class Factor:
    """One operand of the product, which is over `side`'s columns alone."""

    side: Side
    value: Scalar


@dataclass(frozen=True)
class Parts:
    """What is known above the join of a factor in a group: its smallest and largest value, and its sum, a DECIMAL or a
    DOUBLE; of a DOUBLE the sum of `SCALED` too. Without a group all are the value itself.
    """

    low: Scalar
    high: Scalar
    total: Scalar
    scaled: Scalar | None = None


def factors_of(call: Call, over: JoinedAggregate) -> tuple[Factor, Factor] | None:
    """The operands of the product that `call` sums up, in order; None for any other call, and where their sums would
    not give its own.
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
    """What all pairs of two groups add to the sum of a product of `type_`, and its type: DOUBLE, or a DECIMAL."""
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
    # Never less than one of them, unless NULL: computed for the error alone, before anything else is.
    return compose("IF({0} >= {1}, {2}, NULL)", (largest, corners[0], product), made), made


def _finite(one: Parts, other: Parts, corners: tuple[Scalar, ...]) -> Scalar:
    # A quarter of each, as all of them together may be more than a DOUBLE holds.
    together = compose(" + ".join(f"{part} * 0.25D" for part in _listed(len(corners)).split(", ")), corners, DOUBLE)
    plain = compose("({0}) * ({1})", (one.total, other.total), DOUBLE)
    scaled = compose(f"({{0}}) * ({{1}}) * {_UNSCALED}", (one.scaled or one.total, other.scaled or other.total), DOUBLE)
    finite = f"abs({{0}}) <= {_LARGEST}"
    total = compose(f"IF({finite}, {{0}}, {{1}})", (plain, scaled), DOUBLE)
    return compose(f"IF({finite}, {{1}}, {{0}})", (together, total), DOUBLE)


def as_addend(value: Scalar) -> Scalar:
    """An integer as a DECIMAL that holds it; anything else as it is."""
    if value.type is None or not value.type.is_integral:
        return value
    return compose("CAST({0} AS DECIMAL(20,0))", (value,), decimal(20, 0))


def _listed(count: int) -> str:
    return ", ".join(f"{{{number}}}" for number in range(count))
