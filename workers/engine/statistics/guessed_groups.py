"""The number of groups whose keys have no statistics together: keys of several tables, and computed ones.

Reports have it, and so does the choice how a result is written. No rule has it: a rule leaves a query as it is rather
than relying on it. The values of each key are
multiplied, those of a table up to its rows. Of N possible groups, n rows occupy N (1 - (1 - 1/N)^n) on average, which
is about N (1 - e^(-n/N)) (Cardenas, CACM 18(5), 1975).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from service.sql.expressions.scalar import Scalar
from workers.engine.plan.nodes import Node, Scan, scanned_columns
from workers.engine.plan.traversal import walk_up
from workers.engine.statistics.model import Statistics


def guessed_groups(rows: Node, keys: Iterable[Scalar], count: float, statistics: Statistics) -> float | None:
    """Returns the number of groups of the `count` rows of a node, by `keys`: at most `count`. None if nothing is known
    about any of the keys.
    """
    columns = dict.fromkeys(name for key in keys for name in key.columns)
    found = {name: scanned_columns(rows, (name,)) for name in columns}
    scans = [part for part in walk_up(rows) if isinstance(part, Scan)]
    alias_of = {field.name: scan.alias for scan in scans for field, _ in scan.columns}
    scanned_names = {name for names in found.values() if names is not None for name in names}
    if not any((name,) in statistics.keys or name in statistics.ranges for name in scanned_names):
        return None
    possible, by_table = 1.0, defaultdict[str, float](lambda: 1.0)
    for scanned in found.values():
        if scanned is None or scanned[0] not in alias_of:
            # Nothing is known about computed values.
            possible *= math.sqrt(count)
        else:
            by_table[alias_of[scanned[0]]] *= _values(scanned[0], alias_of[scanned[0]], statistics)
    for alias, values in by_table.items():
        possible *= min(values, _rows(alias, statistics))
    possible = max(min(possible, 1e100), 1.0)
    return min(count, possible * -math.expm1(-count / possible))


def _values(column: str, alias: str, statistics: Statistics) -> float:
    sketch, found = statistics.keys.get((column,)), statistics.ranges.get(column)
    if sketch is not None:
        return float(max(sketch.distinct_keys, 1))
    return _rows(alias, statistics) if found is None else float(found.high - found.low + 1)


def _rows(alias: str, statistics: Statistics) -> float:
    size = statistics.tables.get(alias)
    return float(size.rows) if size is not None and size.rows else 1.0
