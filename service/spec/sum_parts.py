"""Which sums can be put together from sums of parts with the same digits, by the type of what is added up."""

from __future__ import annotations

from service.spec.coercion import as_decimal
from service.spec.types import DataType, TypeName

MAX_SUM_PRECISION = 28
"""Most digits of a DECIMAL whose SUM is taken below: ten digits are left for the sum, as Spark's own type has it."""

MAX_PRODUCT_PRECISION = 20
"""Most digits of a DECIMAL whose SUM is multiplied by a count: 38 digits then hold 10^18 rows."""

MAX_PRODUCT_SCALE = 6
"""Most digits behind the point of a product that Spark is sure to keep (`DecimalType.MINIMUM_ADJUSTED_SCALE`)."""

MAX_AVERAGE_PRECISION = 12
"""Most digits of a DECIMAL whose AVG is taken apart: exact for up to 10^12 joined rows (see `plan/algebra.py`)."""

MAX_FACTOR_DIGITS = 24
"""Most digits of both factors of a DECIMAL product together: 38 digits then hold the sum of 10^14 of them, which are
ten million rows of one key on either side. The query's own sum has eleven digits more than a product."""

MAX_FACTOR_SCALE = 6
"""Most digits behind the point of both together that Spark is sure to keep in a product of sums
(`DecimalType.MINIMUM_ADJUSTED_SCALE`)."""


def refusal_of_parts(of: DataType | None, *, is_average: bool, weighed: bool) -> str | None:
    """Why a SUM of values of type `of`, or their AVG, cannot be had from sums of parts, as the end of a sentence.

    `weighed`: sums are multiplied by numbers of rows.

    >>> from service.spec.types import decimal
    >>> refusal_of_parts(decimal(10, 2), is_average=False, weighed=True)
    >>> refusal_of_parts(decimal(30, 2), is_average=False, weighed=False)
    'is over DECIMAL(30,2): parts of the sum could need more than 38 digits where the sum does not'
    """
    if of is None or not of.is_numeric:
        return f"is over {of}, whose sums have no parts" if of else "is over a type that Spark alone knows"
    if of.name is not TypeName.DECIMAL:
        return None
    precision, scale = of.precision or 0, of.scale or 0
    if is_average and precision > MAX_AVERAGE_PRECISION:
        return f"is over {of}: with more than {MAX_AVERAGE_PRECISION} digits its quotient would be rounded twice"
    if precision > (MAX_PRODUCT_PRECISION if weighed else MAX_SUM_PRECISION):
        return f"is over {of}: parts of the sum could need more than 38 digits where the sum does not"
    if weighed and scale > MAX_PRODUCT_SCALE:
        return f"is over {of}: its product with a count would lose digits behind the point"
    return None


def product_has_parts(product: DataType | None, one: DataType | None, other: DataType | None) -> bool:
    """Whether the sum of products of values of these types is the product of their sums."""
    if product is None or one is None or other is None or not (one.is_numeric and other.is_numeric):
        return False
    if product.is_integral or product.name is TypeName.DOUBLE:
        return True
    if product.name is not TypeName.DECIMAL:
        return False
    (p1, s1), (p2, s2) = as_decimal(one), as_decimal(other)
    return p1 + p2 <= MAX_FACTOR_DIGITS and s1 + s2 <= MAX_FACTOR_SCALE
