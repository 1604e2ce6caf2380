"""Statistics of tiny tables for which `skewed_windows` splits every window that it can split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from service.contract.reports import HotKey
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import DataType
from workers.engine.plan.expressions import literal
from workers.engine.plan.nodes import Node, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.required_statistics import statistics_keys, window_orders
from workers.engine.statistics.model import KeySketch, OrderedKey, Statistics, TableSize

Row = Sequence[Any]
Columns = tuple[str, ...]


def window_statistics(plan: Node, rows: Mapping[str, Sequence[Row]], names: Mapping[str, Columns]) -> Statistics:
    """Returns statistics by which the most frequent key of every window is hot, and each value of its order column
    begins a range. `rows` and the `names` of their columns are by table.
    """
    scans = {scan.alias: scan for scan in walk_up(plan) if isinstance(scan, Scan)}
    sizes = {alias: TableSize(alias, 1, 1 << 20, len(rows[scan.table]), True) for alias, scan in scans.items()}

    def values(emitted: str) -> tuple[list[Any], DataType]:
        scan = next(one for one in scans.values() if emitted in {field.name for field, _ in one.columns})
        field, name = next(pair for pair in scan.columns if pair[0].name == emitted)
        place = names[scan.table].index(name)
        return [row[place] for row in rows[scan.table]], field.type

    def are_of_one_table(key: Columns) -> bool:
        return any(set(key) <= {field.name for field, _ in scan.columns} for scan in scans.values())

    def hottest(key: Columns) -> tuple[tuple[Any, ...], tuple[Scalar, ...] | None]:
        columns = [values(name) for name in key]
        counted = Counter(zip(*(found for found, _ in columns), strict=True))
        top = counted.most_common(1)[0][0]
        return top, _literals(top, [type_ for _, type_ in columns])

    keys, orders = {}, {}
    ordered = window_orders(plan)
    for key in statistics_keys(plan) | {key for key, _ in ordered if key}:
        alias = next(one for one, scan in scans.items() if key[0] in {field.name for field, _ in scan.columns})
        # Nested keys have no sketch.
        if not are_of_one_table(key) or not rows[scans[alias].table]:
            continue
        if not all(values(name)[1].is_atomic for name in key):
            continue
        top, literals = hottest(key)
        hot = HotKey(value=", ".join(map(str, top)), share=0.9, estimated_rows=len(rows[scans[alias].table]))
        keys[key] = KeySketch(alias, key, 100, 3, 0.0, (hot,), literals=(literals,))
    for key, order in ordered:
        # Ranges are those of the rows of one table.
        if not are_of_one_table((*key, order)):
            continue
        found, type_ = values(order)
        if not all(values(name)[1].is_atomic for name in key):
            continue
        top, literals = hottest(key) if key and found else ((), ())
        if literals is None:
            continue
        of_key = (
            set(found)
            if not key
            else {
                value
                for value, *own in zip(found, *(values(name)[0] for name in key), strict=True)
                if tuple(own) == top
            }
        )
        boundaries = _literals(sorted(value for value in of_key if value is not None)[1:], [type_] * len(found))
        orders[key, order] = (OrderedKey(literals, boundaries or (), 0.1),)
    return Statistics(sizes, keys, 2, orders=orders)


def _literals(values: Sequence[Any], types: Sequence[DataType]) -> tuple[Scalar, ...] | None:
    found = [literal(value, type_) for value, type_ in zip(values, types, strict=False)]
    return None if None in found else tuple(one for one in found if one is not None)
