"""Which sums of BIGINTs below a join, and which multiples of them above it, cannot leave the type.

With values between low and high, m the larger of |low| and |high|, l and r the most rows of the sides:

    a sum over rows of the side that has the value    m * l < 2^63
    a multiple of it, and any sum of multiples        m * (l + 1) * (r + 1) < 2^63, or all values have one sign: then no
                                                      part is larger than the total, and overflows where that does

A total may be a part in turn, of a join above: it is a BIGINT only where the first of these holds of it.

Ranges are those that the files told when the query was planned. Where a file was replaced since, and its values are far
larger, an overflow raises its error as any does; nothing is ever wrong in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.spec.scalar import Scalar
from service.spec.types import TypeName
from workers.engine.plan.joined_aggregate import Side

_LIMIT = 2**63
_OF_TYPE = {
    TypeName.TINYINT: (-(2**7), 2**7 - 1),
    TypeName.SMALLINT: (-(2**15), 2**15 - 1),
    TypeName.INT: (-(2**31), 2**31 - 1),
}


@dataclass(frozen=True)
class SumBounds:
    """`ranges` has the lowest and the highest value of columns by name, `rows` the most rows of each side; what is not
    in them is not known.
    """

    ranges: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    rows: Mapping[Side, float] = field(default_factory=dict)

    def sum_fits(self, value: Scalar, side: Side) -> bool:
        """Whether any sum of `value`, an integer, over rows of `side` is a BIGINT."""
        bounds, rows = self._range_of(value), self.rows.get(side)
        return bounds is not None and rows is not None and _largest(bounds) * rows < _LIMIT

    def multiples_fit(self, value: Scalar) -> bool:
        """Whether sums of `value`, each times how many rows it meets, overflow only where the query's own sum does."""
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
