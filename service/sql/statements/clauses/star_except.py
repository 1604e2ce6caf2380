"""Leaves columns, and fields of structures, out of a star: `* EXCEPT (a, t.b, s.field)`.

As in Spark, the rest of a structure is a new one: it is no NULL, even if the structure is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from service.contract.problems import SpecError, did_you_mean, nearest_names
from service.sql.expressions.compile_expression import full_name
from service.sql.expressions.nodes import Call, Expression, GetField, String
from service.sql.expressions.reader import position
from service.sql.parser import Text
from service.sql.statements.tables.visible import VisibleColumn
from service.sql.types.data_types import NULL, UNKNOWN, DataType, TypeName

FIELDS_LEFT_OUT = "EXCEPT of fields"
"""What `Origins.constructs` contains for a query that workers before version 17 refuse."""
Columns = tuple[VisibleColumn, ...]


@dataclass
class _LeftOut:
    """What is left out of a structure: itself, if `at` is set, or fields of it, by case-folded name."""

    at: exp.Expr | None = None
    fields: dict[str, _LeftOut] = field(default_factory=dict)


def without(
    columns: Columns, excepted: Sequence[exp.Expr], type_of: Callable[[VisibleColumn], DataType | None], source: Text
) -> Columns:
    """Returns the columns of a star without those that its EXCEPT names. `type_of` returns the type of a column, None
    if it is not known. Raises SpecError if EXCEPT names what the star does not have, or the same twice.
    """
    left_out: dict[int, _LeftOut] = {}
    for item in excepted:
        index, path = _place(columns, item, source)
        node = left_out.setdefault(index, _LeftOut())
        if _is_taken(node, path):
            raise _unknown(columns, item, source)
        for name in path:
            node = node.fields.setdefault(name.casefold(), _LeftOut())
        node.at = item
    found = []
    for index, column in enumerate(columns):
        given = left_out.get(index)
        if given is None:
            found.append(column)
        elif given.at is None:
            found.append(replace(column, tree=_rest(column.tree, type_of(column), given, column.name, source)))
    return tuple(found)


def _is_taken(node: _LeftOut, path: Sequence[str]) -> bool:
    """Whether the item of EXCEPT with this path, or one around or inside it, has been read."""
    for name in path:
        if node.at is not None:
            return True
        inner = node.fields.get(name.casefold())
        if inner is None:
            return False
        node = inner
    return node.at is not None or bool(node.fields)


def _names(item: exp.Expr) -> list[str]:
    if isinstance(item, exp.Dot):
        return [*_names(item.this), item.name]
    return [part.name for part in item.parts] if isinstance(item, exp.Column) else []


def _place(columns: Columns, item: exp.Expr, source: Text) -> tuple[int, list[str]]:
    """Returns the index of the column that `item` names, and the path of the field in it."""
    names = _names(item)
    if not names or not names[0]:
        hint = "Name columns, or fields of structures: * EXCEPT (a, t.b, s.field)."
        raise source.unsupported("This item of EXCEPT after *", at=position(item), hint=hint)
    first, *rest = (name.casefold() for name in names)
    of_table = [
        index
        for index, column in enumerate(columns)
        if rest and (column.alias or "").casefold() == first and column.name.casefold() == rest[0]
    ]
    found = of_table or [index for index, column in enumerate(columns) if column.name.casefold() == first]
    if not found:
        raise _unknown(columns, item, source)
    if len(found) > 1:
        choices = [full_name(columns[index].alias or "", columns[index].name) for index in found]
        detail = f"{names[0]} is a column of several tables. Write {' or '.join(choices)}."
        raise source.error("ambiguous_column", detail, at=position(item), suggestions=choices)
    return found[0], names[2 if of_table else 1 :]


def _unknown(columns: Columns, item: exp.Expr, source: Text) -> SpecError:
    others = [column.name for column in columns if column.name.casefold() != item.name.casefold()]
    suggestions = nearest_names(item.name, others)
    detail = (
        f"* has no column {'.'.join(name.casefold() for name in _names(item))}, or EXCEPT names it twice."
        f"{did_you_mean(suggestions)}"
    )
    return source.error("unknown_column", detail, at=position(item), suggestions=suggestions)


def _rest(tree: Expression, type_: DataType | None, given: _LeftOut, written: str, source: Text) -> Expression:
    """Returns the structure `tree`, called `written` in messages, without the fields that are left out."""
    at = position(_first(given))
    if type_ is None or type_ in {NULL, UNKNOWN}:
        hint = "Name the columns: the types of columns of queries in FROM are not known yet."
        raise source.unsupported(f"A field of {written} in EXCEPT", at=at, hint=hint)
    if type_.name is not TypeName.STRUCT:
        detail = f"{written} is {type_}, which has no fields that EXCEPT can name."
        raise source.error("type_mismatch", detail, at=at)
    known = {label.casefold() for label in type_.labels}
    for name, inner in given.fields.items():
        if name not in known:
            suggestions = nearest_names(name, type_.labels)
            detail = f"{written} has no field {name}.{did_you_mean(suggestions)}"
            raise source.error("unknown_column", detail, at=position(_first(inner)), suggestions=suggestions)
    parts: list[Expression] = []
    for part in type_.fields:
        inner_given = given.fields.get(part.name.casefold())
        value: Expression = GetField(tree, part.name)
        if inner_given is not None and inner_given.at is not None:
            continue
        if inner_given is not None:
            value = _rest(value, part.type, inner_given, f"{written}.{part.name}", source)
        parts += [String(part.name), value]
    if not parts:
        raise source.unsupported(f"EXCEPT of all fields of {written}", at=at, hint=f"Write EXCEPT ({written}).")
    return Call("named_struct", tuple(parts))


def _first(given: _LeftOut) -> exp.Expr:
    """Returns the first item of EXCEPT in `given`."""
    while given.at is None:
        given = next(iter(given.fields.values()))
    return given.at
