"""Random statistics of a plan's tables, each figure determined by the seed and by what it is about.

Nothing depends on the order in which figures are asked for, so that a change of that order changes none.
"""

from __future__ import annotations

from random import Random

from service.contract.reports import HotKey
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import INTEGRAL, DataType, TypeName
from workers.engine.plan.expressions import literal
from workers.engine.plan.nodes import Node, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.required_statistics import statistics_keys
from workers.engine.statistics.cardinality import conditions_of
from workers.engine.statistics.model import KeySketch, Statistics, TableSize, ValueRange

_ROWS = (0, 40, 80_000, 1_000_000, 6_000_000, 6_000_000, 40_000_000, 40_000_000, 900_000_000, 70_000_000_000)
_SAMPLED = 64_000
_RANGED = INTEGRAL | {TypeName.DATE, TypeName.DECIMAL}
_HOT = {
    TypeName.STRING: ("x", "NULL", "a longer value"),
    TypeName.DATE: ("2024-01-01", "2023-07-14", "1970-01-01"),
    TypeName.BOOLEAN: ("true", "false", "true"),
    TypeName.DECIMAL: ("9.99", "0.00", "100.10"),
}
_HOT_NUMBERS = ("7", "9", "-1")
_MOST_IN_WHOLE = {TypeName.BOOLEAN: 3, TypeName.TINYINT: 257}
"""Values that a type has, NULL included."""


def random_statistics(seed: int, plan: Node) -> Statistics:
    """What `seed` knows of the tables of `plan`; one in ten knows nothing."""
    rng = Random(f"statistics {seed}")
    slots, knows_nothing = rng.choice((2, 8, 16, 64, 256)), rng.random() < 0.1
    scans = {node.alias: node for node in walk_up(plan) if isinstance(node, Scan)}
    if knows_nothing:
        return Statistics({}, {}, slots, is_adaptive=rng.random() < 0.9)
    known = [one for one in (_size(seed, scan) for scan in scans.values()) if one is not None]
    sizes = {size.alias: size for size in known}
    types = {field.name: field.type for scan in scans.values() for field, _ in scan.columns}
    sketches = [_sketch(seed, columns, sizes, types) for columns in sorted(statistics_keys(plan))]
    return Statistics(
        sizes,
        {sketch.columns: sketch for sketch in sketches if sketch is not None},
        slots,
        ranges={name: found for name, type_ in types.items() if (found := _range(seed, name, type_)) is not None},
        task_memory=rng.choice((16 << 20, 128 << 20, 4 << 30)),
        selectivities={
            condition.sql: share for condition in conditions_of(plan) if (share := _share(seed, condition)) is not None
        },
        widths={name: width for name, type_ in types.items() if (width := _width(seed, name, type_)) is not None},
        warnings=tuple(_warnings(rng, sorted({scan.table for scan in scans.values()}))),
        hashes_blocks=rng.random() < 0.8,
        is_adaptive=rng.random() < 0.85,
    )


def _size(seed: int, scan: Scan) -> TableSize | None:
    rng = Random(f"size {seed} {scan.table}")
    if rng.random() < 0.03:
        return None
    rows = round(rng.choice(_ROWS) * rng.uniform(0.5, 1.5))
    size = round(rows * rng.choice((8, 30, 200)))
    return TableSize(scan.alias, max(1, size >> 27), size, rows, rng.random() < 0.7, is_text=rng.random() < 0.2)


def _sketch(
    seed: int, columns: tuple[str, ...], sizes: dict[str, TableSize], types: dict[str, DataType]
) -> KeySketch | None:
    alias = columns[0].rpartition(".")[0]
    size, rng = sizes.get(alias), Random(f"sketch {seed} {columns}")
    if size is None or rng.random() < 0.08:
        return None
    most = size.rows
    if len(columns) == 1:
        most = min(most, _MOST_IN_WHOLE.get(types[columns[0]].name, most))
    distinct = rng.choice((most, round(most**0.9), round(most**0.5), min(most, 30)))
    sampled = min(size.rows, _SAMPLED)
    hot, literals = [], []
    for position in range(rng.choice((0, 0, 0, 1, 2, 3)) if size.rows else 0):
        values = [_hot_value(types[column], position) for column in columns]
        is_null = rng.random() < 0.2
        text = ", ".join(["NULL" if is_null else values[0], *values[1:]])
        share = rng.choice((0.001, 0.02, 0.1, 0.3)) * rng.uniform(0.7, 1.0)
        hot.append(HotKey(value=text, share=share, estimated_rows=round(share * size.rows), is_null=is_null))
        found = [literal(value, types[column]) for value, column in zip(values, columns, strict=True)]
        exact: list[Scalar] = [one for one in found if one is not None]
        literals.append(tuple(exact) if len(exact) == len(columns) and not is_null else None)
    order = sorted(range(len(hot)), key=lambda at: -hot[at].share)
    return KeySketch(
        alias,
        columns,
        sampled,
        max(distinct, len(hot)),
        rng.choice((0.0, 0.0, 0.05, 0.6)),
        tuple(hot[at] for at in order),
        representative=rng.random() < 0.9,
        literals=tuple(literals[at] for at in order),
    )


def _hot_value(type_: DataType, position: int) -> str:
    return _HOT.get(type_.name, _HOT_NUMBERS)[position]


def _range(seed: int, name: str, type_: DataType) -> ValueRange | None:
    rng = Random(f"range {seed} {name}")
    if type_.name not in _RANGED or rng.random() < 0.35:
        return None
    low = rng.choice((0, 1, -50))
    return ValueRange(low, low + rng.choice((10, 100, 30_000, 5_000_000)), rng.random() < 0.8)


def _share(seed: int, condition: Scalar) -> float | None:
    rng = Random(f"share {seed} {condition.sql}")
    return None if rng.random() < 0.4 else rng.choice((0.0, 0.001, 0.1, 0.5, 1.0))


def _width(seed: int, name: str, type_: DataType) -> float | None:
    rng = Random(f"width {seed} {name}")
    return rng.choice((12.0, 90.0)) if type_.name is TypeName.STRING and rng.random() < 0.5 else None


def _warnings(rng: Random, tables: list[str]) -> list[tuple[str | None, str]]:
    if rng.random() < 0.9:
        return []
    return [(rng.choice((None, *tables)), "The footer of a file could not be read.")]
