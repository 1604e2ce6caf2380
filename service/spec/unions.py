"""The branches of a UNION ALL under one set of columns: names of the first, types that hold those of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from service.spec.bound import BoundName, BoundQuery, BoundUnion
from service.spec.coercion import Incompatible, widest
from service.spec.errors import SpecError
from service.spec.scalar import Scalar
from service.spec.tree import Cast
from service.spec.types import UNKNOWN, DataType, Field, Schema


def united(branches: Sequence[BoundQuery], pointer: str) -> BoundUnion:
    """The branches with equal outputs, values cast where types differ; `pointer` is that of their list.

    Raises SpecError `type_mismatch`, and `unsupported_construct` where the numbers of columns differ.
    """
    first = branches[0]
    for index, branch in enumerate(branches):
        if len(branch.select) != len(first.select):
            raise SpecError.of(
                "unsupported_construct",
                f"The queries of UNION have {len(first.select)} and {len(branch.select)} columns: "
                "they need equally many.",
                pointer=f"{pointer}/{index}",
            )
    columns = zip(*(branch.select for branch in branches), strict=True)
    types = [_common(items, pointer) for items in columns]
    return BoundUnion(tuple(_aligned(branch, first.output.names, types) for branch in branches))


def _common(items: Sequence[BoundName], pointer: str) -> DataType | None:
    found: DataType | None = items[0].expression.type
    for index, item in enumerate(items[1:], start=1):
        other = item.expression.type
        try:
            found = widest((found, other), strings_convert=True)
        except Incompatible:
            is_nested = any(one is not None and one.parts for one in (found, other))
            way_out = "give it one type in the files" if is_nested else "cast one of them"
            raise SpecError.of(
                "type_mismatch",
                f"The column {items[0].name} of UNION is {found} in one query and {other} in another: {way_out}.",
                pointer=f"{pointer}/{index}",
            ) from None
    return found


def _aligned(branch: BoundQuery, names: Sequence[str], types: Sequence[DataType | None]) -> BoundQuery:
    select = tuple(
        BoundName(_cast(item.expression, type_), name)
        for item, name, type_ in zip(branch.select, names, types, strict=True)
    )
    fields = tuple(Field(name, type_ or UNKNOWN) for name, type_ in zip(names, types, strict=True))
    return replace(branch, select=select, output=Schema(fields))


def _cast(scalar: Scalar, type_: DataType | None) -> Scalar:
    if type_ is None:
        # Spark finds the common type by itself.
        return replace(scalar, type=None)
    return scalar if scalar.type == type_ else replace(scalar, tree=Cast(scalar.tree, type_, tries=False), type=type_)
