"""Formats a plan as a SQL query that computes the same rows in the same steps.

Every step is a query of the WITH clause, named after its operator and its number in the plan's tree; operators that fit
into one SELECT share one. A scan renames its columns to `alias.column`, and every later step uses these names in
back-quotes: the dot is part of the name. Shuffles are Spark's hints and clauses: DISTRIBUTE BY for an exchange, a hint
for a join's strategy.

The text is assembled here and not by sqlglot's generator. Expressions are Spark SQL already, so the generator would
only format the clauses, for which it takes half a millisecond per SELECT. It also joins conditions without
parentheses if it cannot read them, and omits NULLS FIRST where that is Spark's default.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import get_args

from service.contract.query import NullsOrder
from service.sql.expressions.scalar import Scalar, quoted, string_literal
from service.sql.joins import Side
from service.sql.types.data_types import TypeName
from workers.engine.plan.expressions import fresh_name, generator_sql, join_condition, values_sql
from workers.engine.plan.nodes import (
    Aggregate,
    Deduplicate,
    Exchange,
    Expand,
    Filter,
    Generate,
    Join,
    Limit,
    MultisetOperation,
    Named,
    Node,
    Project,
    Recursion,
    Scan,
    Shared,
    Sort,
    SortItem,
    StepRows,
    UnaryNode,
    Union,
    Values,
    Watermark,
    WindowFunctions,
    Windows,
    inputs_of,
    output_of,
)
from workers.engine.plan.one_row_joins import value_joins
from workers.engine.plan.recursion import JOINS, recursion_sql
from workers.engine.plan.text_lists import calls_sql
from workers.engine.plan.traversal import walk_up

NO_COLUMN = "1 AS `$row`"
"""The item of a step that emits rows without columns, which SQL does not support."""

_ORDINAL = re.compile(r"-?[0-9]+")
"""A number that Spark would read in GROUP BY as the position of an item."""

_LAMBDA = "->"


def nested_sql(plan: Node, relation_of: Callable[[Node], str | None]) -> str:
    """Returns `plan` as one query in which every step is a query in the FROM of the next one, for Spark to parse.

    `relation_of` returns the name of a relation that has the rows and columns of a node, or None to have the text
    compute them. It must return one for a scan, whose relation may have further columns if the scan has any. Raises
    TypeError as `sql_of`.
    """
    return _Writer(_structures(plan), relation_of, value_joins(plan)).select(plan).text()


def _structures(plan: Node) -> frozenset[str]:
    """Returns the names of columns with fields. For `a.b`, Spark prefers column b of a relation a to field b of column
    a, so that no relation may have such a name.
    """
    return frozenset(
        field.name
        for node in walk_up(plan)
        for field in output_of(node)
        if field.type is None or field.type.name is TypeName.STRUCT
    )


def sql_of(plan: Node) -> str:
    """Returns Spark SQL that computes `plan` over tables, or views, with the scans' table names.

    Raises TypeError for an unsupported node, since an incomplete text would be wrong.
    """
    tables = frozenset(node.table for node in walk_up(plan) if isinstance(node, Scan))
    writer = _Writer(tables | _structures(plan))
    last = writer.select(plan)
    steps = ",\n".join(writer.definitions)
    is_recursive = any(isinstance(node, Recursion) for node in walk_up(plan))
    return f"WITH{' RECURSIVE' if is_recursive else ''}\n{steps}\n{last.text()}" if steps else last.text()


@dataclass(frozen=True)
class _Select:
    """One SELECT in progress. `number` is that of its topmost node; `columns` is None for `*`.

    `whole`: it is complete, and nodes above it need another SELECT.
    """

    operator: str
    number: int
    source: str
    columns: tuple[str, ...] | None = None
    distinct: bool = False
    hint: str | None = None
    comment: str | None = None
    where: str | None = None
    group_by: tuple[str, ...] = ()
    distribute_by: tuple[str, ...] = ()
    order_by: tuple[SortItem, ...] = ()
    limit: int | None = None
    offset: int = 0
    whole: bool = False

    @property
    def takes_rows(self) -> bool:
        """Whether it is still `SELECT * FROM … WHERE …`, so that items and groups can be added."""
        return self.columns is None and not self.whole and not self.is_arranged

    @property
    def is_arranged(self) -> bool:
        """Whether its rows are shuffled, sorted or limited."""
        return bool(self.distribute_by or self.order_by or self.hint_moves or self.is_cut)

    @property
    def is_cut(self) -> bool:
        """Whether it has LIMIT or OFFSET."""
        return self.limit is not None or self.offset > 0

    @property
    def hint_moves(self) -> bool:
        """Whether its hint shuffles its output, and is not a hint for a join."""
        return self.hint is not None and self.hint.startswith(("REPARTITION", "REBALANCE"))

    def text(self) -> str:
        """Returns the query; if it is `whole`, that is `source`."""
        if self.whole:
            return self.source
        hint = f" /*+ {self.hint} */" if self.hint else ""
        words = "SELECT" + hint + (" DISTINCT" if self.distinct else "")
        lines = [f"{words} {_items(self.columns)}", f"FROM {self.source}"]
        if self.where is not None:
            lines.append(f"WHERE {self.where}")
        if self.group_by:
            lines.append(f"GROUP BY {', '.join(self.group_by)}")
        if self.distribute_by:
            comment = f" /* {self.comment} */" if self.comment else ""
            lines.append(f"DISTRIBUTE BY {', '.join(self.distribute_by)}{comment}")
        if self.order_by:
            lines.append(f"ORDER BY {', '.join(map(sort_key, self.order_by))}")
        if self.limit is not None:
            lines.append(f"LIMIT {self.limit}")
        if self.offset:
            lines.append(f"OFFSET {self.offset}")
        return "\n".join(lines)


class _Writer:
    """Collects the steps of one plan, inputs first. With `relation_of`, it writes them where they are read instead. No
    step gets a name that is `taken`. `values` are the joins of which the right side is a subquery in SELECT.
    """

    def __init__(
        self,
        taken: frozenset[str],
        relation_of: Callable[[Node], str | None] | None = None,
        values: frozenset[int] = frozenset(),
    ) -> None:
        self.definitions: list[str] = []
        self._taken = taken
        self._relation_of = relation_of
        self._values = values
        self._nodes = 0

    def select(self, node: Node) -> _Select:
        """Returns the SELECT of `node`; nodes below that do not fit into it have become steps."""
        if type(node) not in get_args(Node):
            raise TypeError(f"{type(node).__name__} has no SQL")
        relation = None if self._relation_of is None else self._relation_of(node)
        if relation is not None:
            self._nodes += 1
            return _relation(node, relation, self._nodes - 1)
        inputs = [self.select(child) for child in inputs_of(node)]
        number = self._nodes
        self._nodes += 1
        if isinstance(node, Scan):
            return _scan(node, number)
        if isinstance(node, Values):
            return _Select("values", number, values_sql(node), whole=True)
        if isinstance(node, Join):
            return self._join(node, number, inputs[0], inputs[1])
        if isinstance(node, Union):
            branches = [_Select("", number, self._step(branch)).text() for branch in inputs]
            return _Select("union", number, "\nUNION ALL\n".join(branches), whole=True)
        if isinstance(node, StepRows):
            raise TypeError("a step has SQL inside its recursion only")
        if isinstance(node, Recursion):
            tables = [self._step(each) for each in inputs]
            name = fresh_name(f"recursion_{number}", self._taken)
            self.definitions.append(recursion_sql(node, name, tables))
            return _Select("recursion", number, name)
        if isinstance(node, MultisetOperation):
            one, other = (_Select("", number, self._step(side)).text() for side in inputs)
            word = node.kind.replace("_", " ").upper()
            return _Select(word.split()[0].lower(), number, f"{one}\n{word}\n{other}", whole=True)
        return replace(self._unary(node, inputs[0], number), operator=type(node).__name__.lower(), number=number)

    def _unary(
        self,
        node: UnaryNode,
        below: _Select,
        number: int,
    ) -> _Select:
        match node:
            case Watermark():
                # A query over existing rows has no late rows.
                select = self._over(below, number, False)
                return replace(select, source=f"{select.source} /* watermark: {node.delay_ms} ms behind */")
            case Windows():
                select = self._over(below, number, below.takes_rows)
                lengths = f"'{node.size_ms} milliseconds', '{node.slide_ms} milliseconds'"
                return replace(select, columns=("*", f"window({node.column.sql}, {lengths}) AS {quoted(node.name)}"))
            case Shared():
                return below
            case Filter():
                select = self._over(below, number, below.takes_rows)
                condition = node.condition.sql
                return replace(
                    select, where=condition if select.where is None else f"({select.where}) AND ({condition})"
                )
            case Project() if _changes_nothing(node):
                return below
            case Project():
                select = self._over(below, number, _can_project(below, node))
                return replace(select, columns=_named(node.items))
            case Aggregate():
                return _aggregate(node, self._over(below, number, below.takes_rows))
            case Deduplicate():
                select = self._over(below, number, not below.whole and not below.is_arranged)
                columns = tuple(quoted(field.name) for field in output_of(node.input))
                return replace(select, columns=select.columns or columns, distinct=True)
            case Expand():
                select = self._over(below, number, below.takes_rows)
                return replace(select, columns=("*", f"explode(sequence(1, {node.branches})) AS {quoted(node.name)}"))
            case Generate():
                select = self._over(below, number, below.takes_rows)
                return replace(select, columns=("*", generator_sql(node)))
            case WindowFunctions():
                select = self._over(below, number, below.takes_rows)
                return replace(select, columns=("*", *_named(node.calls)))
            case Exchange():
                return _exchange(node, self._over(below, number, below.takes_rows and below.hint is None))
            case Sort():
                select = self._over(below, number, not below.whole and not below.is_arranged and not below.distinct)
                return replace(select, order_by=node.keys)
            case Limit():
                select = self._over(below, number, not below.whole and not below.is_cut)
                return replace(select, limit=node.count, offset=node.offset)

    def _join(self, node: Join, number: int, left: _Select, right: _Select) -> _Select:
        if id(node) in self._values:
            return self._with_value(node, number, left, right)
        # Both become steps before the text uses their names.
        one, other = self._name(left), self._name(right)
        sides = self._source(left, one), self._source(right, other)
        condition = join_condition(node)
        if not condition:
            return _Select("join", number, f"{sides[0]} CROSS JOIN {sides[1]}")
        source = f"{sides[0]} {JOINS[node.kind]} {sides[1]}\n  ON {condition}"
        if node.within is not None:
            # The condition implies it; it limits the state of a stream.
            least, most = node.within.at_least_us, node.within.at_most_us
            source += f" /* within: {node.within.left.sql} - {node.within.right.sql} from {least} to {most} us */"
        hint = None
        if node.strategy.hint is not None:
            name, side = node.strategy.hint
            hint = f"{name}({one if side is Side.LEFT else other})"
        return _Select("join", number, source, hint=hint)

    def _with_value(self, node: Join, number: int, left: _Select, right: _Select) -> _Select:
        """Returns the rows of the left side with the columns of the row, which a subquery in SELECT computes."""
        columns = [quoted(field.name) for field in output_of(node.right)]
        own = [quoted(field.name) for field in output_of(node.left)]
        source = self._step(left)
        if len(columns) == 1:
            items = [f"(SELECT {columns[0]} FROM {self._step(right)}) AS {columns[0]}"]  # noqa: S608 - from trees
        else:
            row = ", ".join(f"{string_literal(str(place))}, {name}" for place, name in enumerate(columns))
            value = f"(SELECT named_struct({row}) FROM {self._step(right)})"  # noqa: S608 - from trees
            whole = quoted(fresh_name("$row", frozenset(field.name for field in output_of(node))))
            name = fresh_name(f"row_{number}", self._taken)
            source = self._source(_Select("", number, source, columns=(*own, f"{value} AS {whole}")), name)
            items = [f"{whole}.{quoted(str(place))} AS {name}" for place, name in enumerate(columns)]
        select = _Select("join", number, source, columns=(*own, *items))
        condition = join_condition(node)
        return replace(self._over(select, number, False), operator="join", where=condition) if condition else select

    def _over(self, below: _Select, number: int, fits: bool) -> _Select:
        """Returns `below` itself if the node `fits` into it, otherwise a SELECT over it."""
        return below if fits else _Select("", number, self._step(below))

    def _step(self, select: _Select) -> str:
        """Returns what FROM has for the rows of `select`."""
        return self._source(select, self._name(select))

    def _name(self, select: _Select) -> str:
        return fresh_name(f"{select.operator}_{select.number}", self._taken)

    def _source(self, select: _Select, name: str) -> str:
        if self._relation_of is not None:
            return f"(\n{select.text()}\n) AS {name}"
        self.definitions.append(f"{name} AS (\n{_indented(select.text())}\n)")
        return name


def _relation(node: Node, name: str, number: int) -> _Select:
    if not isinstance(node, Scan) or not node.columns:
        return _Select("relation", number, name)
    columns = tuple(quoted(field.name) for field, _ in node.columns)
    return _Select("scan", number, f"SELECT {_items(columns)}\nFROM {name}", whole=True)


def _scan(node: Scan, number: int) -> _Select:
    columns = tuple(f"{quoted(name)} AS {quoted(emitted.name)}" for emitted, name in node.columns)
    text = f"SELECT {_items(columns)}\nFROM {quoted(node.table)}"
    # Whole, since a condition in it would have to use the table's own column names.
    return _Select("scan", number, text, whole=True)


def _aggregate(node: Aggregate, select: _Select) -> _Select:
    keys = _named(node.keys)
    calls = tuple(
        f"{text} AS {quoted(call.output.name)}" for text, call in zip(calls_sql(node), node.calls, strict=True)
    )
    group_by = tuple(_group_key(key.expression) for key in node.keys)
    if node.grouping_sets:
        sets = ", ".join(f"({', '.join(group_by[position] for position in one)})" for one in node.grouping_sets)
        # The keys are also before the sets: GROUPING_ID counts them in that order. An item with exactly the text of a
        # key is NULL if the set does not have the key.
        keys = tuple(f"{text} AS {quoted(key.name)}" for text, key in zip(group_by, node.keys, strict=True))
        grouped = f"{', '.join(group_by)} GROUPING SETS ({sets})"
        return replace(select, columns=(*keys, *calls), group_by=(grouped,))
    if calls:
        # By its position: Spark does not find that two lambda functions are the same.
        group_by = tuple(str(n) if _LAMBDA in text else text for n, text in enumerate(group_by, start=1))
        return replace(select, columns=(*keys, *calls), group_by=group_by)
    if keys:
        return replace(select, columns=keys, distinct=True)
    # Without keys and calls there is one row for any input, as with count; SQL has no rows without columns.
    return replace(select, columns=("count(*) AS `$row`",))


def _group_key(key: Scalar) -> str:
    return f"CAST({key.sql} AS INT)" if _ORDINAL.fullmatch(key.sql) else key.sql


def _exchange(node: Exchange, select: _Select) -> _Select:
    if not node.keys:
        return replace(select, hint="REBALANCE" if node.partitions is None else f"REPARTITION({node.partitions})")
    keys = tuple(key.sql for key in node.keys)
    if node.partitions is not None and all(key.column is not None for key in node.keys):
        return replace(select, hint=f"REPARTITION({', '.join([str(node.partitions), *keys])})")
    comment = None if node.partitions is None else f"into {node.partitions} tasks"
    return replace(select, distribute_by=keys, comment=comment)


def _can_project(below: _Select, node: Project) -> bool:
    """Whether the items fit into the same SELECT: its ORDER BY would use the items' names, so no renamed item may have
    the name of a column to order by.
    """
    if below.columns is not None or below.whole or below.distribute_by or below.hint_moves:
        return False
    renamed = {item.name.casefold() for item in node.items if item.expression.column != item.name}
    ordered = {name.casefold() for item in below.order_by for name in item.expression.columns}
    return renamed.isdisjoint(ordered)


def _changes_nothing(node: Project) -> bool:
    """Whether the items are exactly the input's columns, in their order."""
    columns = tuple(field.name for field in output_of(node.input))
    return tuple(item.expression.column for item in node.items) == tuple(item.name for item in node.items) == columns


def _named(items: Iterable[Named]) -> tuple[str, ...]:
    return tuple(
        item.expression.sql if item.expression.column == item.name else f"{item.expression.sql} AS {quoted(item.name)}"
        for item in items
    )


def _items(columns: tuple[str, ...] | None) -> str:
    if columns is None:
        return "*"
    return ", ".join(columns) or NO_COLUMN


def sort_key(item: SortItem) -> str:
    """Returns an item of ORDER BY."""
    nulls = "FIRST" if item.nulls is NullsOrder.FIRST else "LAST"
    return f"{item.expression.sql} {item.direction.value.upper()} NULLS {nulls}"


def _indented(text: str) -> str:
    return "\n".join("  " + line for line in text.splitlines())
