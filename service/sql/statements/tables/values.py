"""Reads VALUES: rows of constants in FROM."""

from __future__ import annotations

from sqlglot import exp

from service.contract.query import COLUMNS, VALUES_ROWS, ValuesRef
from service.sql.expressions.compile_expression import TableScope
from service.sql.expressions.nodes import Expression, Name, map_children, walk
from service.sql.expressions.reader import ExpressionReader, position
from service.sql.expressions.scalar import render
from service.sql.parser import Text
from service.sql.statements.origins import Origins


def read_values(
    node: exp.Values, alias: str, columns: tuple[str, ...], source: Text, at: str, origins: Origins
) -> ValuesRef:
    """Returns the rows of VALUES under `alias`; `columns` are the names of its columns, if it has any. `at` is its
    JSON pointer, below which `origins` gets the places of the values.

    Raises SpecError `unsupported_construct`, `query_too_deep` and what expressions raise.
    """
    place = position(node)
    if len(node.expressions) > VALUES_ROWS.most:
        raise source.beyond(VALUES_ROWS, len(node.expressions), at=position(node.expressions[VALUES_ROWS.most]))
    if place is not None:
        origins.places[at] = place
    rows: list[tuple[str, ...]] = []
    for index, row in enumerate(node.expressions):
        cells = row.expressions if isinstance(row, exp.Tuple) else [row]
        if len(cells) > COLUMNS.most:
            raise source.beyond(COLUMNS, len(cells), at=position(row))
        if rows and len(cells) != len(rows[0]):
            detail = f"The first row of VALUES has {len(rows[0])} values, but this row has {len(cells)}."
            raise source.error("unsupported_construct", detail, at=position(row))
        texts = []
        for number, cell in enumerate(cells):
            tree = _constant(cell, source)
            origins.add(f"{at}/rows/{index}/{number}", tree, position(cell))
            texts.append(render(tree))
        rows.append(tuple(texts))
    width = len(rows[0])
    if columns and len(columns) != width:
        detail = f"{alias} has {width} columns, but the list after its name has {len(columns)}. Name every column once."
        raise source.error("unsupported_construct", detail, at=place)
    return ValuesRef(kind="values", rows=tuple(rows), alias=alias, columns=columns)


def one_row(alias: str) -> ValuesRef:
    """Returns a single row, which a SELECT without FROM reads."""
    return ValuesRef(kind="values", rows=(("0",),), alias=alias)


def _constant(node: exp.Expr, source: Text) -> Expression:
    if isinstance(node, exp.Alias):
        hint = "Enclose each row in parentheses: VALUES (1), (2) AS t(x)."
        raise source.unsupported("An alias in VALUES", at=position(node), hint=hint)
    tree = _with_calls(ExpressionReader(source, aggregates=False).read(node), source)
    name = next((part for part in walk(tree) if isinstance(part, Name)), None)
    if name is not None:
        hint = "Write constants, or a SELECT for each row and UNION ALL."
        raise source.unsupported(f"The column {name.name[:60]} in VALUES", at=name.at, hint=hint)
    return tree


def _with_calls(tree: Expression, source: Text) -> Expression:
    """Returns `tree` with calls in place of names such as `current_date`."""
    if isinstance(tree, Name):
        return TableScope({}).call_by_name(tree, source) or tree
    return map_children(tree, lambda child: _with_calls(child, source))
