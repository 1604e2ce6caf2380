"""Builds aggregates over a join of two tables, for tests of eager aggregation."""

from __future__ import annotations

from service.contract.query import AggregateFunction, JoinKind
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, BOOLEAN, DATE, DOUBLE, INT, STRING, DataType, Field, decimal
from tests.support.scalars import scalar
from workers.engine.plan.nodes import Aggregate, Call, Join, Named, Scan

TYPES: dict[str, DataType] = {
    "k": BIGINT,
    "t": STRING,
    "i": INT,
    "b": BIGINT,
    "x": DOUBLE,
    "m": decimal(10, 2),
    "w": decimal(30, 2),
    "y": decimal(12, 8),
    "d": DATE,
    "q": BOOLEAN,
}


def scan(alias: str) -> Scan:
    """Returns a scan of a table with a column for each of `TYPES`."""
    return Scan(alias, alias, tuple((Field(f"{alias}.{name}", type_), name) for name, type_ in TYPES.items()))


def col(name: str) -> Scalar:
    """Returns a column, such as `l.k`."""
    return column(name, TYPES[name.partition(".")[2]])


def text(sql: str, *names: str, type_: DataType | None = BOOLEAN) -> Scalar:
    """Returns an expression over `names`, which are put in back quotes."""
    for name in dict.fromkeys(names):
        sql = sql.replace(name, f"`{name}`")
    return scalar(sql, type_)


def call(function: str, *arguments: Scalar, distinct: bool = False, where: Scalar | None = None) -> Call:
    """Returns a call named after its function and arguments. FIRST_VALUE and LAST_VALUE are ordered by column `d`."""
    made = AggregateFunction(function)
    of = arguments[0].type if arguments else None
    type_ = of or BIGINT
    if made is AggregateFunction.COUNT:
        type_ = BIGINT
    if made in {AggregateFunction.SUM, AggregateFunction.AVG} and of is not None:
        type_ = BIGINT if of.is_integral and made is AggregateFunction.SUM else DOUBLE
        if of.precision is not None and of.scale is not None:
            more, scale = (10, 0) if made is AggregateFunction.SUM else (4, 4)
            type_ = decimal(of.precision + more, of.scale + scale)
    order = column(f"{arguments[0].columns[0][0]}.d", DATE) if function.endswith("VALUE") else None
    name = "_".join([function.lower(), *(argument.columns[0] for argument in arguments if argument.columns)])
    return Call(made, arguments, Field(name, type_), distinct, where, order)


def joined(
    *calls: Call,
    kind: JoinKind = JoinKind.INNER,
    by: tuple[str, ...] = ("l.t",),
    on: tuple[str, ...] = ("k",),
    residual: Scalar | None = None,
) -> Aggregate:
    """Returns an aggregate with `calls` over `l` joined with `r`."""
    keys = tuple((col(f"l.{name}"), col(f"r.{name}")) for name in on)
    join = Join(scan("l"), scan("r"), kind, keys, residual)
    return Aggregate(join, tuple(Named(col(name), name.replace(".", "_")) for name in by), calls)
