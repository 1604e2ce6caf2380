"""Puts the tables of FROM into a derived table, where a join or a subquery has to come after a generator.

Their names stay: `Sources.computed` has the column of the derived table for each of their columns.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from service.sql.expressions.compile_expression import full_name
from service.sql.expressions.nodes import Expression, Name, map_children
from service.sql.statements import trees
from service.sql.statements.tables.from_clause import Derived, Sources
from service.sql.statements.tables.visible import Visible, VisibleColumn

WRAPPED = "joins and subqueries after generators"
"""What `Origins.constructs` contains for a query that workers before version 16 refuse."""


def wrapped(before: Sources, tables: exp.Select, alias: str, derived: Derived, pointer: str) -> Sources:
    """Returns the tables `before`, which `tables` reads, as one derived table called `alias`; `derived` compiles it.
    `pointer` is that of the SELECT. Raises SpecError.
    """
    columns = list(_columns(before))
    names = {full_name(*column): Name(alias, f"{alias}_{number}") for number, column in enumerate(columns, start=1)}
    query = tables.copy()
    query.set(
        "expressions",
        [
            exp.Alias(this=_column(before, *column), alias=trees.identifier(name.name))
            for column, name in zip(columns, names.values(), strict=True)
        ],
    )
    node = exp.Subquery(this=query, alias=exp.TableAlias(this=trees.identifier(alias)))
    found = derived(node, f"{pointer}/source")
    if found is None:
        raise AssertionError("A derived table is compiled.")

    def moved(tree: Expression) -> Expression:
        if isinstance(tree, Name) and tree.qualifier is not None:
            return names.get(full_name(tree.qualifier, tree.name), tree)
        return map_children(tree, moved)

    def shown(column: VisibleColumn) -> VisibleColumn:
        of_table = names.get(full_name(column.alias, column.name)) if column.alias is not None else None
        return VisibleColumn(column.alias, column.name, moved(column.tree) if of_table is None else of_table)

    def show() -> Visible:
        return Visible(
            tuple(map(shown, before.visible.output)),
            tuple(map(shown, before.visible.hidden)),
        )

    return Sources(
        found[0],
        (),
        before.scope,
        show,
        merged={name: moved(tree) for name, tree in before.merged.items()},
        computed={
            table: {name: names[full_name(table, name)] for name in schema.names}
            for table, schema in before.scope.tables.items()
        },
        is_wrapped=True,
    )


def _columns(before: Sources) -> Iterator[tuple[str, str]]:
    for alias, schema in before.scope.tables.items():
        yield from ((alias, name) for name in schema.names)


def _column(before: Sources, alias: str, name: str) -> exp.Expr:
    if alias in before.scope.unnamed:
        # The alias of a derived table without one differs each time it is compiled.
        return exp.Column(this=trees.identifier(name))
    return trees.column(alias, name)
