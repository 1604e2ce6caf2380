"""Replaces a query after LATERAL whose only table is a generator: `LATERAL (SELECT e + 1 FROM explode(t.a) AS g(e))`.

The generator becomes one of the query around, and the columns of SELECT expressions of its columns. A condition on the
elements of an array becomes `filter`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlglot import exp

from service.contract.problems import SpecError, did_you_mean, nearest_names
from service.contract.query import GeneratorFunction
from service.sql.expressions.nodes import Call, Expression, GetField, Lambda, Name, Variable, map_children
from service.sql.expressions.reader import ExpressionReader, position
from service.sql.parser import Text
from service.sql.statements import trees
from service.sql.statements.tables.from_clause import Sources
from service.sql.statements.tables.generators import Generated, is_generated, is_generator, read_generator

GENERATED = "generators of earlier tables in queries after LATERAL"
"""What `Origins.constructs` contains for a query with one."""

_CLAUSES = frozenset({"expressions", "from_", "where"})


def generator_in(query: exp.Expr) -> tuple[exp.Select, exp.Expr] | None:
    """Returns `query`, and the node of its generator if that is all that it reads: in FROM, or as a column of SELECT.
    None if it reads something else, or has other clauses than SELECT, FROM and WHERE.
    """
    if not isinstance(query, exp.Select) or any(value for key, value in query.args.items() if key not in _CLAUSES):
        return None
    clause = query.args.get("from_")
    if clause is None:
        return _as_table(query)
    table = clause.this
    if isinstance(table, exp.Table) and is_generator(table.this):
        called = exp.Lateral(this=table.this.copy(), alias=table.args.get("alias"))
        return query, trees.placed(called, position(table.this))
    return (query, table) if is_generated(table) else None


def _as_table(query: exp.Select) -> tuple[exp.Select, exp.Expr] | None:
    """Returns `SELECT explode(a) AS e` as a query of the column e."""
    calls = [item for item in query.expressions if is_generator(item.unalias())]
    if len(calls) != 1 or not isinstance(calls[0], exp.Alias) or query.args.get("where") is not None:
        return None
    item = calls[0]
    name = trees.identifier(item.alias)
    alias = exp.TableAlias(this=trees.identifier(item.alias), columns=[name])
    at = position(item.this)
    called = trees.placed(exp.Lateral(this=item.this.copy(), alias=alias), at)
    items = [
        trees.placed(exp.Column(this=name.copy()), at) if each is item else each.copy() for each in query.expressions
    ]
    return exp.Select(expressions=items), called


@dataclass(frozen=True)
class GeneratorColumns:
    """The columns of a generator, which the query calls `found.columns` and the query around `hidden`, in the table
    `alias`. `before` are the tables of the query around.
    """

    found: Generated
    alias: str
    hidden: tuple[str, ...]
    before: Sources
    source: Text

    def is_own(self, column: exp.Column) -> bool:
        """Whether `column` is one of the generator, or a field of one."""
        first = column.parts[0].name.casefold()
        is_alias = len(column.parts) > 1 and first == self.found.alias.casefold()
        return is_alias or self._hidden(first) is not None

    def qualified(self, tree: Expression, variable: str | None = None) -> Expression:
        """Returns `tree` with every name as a column of the query around; those of the generator as `variable` if that
        is given. Raises SpecError.
        """
        if not isinstance(tree, Name):
            return map_children(tree, lambda child: self.qualified(child, variable))
        qualifier = tree.qualifier
        if qualifier is None or qualifier.casefold() == self.found.alias.casefold():
            hidden = self._hidden(tree.name)
            if hidden is not None:
                return self._column(hidden, tree.at, variable)
            if qualifier is not None:
                raise self._unknown(tree)
        elif (hidden := self._hidden(qualifier)) is not None:
            return GetField(self._column(hidden, tree.at, variable), tree.name, tree.at)
        return self.before.qualify(tree, self.source)

    def filtered(self, condition: Expression, variable: str) -> Generated | None:
        """Returns the generator of the elements for which `condition` is true; None for one of several columns."""
        if self.found.function is not GeneratorFunction.EXPLODE or len(self.hidden) != 1 or self.found.outer:
            return None
        chosen = Lambda((variable,), self.qualified(condition, variable))
        return replace(self.found, arguments=(Call("filter", (*self.found.arguments, chosen), self.found.at),))

    def _hidden(self, name: str) -> str | None:
        named = zip(self.found.columns, self.hidden, strict=True)
        return next((hidden for column, hidden in named if column.casefold() == name.casefold()), None)

    def _column(self, hidden: str, at: int | None, variable: str | None) -> Expression:
        return Name(self.alias, hidden, at) if variable is None else Variable(variable, at)

    def _unknown(self, name: Name) -> SpecError:
        suggestions = nearest_names(name.name, self.found.columns)
        detail = f"There is no column {name.qualifier}.{name.name}.{did_you_mean(suggestions)}"
        return self.source.error("unknown_column", detail, at=name.at, suggestions=suggestions)


def columns_of_generator(node: exp.Expr, alias: str, prefix: str, before: Sources, source: Text) -> GeneratorColumns:
    """Reads the generator `node`, whose arguments are over the tables `before`; its columns get names that begin with
    `prefix`, in the table `alias`. Raises SpecError.
    """
    reader = ExpressionReader(source, aggregates=False)
    found = read_generator(
        node, len(before.generators) + 1, source, lambda part: before.qualify(reader.read(part), source)
    )
    folded = [column.casefold() for column in found.columns]
    if len(set(folded)) < len(folded):
        detail = f"Two columns of {found.function} have one name. Give each its own after AS."
        raise source.error("duplicate_column", detail, at=position(node))
    hidden = tuple(f"{prefix}_{number}" for number in range(1, len(found.columns) + 1))
    return GeneratorColumns(found, alias, hidden, before, source)
