"""Compiles one SELECT into a structured query: every distinct aggregate in its expressions becomes a named call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property

from pydantic import ValidationError
from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from service.contract.problems import SpecError
from service.contract.query import (
    CODE,
    AggregateCall,
    AggregateFunction,
    Join,
    JoinKey,
    Lateral,
    NamedExpression,
    NullsOrder,
    Query,
    SortDirection,
    SortKey,
)
from service.sql.expressions.calls import PARTS, parts_in, where_all_are_known
from service.sql.expressions.compile_expression import matching
from service.sql.expressions.nodes import (
    Aggregate,
    Call,
    Expression,
    GetField,
    Name,
    Over,
    children,
    map_children,
    position_of,
    walk,
)
from service.sql.expressions.reader import ExpressionReader, position
from service.sql.expressions.scalar import render
from service.sql.parser import Text, place_of
from service.sql.statements.clauses.aliases import ALIASES
from service.sql.statements.clauses.lists import (
    MAX_GENERATED_NAME,
    Item,
    Order,
    WindowReader,
    all_with_others,
    over_columns,
    qualified,
    read_grouping,
    read_items,
    text_as_name,
)
from service.sql.statements.clauses.row_limits import is_whole, read_limit, read_offset
from service.sql.statements.clauses.star_except import FIELDS_LEFT_OUT
from service.sql.statements.expansion import WrittenNodes
from service.sql.statements.origins import Origins
from service.sql.statements.tables.from_clause import Sources
from service.sql.statements.tables.join_hints import read_hints

_CLAUSES = {
    "where": TokenType.WHERE,
    "group_by": TokenType.GROUP_BY,
    "having": TokenType.HAVING,
    "order_by": TokenType.ORDER_BY,
}
"""The keywords of the parts of a structured query in SQL, except for SELECT."""


class SelectCompiler:
    """Compiles one SELECT and records the places of its parts in `origins`, below the query's pointer `at`.

    `written` counts the nodes of its expressions. `order` is an ORDER BY that has been read already; `repeats_names`:
    its columns may have the same names.
    """

    def __init__(
        self,
        source: Text,
        select: exp.Select,
        sources: Sources,
        at: str,
        origins: Origins,
        written: WrittenNodes,
        order: Order | None = None,
        *,
        repeats_names: bool = False,
    ) -> None:
        self.sources = sources
        self.repeats_names = repeats_names
        self._origins = origins
        self._written = written
        self._at = at
        self._source = source
        self._select = select
        self._read_order = order
        self._sets: tuple[tuple[Expression, ...], ...] = ()
        self._window = WindowReader(source)
        self._reader = ExpressionReader(source, aggregates=True, windows=PARTS)
        self._plain = ExpressionReader(source, aggregates=False)
        self._names: set[str] = set()
        self._calls: dict[Aggregate, str] = {}

    @cached_property
    def items(self) -> list[Item]:
        """The output columns. Raises SpecError."""
        items = read_items(self._select, self.sources, self._source, repeats_names=self.repeats_names)
        self._written.count(*(item.tree for item in items))
        return items

    def needs_outer_distinct(self) -> bool:
        """Whether DISTINCT needs its own query: it may remove rows of different groups, or follows calls with OVER.
        Raises SpecError.
        """
        if self._select.args.get("distinct") is None:
            return False
        trees = [item.tree for item in self.items]
        keys = self._group_by(self.items) or []
        # Calls with OVER are computed before DISTINCT. Rows of two grouping sets may be equal even if all keys are
        # selected; one bound identifies a window.
        has_over = has_windows(trees) or self._select.args.get("qualify") is not None
        return has_over or bool(self._sets) or self._window.is_hidden(trees) or any(key not in trees for key in keys)

    def query(self) -> Query:
        """Returns the structured query; the condition of QUALIFY is one more column at the end. Raises SpecError."""
        items = self.items
        for index, item in enumerate(items):
            if item.at is not None:
                self._origins.places[f"{self._at}/select/{index}"] = item.at
            if item.renamed_from is not None:
                note = f"Several columns of * are called {item.renamed_from}: a later one is called {item.name}."
                self._origins.notes.append(note)
            if item.has_alias:
                self._origins.constructs.add(ALIASES)
            if item.is_of_star and isinstance(item.tree, Call) and item.tree.name == "named_struct":
                self._origins.constructs.add(FIELDS_LEFT_OUT)
        keys = self._group_by(items)
        having = self._having(items, keys)
        qualify = self._qualify(items)
        order = self.order()
        self._written.count(*(tree for tree, _ in order), *(tree for tree in (having, qualify) if tree is not None))
        distinct = self._select.args.get("distinct")
        trees = [*(item.tree for item in items), *(tree for tree, _ in order)]
        trees += [qualify] if qualify is not None else []
        aggregates = _aggregates_in(trees if having is None else [having, *trees])
        if distinct is not None:
            if keys is None and not aggregates:
                # Raises an error for expressions that are not selected.
                over_columns(order, items, "", self._source)
            keys = self._distinct(distinct, items, keys, aggregates)
        is_aggregate = aggregates or keys is not None
        self._names = {item.name.casefold() for item in items}
        if is_aggregate:
            self._name_calls(items)
        self._window.name_columns(items, self._fresh)
        shown = items if qualify is None else [*items, Item(qualify, self._fresh("QUALIFY"), None)]
        where = self._select.args.get("where")
        condition = self._where(where.this, items) if where is not None else None
        self._written.count(*([condition] if condition is not None else []), *self._joined())
        self._place_cuts()
        try:
            group_by = self._named_keys(keys or [], items)
            return Query(
                source=self.sources.first,
                joins=self._joins(),
                generators=self._generators(),
                where=self._optional(condition, "/where"),
                group_by=group_by,
                window=self._window.query_window(self._text),
                grouping_sets=self._named_sets(keys or [], group_by),
                select=tuple(
                    NamedExpression(
                        expression=self._text(self._extracted(item.tree), f"/select/{index}/expression", item.at),
                        name=item.name,
                    )
                    for index, item in enumerate(shown)
                ),
                having=self._optional(self._extracted(having) if having is not None else None, "/having"),
                order_by=tuple(
                    key.model_copy(
                        update={"expression": self._text(self._extracted(tree), f"/order_by/{index}/expression")}
                    )
                    for index, (tree, key) in enumerate(order)
                ),
                # Last, because the expressions above add calls.
                aggregates=self._aggregates(),
                limit=read_limit(self._select, self._source),
                offset=read_offset(self._select, self._source),
            )
        except ValidationError as error:
            raise self._beyond(error) from None

    def _beyond(self, error: ValidationError) -> SpecError:
        """Returns the error for a structured query that exceeds a limit of its model."""
        first = error.errors()[0]
        clause = _CLAUSES.get(str(first["loc"][0]), TokenType.SELECT)
        around = position(self._select)
        at = place_of(self._source, clause, around)
        if at is None:
            at = place_of(self._source, TokenType.SELECT, around)
        return self._source.error(CODE, first["msg"], at=at)

    def _text(self, tree: Expression, at: str, place: int | None = None) -> str:
        self._origins.add(self._at + at, tree, place)
        return render(tree)

    def _optional(self, tree: Expression | None, at: str, place: int | None = None) -> str | None:
        return self._text(tree, at, place) if tree is not None else None

    def _where(self, node: exp.Expr, items: list[Item]) -> Expression:
        return qualified(self._plain.read(node), self.sources, self._source, items, "WHERE")

    # GROUP BY, DISTINCT

    def _group_by(self, items: list[Item]) -> list[Expression] | None:
        clause = self._select.args.get("group")
        if clause is None:
            return None
        if [key for key, value in clause.args.items() if value] == ["all"]:
            return self._all_keys(items)

        def read_key(node: exp.Expr) -> Expression:
            tree = self._group_key(node, items)
            self._written.count(tree)
            if _aggregates_in([tree]):
                hint = "Compute the aggregate in a derived table, and group by its column."
                raise self._source.unsupported("An aggregate in GROUP BY", at=position_of(tree), hint=hint)
            if has_windows([tree]):
                hint = "Compute it in a derived table, and group by its column."
                raise self._source.unsupported("A call with OVER in GROUP BY", at=position_of(tree), hint=hint)
            if parts_in(tree):
                hint = "Group by the window: TUMBLE(…) or HOP(…)."
                raise self._source.unsupported("The start or end of a window in GROUP BY", at=position(node), hint=hint)
            return tree

        grouping = read_grouping(clause, self._source, read_key, position(self._select))
        self._sets = grouping.sets
        return self._window.keys_without_window(grouping.keys, has_sets=bool(self._sets))

    def _all_keys(self, items: list[Item]) -> list[Expression] | None:
        """Returns the keys of GROUP BY ALL: the columns of SELECT without an aggregate or a call with OVER."""
        keys = [item for item in items if not _aggregates_in([item.tree]) and not has_windows([item.tree])]
        for item in keys:
            if parts_in(item.tree):
                hint = "Name the keys, and the window: TUMBLE(…) or HOP(…)."
                raise self._source.unsupported("The start or end of a window in GROUP BY ALL", at=item.at, hint=hint)
        return list(dict.fromkeys(item.tree for item in keys)) or None

    def _group_key(self, node: exp.Expr, items: list[Item]) -> Expression:
        ordinal = self._ordinal(node, items)
        if ordinal is not None:
            return ordinal
        if isinstance(node, exp.Tuple):
            at = place_of(self._source, TokenType.GROUP_BY, position(self._select))
            raise self._source.unsupported("A row value in GROUP BY", at=at, hint="Name the keys without parentheses.")
        is_all = isinstance(node, exp.Column) and len(node.parts) == 1 and node.name.upper() == "ALL"
        if is_all and not node.this.quoted and not self.sources.scope.has_column(node.name):
            raise all_with_others("GROUP BY", self._source, position(node))
        tree = self._window.read_key(node) or self._plain.read(node)
        # A column of the tables comes before an alias of SELECT.
        return self._columns_first(tree) if isinstance(tree, Name) else self.sources.qualify(tree, self._source)

    def _ordinal(self, node: exp.Expr, items: list[Item]) -> Expression | None:
        if isinstance(node.unnest(), exp.Placeholder):
            hint = "The key would be a constant. Write the number or the name of a column."
            raise self._source.unsupported("A parameter as a key of GROUP BY or ORDER BY", at=position(node), hint=hint)
        if not is_whole(node):
            return None
        number = int(node.name) if len(node.name) < 6 else 0
        if not 1 <= number <= len(items):
            detail = f"SELECT has no column number {node.name[:20]}. It has {len(items)} in total."
            raise self._source.error("unknown_column", detail, at=position(node))
        return items[number - 1].tree

    @cached_property
    def _aliases(self) -> dict[str, Expression]:
        """The expressions of the output columns by case-folded name, the first one of each name."""
        return {item.name.casefold(): item.tree for item in reversed(self.items)}

    def _alias(self, tree: Expression) -> Expression | None:
        if not isinstance(tree, Name):
            return None
        if tree.qualifier is None:
            return self._aliases.get(tree.name.casefold())
        # A field of a structure that SELECT computes.
        whole = self._aliases.get(tree.qualifier.casefold())
        is_table = matching(tree.qualifier, self.sources.scope.tables) is not None
        if whole is None or is_table or self.sources.scope.column_around(tree) is not None:
            return None
        return GetField(whole, tree.name, tree.at)

    def _distinct(
        self, node: exp.Expr, items: list[Item], keys: list[Expression] | None, aggregates: bool
    ) -> list[Expression] | None:
        if node.args.get("on"):
            hint = "Write GROUP BY, and FIRST_VALUE(x ORDER BY t) for the other columns."
            raise self._source.unsupported("DISTINCT ON", at=position(node), hint=hint)
        trees = [item.tree for item in items]
        if keys is None and not aggregates:
            return list(dict.fromkeys(trees))
        # Rows with all their group keys are distinct; see `needs_outer_distinct` for the others.
        return keys

    def _named_keys(self, keys: list[Expression], items: list[Item]) -> tuple[NamedExpression, ...]:
        named = []
        for index, key in enumerate(keys):
            selected = next((item.name for item in items if item.tree == key), None)
            name = selected or self._fresh(key.name if isinstance(key, Name) else text_as_name(key, f"key_{index + 1}"))
            text = self._text(key, f"/group_by/{index}/expression", position_of(key))
            named.append(NamedExpression(expression=text, name=name))
        return tuple(named)

    def _named_sets(self, keys: list[Expression], named: tuple[NamedExpression, ...]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(named[keys.index(key)].name for key in one) for one in self._sets)

    # HAVING, ORDER BY, LIMIT

    def _having(self, items: list[Item], keys: list[Expression] | None) -> Expression | None:
        clause = self._select.args.get("having")
        if clause is None:
            return None
        tree = self._reader.read(clause.this)
        if keys is None and not _aggregates_in([tree, *(item.tree for item in items)]):
            at = place_of(self._source, TokenType.HAVING, position(clause))
            raise self._source.unsupported("HAVING without GROUP BY or an aggregate", at=at, hint="Use WHERE.")
        return self._over_output(tree, keys or [])

    def _qualify(self, items: list[Item]) -> Expression | None:
        clause = self._select.args.get("qualify")
        if clause is None:
            return None
        self._reader.check_clauses(clause)
        read = self._reader.read(clause.this)
        if not has_windows([read, *(item.tree for item in items)]):
            at = place_of(self._source, TokenType.QUALIFY, position(self._select))
            hint = "Use WHERE, or HAVING for aggregates."
            raise self._source.unsupported("QUALIFY without a call with OVER", at=at, hint=hint)
        return self._columns_first(read)

    def _columns_first(self, tree: Expression) -> Expression:
        """Returns `tree` with the names of the tables' columns qualified, and other names replaced as aliases of
        SELECT.
        """
        if not isinstance(tree, Name):
            return map_children(tree, self._columns_first)
        alias = self._alias(tree)
        try:
            return self.sources.qualify(tree, self._source)
        except SpecError as error:
            if alias is None or error.code != "unknown_column":
                raise
            return alias

    def order(self) -> Order:
        """Reads ORDER BY. Raises SpecError."""
        if self._read_order is not None:
            return self._read_order
        clause, items = self._select.args.get("order"), self.items
        order: Order = []
        keys = clause.expressions if clause is not None else []
        for node in keys:
            self._reader.check_clauses(node)
            descending = bool(node.args.get("desc"))
            nulls = NullsOrder.FIRST if node.args.get("nulls_first") else NullsOrder.LAST
            direction = SortDirection.DESC if descending else SortDirection.ASC
            key = SortKey(expression="NULL", direction=direction, nulls=nulls)
            if isinstance(node.this, exp.Var) and len(keys) == 1:
                # ORDER BY ALL.
                return [(item.tree, key) for item in items]
            order.append((self._sort_key(node.this, items), key))
        return order

    def _sort_key(self, node: exp.Expr, items: list[Item]) -> Expression:
        if isinstance(node, exp.Var):
            at = place_of(self._source, TokenType.ORDER_BY, position(self._select))
            raise all_with_others("ORDER BY", self._source, at)
        ordinal = self._ordinal(node, items)
        return self._over_output(self._reader.read(node), []) if ordinal is None else ordinal

    def _over_output(self, tree: Expression, keys: list[Expression]) -> Expression:
        """Returns `tree` with aliases of SELECT replaced, except in parts that equal one of `keys`, the group keys."""
        return self._with_aliases(tree, self._where_known(tree) if keys else tree, keys)

    def _with_aliases(self, tree: Expression, qualified: Expression, keys: list[Expression]) -> Expression:
        """Does the same as `_over_output`; `qualified` is `tree` with the names of the tables' columns qualified."""
        if isinstance(tree, Aggregate):
            return self.sources.qualify(tree, self._source)
        if qualified in keys:
            return qualified
        alias = self._alias(tree)
        if alias is not None:
            # It has the offset of the alias, so that the expression around it is in one place.
            if isinstance(alias, Name | Aggregate) and isinstance(tree, Name):
                return replace(alias, at=tree.at)
            return alias
        if isinstance(tree, Name):
            return self.sources.qualify(tree, self._source)
        parts = iter(children(qualified))
        return map_children(tree, lambda child: self._with_aliases(child, next(parts), keys))

    def _where_known(self, tree: Expression) -> Expression:
        """Returns `tree` qualified; names that are not columns of a table stay, and do not equal parts of keys."""
        if isinstance(tree, Name):
            try:
                return self.sources.qualify(tree, self._source)
            except SpecError:
                return tree
        return map_children(tree, self._where_known)

    def _place_cuts(self) -> None:
        for key in ("limit", "offset"):
            clause = self._select.args.get(key)
            place = position(clause) if clause is not None else None
            if place is not None:
                self._origins.places[f"{self._at}/{key}"] = place

    # Joins and aggregates

    def _joined(self) -> Iterator[Expression]:
        """Yields the expressions of ON and USING."""
        for join in self.sources.joins:
            yield from (side for key in join.keys for side in key)
            if join.residual is not None:
                yield join.residual
        for generated in self.sources.generators:
            yield from generated.arguments

    def _joins(self) -> tuple[Join, ...]:
        joins = []
        named = [(join.kind, join.table.name) for join in self.sources.joins]
        hints = read_hints(self._select, self.sources.first.name, named, self._source)
        for index, join in enumerate(self.sources.joins):
            at = f"/joins/{index}"
            if join.at is not None:
                self._origins.places[self._at + at] = join.at
            keys = tuple(
                JoinKey(
                    left=self._text(left, f"{at}/on/{number}/left"), right=self._text(right, f"{at}/on/{number}/right")
                )
                for number, (left, right) in enumerate(join.keys)
            )
            residual = self._optional(join.residual, f"{at}/residual")
            hint = hints.get(index)
            if hint is None:
                joins.append(Join(kind=join.kind, right=join.table, on=keys, residual=residual))
                continue
            for part in ("ship", "local"):
                self._origins.places[f"{self._at}{at}/{part}"] = hint.at
            joins.append(
                Join(kind=join.kind, right=join.table, on=keys, residual=residual, ship=hint.ship, local=hint.local)
            )
        return tuple(joins)

    def _generators(self) -> tuple[Lateral, ...]:
        found = []
        for index, generated in enumerate(self.sources.generators):
            at = f"/generators/{index}"
            if generated.at is not None:
                self._origins.places[self._at + at] = generated.at
            arguments = enumerate(generated.arguments)
            found.append(
                Lateral(
                    function=generated.function,
                    arguments=tuple(
                        self._text(tree, f"{at}/arguments/{place}", generated.at) for place, tree in arguments
                    ),
                    alias=generated.alias,
                    columns=generated.columns,
                    outer=generated.outer,
                )
            )
        return tuple(found)

    def _name_calls(self, items: list[Item]) -> None:
        for item in items:
            if isinstance(item.tree, Aggregate):
                self._calls.setdefault(item.tree, item.name)

    def _extracted(self, tree: Expression) -> Expression:
        """Returns `tree` with every aggregate and every bound of a window replaced by the name of its column."""
        column = self._window.column(tree)
        if column is not None:
            return column
        if isinstance(tree, Aggregate):
            name = self._calls.get(tree)
            if name is None:
                name = self._calls[tree] = self._fresh(text_as_name(tree, f"aggregate_{len(self._calls) + 1}"))
            return Name(None, name, tree.at)
        return map_children(tree, self._extracted)

    def _aggregates(self) -> tuple[AggregateCall, ...]:
        calls = []
        for index, (call, name) in enumerate(self._calls.items()):
            at = f"/aggregates/{index}"
            if call.at is not None:
                self._origins.places[self._at + at] = call.at
            calls.append(
                AggregateCall(
                    function=call.function,
                    arguments=tuple(
                        self._text(argument, f"{at}/arguments/{number}", call.at)
                        for number, argument in enumerate(_arguments(call))
                    ),
                    distinct=call.distinct,
                    filter=self._text(call.filter, f"{at}/filter", call.at) if call.filter is not None else None,
                    order_by=self._text(call.order_by, f"{at}/order_by", call.at)
                    if call.order_by is not None
                    else None,
                    descending=call.descending,
                    name=name,
                )
            )
        return tuple(calls)

    def _fresh(self, wanted: str) -> str:
        # Short enough to append a number.
        wanted = wanted[:MAX_GENERATED_NAME]
        name, number = wanted, 1
        while name.casefold() in self._names:
            number += 1
            name = f"{wanted}_{number}"
        self._names.add(name.casefold())
        return name


def _arguments(call: Aggregate) -> tuple[Expression, ...]:
    is_several = call.function is AggregateFunction.COUNT and not call.distinct and len(call.arguments) > 1
    return (where_all_are_known(call.arguments),) if is_several else call.arguments


def has_windows(trees: Iterable[Expression]) -> bool:
    """Whether one of `trees` contains a call with OVER."""
    return any(isinstance(part, Over) for tree in trees for part in walk(tree))


def _aggregates_in(trees: Iterable[Expression]) -> bool:
    return any(isinstance(part, Aggregate) for tree in trees for part in walk(tree))
