"""Streams whose rows replace each other: of the rows with equal keys, the newest one counts, unless it is removed.

The newest rows are the first ones by the order, which a step keeps (`first_rows`), also those that are removed: an
older row that comes later must not replace them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from service.contract.tables import ADDING, REMOVING, REPLACED, Upsert
from service.sql.expressions.nodes import OrderKey, Over
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, BOOLEAN, STRING, Field
from workers.engine.plan.expressions import compose, fresh_name, literal
from workers.engine.plan.nodes import Filter, Named, Node, Project, Scan, WindowFunctions, names_of
from workers.engine.plan.traversal import transform_up
from workers.engine.streaming import debezium
from workers.engine.streaming.sources import OPERATION, Input, StreamInput, operation_of


def with_newest_rows(node: Node, tables: Mapping[str, Input]) -> Node:
    """Returns a plan in which the newest rows replace the scans of streams whose rows replace each other."""
    taken = names_of(node)

    def replaced(part: Node) -> Node:
        table = tables[part.table] if isinstance(part, Scan) else None
        if not isinstance(part, Scan) or not isinstance(table, StreamInput) or table.upsert is None:
            return part
        return _newest(part, table, table.upsert, taken)

    return transform_up(node, replaced)


def _newest(scan: Scan, table: StreamInput, upsert: Upsert, taken: frozenset[str]) -> Node:
    columns = {name: field for field, name in scan.columns}

    def added_column(name: str, field: Field) -> Scalar:
        """Returns the column `name` of the files, which is added to those of the scan if they do not have it."""
        if name not in columns:
            columns[name] = replace(field, name=fresh_name(f"{scan.alias}.{name}", taken))
        return column(columns[name].name, columns[name].type)

    def of_schema(name: str) -> Scalar:
        field = table.schema.find(name)
        if field is None:
            raise KeyError(name)
        return added_column(field.name, field)

    keys = tuple(map(of_schema, upsert.keys))
    if table.source.envelope is not None:
        order = added_column(debezium.ORDER, Field(debezium.ORDER, BIGINT))
    else:
        order = of_schema(upsert.order or "")
    kept = tuple(Named(column(field.name, field.type), field.name) for field in columns.values())
    # Of two rows with the same order, it is always the same one that counts, whatever columns the query reads.
    values = tuple(added_column(field.name, field) for field in table.schema.fields if field.type.is_groupable)
    operation = operation_of(table)
    is_added = compose("TRUE", (), BOOLEAN)
    is_newer: Scalar | None = None
    if operation is not None:
        text = added_column(operation, Field(OPERATION, STRING))
        is_added = _is_added(text, scan.table)
        values = (*values, is_added)
        old = ", ".join(f"'{value.lower()}'" for value in REPLACED)
        is_newer = compose(f"COALESCE(LOWER({{0}}) NOT IN ({old}), TRUE)", (text,), BOOLEAN)
    added, tie, place = (fresh_name(f"{scan.alias}.{name}", taken) for name in ("$added", "$tie", "$place"))
    rows: Node = replace(scan, columns=tuple((field, name) for name, field in columns.items()))
    if is_newer is not None:
        rows = Filter(rows, is_newer)
    hashed = compose(f"XXHASH64({', '.join(f'{{{one}}}' for one in range(len(values)))})", values, BIGINT)
    items = (*kept, Named(is_added, added), Named(hashed, tie))
    by = (OrderKey(order.tree, descending=True, nulls_first=False), OrderKey(column(tie, BIGINT).tree))
    number = Over("ROW_NUMBER", (), tuple(key.tree for key in keys), by)
    ranked = WindowFunctions(Project(rows, items), (Named(Scalar(number, BIGINT), place),))
    first = Filter(ranked, compose("{0} = 1", (column(place, BIGINT),), BOOLEAN))
    present = Filter(first, column(added, BOOLEAN))
    return Project(present, tuple(Named(column(field.name, field.type), field.name) for field, _ in scan.columns))


def _text(value: str) -> Scalar:
    """Returns a text as a literal. Raises ValueError for one that is too long."""
    found = literal(value, STRING)
    if found is None:
        raise ValueError(value)
    return found


def _is_added(operation: Scalar, table: str) -> Scalar:
    """Returns whether a row is added; its evaluation raises an error for an unknown operation."""
    texts = [", ".join(f"'{value.lower()}'" for value in values) for values in (ADDING, REMOVING)]
    known = ", ".join((*ADDING, *REMOVING))
    text = tuple(map(_text, (f"A row of table '{table}' has the operation ", f". It must be one of {known}.", "'")))
    given = "COALESCE(CONCAT({3}, SUBSTRING({0}, 1, 20), {3}), 'NULL')"
    return compose(
        f"CASE WHEN LOWER({{0}}) IN ({texts[0]}) THEN TRUE WHEN LOWER({{0}}) IN ({texts[1]}) THEN FALSE "
        f"ELSE CAST(raise_error(CONCAT({{1}}, {given}, {{2}})) AS BOOLEAN) END",
        (operation, *text),
        BOOLEAN,
    )
