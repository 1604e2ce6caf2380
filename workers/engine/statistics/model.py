"""The statistics that the planner has before the run. `workers.engine.spark.table_statistics` gathers them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import ParamSpec, TypeVar, cast

from service.contract.reports import HotKey
from service.sql.expressions.scalar import Scalar
from workers.engine.plan.nodes import Node

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_TASK_MEMORY = 128 << 20
"""Bytes for a task of an executor with Spark's default size, 1 GB, and three slots."""


@dataclass(frozen=True)
class TableSize:
    """Size of one table. `rows` is exact if file footers have it (`rows_are_exact`), otherwise estimated from bytes.
    `cached`: an earlier query read the metadata of its files. `is_text`: each read of a row parses it again.
    `row_bytes` is Spark's estimate for a row with all columns (`partitioning.row_bytes`), None if Spark knows only the
    columns that the query reads.
    """

    alias: str
    files: int
    bytes: int
    rows: int
    rows_are_exact: bool
    cached: bool = False
    is_text: bool = False
    row_bytes: int | None = None


@dataclass(frozen=True)
class KeySketch:
    """Statistics of one key of one table, from a limited sample of all its files.

    `distinct_keys` is an estimate for the whole table; `hot_keys` are in descending order of share. `representative` is
    False if the files are sorted by the key and the sample has only the first rows of sorted ranges. `literals` has the
    values of each hot key, a literal per column, for use in plans; None for a key without exact literals.
    """

    alias: str
    columns: tuple[str, ...]
    sampled_rows: int
    distinct_keys: int
    null_share: float
    hot_keys: tuple[HotKey, ...]
    representative: bool = True
    literals: tuple[tuple[Scalar, ...] | None, ...] = ()


@dataclass(frozen=True)
class OrderedKey:
    """The values of an order column in the rows of one hot key.

    `literals` has the values of the key, a literal per column; without columns, the rows are those of the whole table.
    `boundaries` divide the sampled values into parts of about the same size: literals in ascending order, each once.
    `top_share` is the share of the most frequent value, or of NULL, in the sampled rows.
    """

    literals: tuple[Scalar, ...]
    boundaries: tuple[Scalar, ...]
    top_share: float


KeyOrder = tuple[tuple[str, ...], str]
"""The emitted names of the columns of a key, and of an order column, all of one table."""


@dataclass(frozen=True)
class ValueRange:
    """The smallest and the largest value of a column: integers, days since 1970, or decimals without their point.

    `is_whole`: no value is outside of the range; otherwise only a part of the files had the metadata.
    """

    low: int
    high: int
    is_whole: bool = False


@dataclass(frozen=True)
class KeptKeys:
    """The keys of the rows of a table for which the terms of a condition on it are true: by emitted name of a key of
    integers, the smallest and the largest value.
    """

    ranges: Mapping[str, tuple[int, int]]


@dataclass(frozen=True)
class Statistics:
    """All statistics of one query's tables.

    `tables` is by alias; `keys` is by the tuple of emitted column names (`("o.uid",)`, all of one table). `slots` is
    the number of tasks that run at once; `elapsed_ms` the time to gather the statistics. `ranges` is by emitted column
    name, for columns of integers, dates and decimals if the files have ranges. `selectivities` has the share of rows
    that a filter's condition keeps, by its text; `table_shares` the share of each table's rows that its terms on this
    table keep, by alias. `widths` has the bytes of a value in memory, with a margin, by emitted column name, for
    strings of tables that are small enough to be hashed as a whole. `kept_keys` has the keys that the terms of a
    condition keep, for each table, by the condition's text. `warnings` are pairs of a table, or None, and a sentence on
    what was not read. `hashes_blocks`: whether Spark may hash as many objects as the blocks of bitmaps need.
    `is_adaptive`: whether Spark's adaptive execution may split a large task of a join; it is off on streams. `orders`
    has the order of the rows of each hot key, for the windows of the query. `guesses`: groups whose keys have no
    statistics together have an estimate too, which is for reports and not for rules.
    """

    tables: Mapping[str, TableSize]
    keys: Mapping[tuple[str, ...], KeySketch]
    slots: int
    elapsed_ms: int = 0
    ranges: Mapping[str, ValueRange] = field(default_factory=dict)
    task_memory: int = DEFAULT_TASK_MEMORY
    selectivities: Mapping[str, float] = field(default_factory=dict)
    widths: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[tuple[str | None, str], ...] = ()
    hashes_blocks: bool = True
    is_adaptive: bool = True
    orders: Mapping[KeyOrder, tuple[OrderedKey, ...]] = field(default_factory=dict)
    kept_keys: Mapping[str, tuple[KeptKeys, ...]] = field(default_factory=dict)
    table_shares: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    guesses: bool = False
    estimates: Estimates = field(default_factory=lambda: Estimates(), init=False, repr=False, compare=False)
    """Cached estimates that were calculated from these statistics. A changed copy starts with an empty cache."""


class Estimates:
    """The cache of the functions that `once_per_node` wraps, for one set of statistics and so for one planning pass.

    The key of a node is its identity. Hashing it by value would walk its whole subtree each time, and the subtree of a
    query that uses one CTE twice on each of its levels doubles with every level. The cache keeps the nodes, so that no
    identity is reused.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        """The nodes of all results, by identity."""
        self.results: dict[tuple[Hashable, ...], object] = {}
        """By the node's identity, the function and its other arguments."""


def once_per_node(estimate: Callable[P, R]) -> Callable[P, R]:
    """Wraps `estimate` so that it is computed once per node and planning pass; the time is linear in the nodes.

    Its first argument is the node, one of the others is the statistics; the rest must be hashable. All are positional:
    a keyword argument raises TypeError.
    """

    # One stack frame only, since the recursion is as deep as the plan.
    @wraps(estimate)
    def remembered(*args: P.args, **kwargs: P.kwargs) -> R:
        if kwargs:
            raise TypeError(f"{estimate.__name__} takes only positional arguments")
        statistics = next(argument for argument in args if isinstance(argument, Statistics))
        node, known = cast("Node", args[0]), statistics.estimates
        key = (id(node), estimate, *(argument for argument in args[1:] if argument is not statistics))
        if key not in known.results:
            known.nodes[id(node)] = node
            known.results[key] = estimate(*args, **kwargs)
        return cast("R", known.results[key])

    return remembered
