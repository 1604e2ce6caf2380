"""How many distinct values a table has, from a sample of it.

How many rows a node emits, and how they spread over the values of a key: estimates, and None where nothing is known.

The rules of thumb are those of System R (Selinger et al., 1979): a condition of which nothing is known keeps a third of
the rows; an equi-join emits |L| * |R| / max(distinct L, distinct R) rows. Keys known to be frequent are multiplied out
one by one, since it is they that make a join's output skewed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from service.contract.query import JoinKind
from service.contract.reports import HotKey
from workers.engine.plan.nodes import (
    ONE_SIDED,
    Aggregate,
    AggregateRole,
    Expand,
    Filter,
    Join,
    Limit,
    Node,
    Project,
    Scan,
    Union,
    Windows,
    columns_below,
    columns_of,
    inputs_of,
    names_of,
)
from workers.engine.plan.traversal import walk_up, with_inputs
from workers.engine.statistics.model import KeySketch, Statistics, once_per_node
from workers.engine.statistics.selectivity import UNKNOWN_CONDITION, share_of

ABUNDANT = 50
"""A value seen more often than this in the sample is taken as known and left out of the extrapolation."""


def estimate_distinct(frequencies: Mapping[int, int], rows: int) -> int:
    """Distinct values among `rows` rows, from a random sample's frequencies: how many values it has j times, by j.

    Duj2a of Haas, Naughton, Seshadri, Stokes (VLDB 1995) and Haas, Stokes (1998), on Duj1, which PostgreSQL's ANALYZE
    uses: D = n d / (n - f1 + f1 n / N), with n the sampled rows, d the values among them, f1 those seen once and N the
    rows of the table. Values seen more than 50 times are counted as they are and the rest extrapolated by itself: one
    hot key would else hide that all others are nearly unique. Exact where the sample is the table, and where every
    value is unique. Never below what was seen nor above `rows`.

    >>> estimate_distinct({1: 1000}, rows=50_000)
    50000
    >>> estimate_distinct({100: 10}, rows=50_000)
    10
    """
    seen = sum(frequencies.values())
    sampled = sum(times * values for times, values in frequencies.items())
    rare = {times: values for times, values in frequencies.items() if times <= ABUNDANT}
    rare_values = sum(rare.values())
    rare_rows = sum(times * values for times, values in rare.items())
    if not rare_rows or sampled >= rows:
        return min(seen, rows)
    once = rare.get(1, 0)
    # n / N is the same for the rare rows as for all.
    estimate = rare_rows * rare_values / (rare_rows - once + once * sampled / rows)
    return max(seen, min(rows, round(estimate) + seen - rare_values))


NULL_KEY = "NULL"
"""How NULL is told; the text NULL is told as 'NULL', in quotes."""

MOST_ROWS = 1e100
"""The largest estimate. Each join may multiply rows: without a bound, an estimate of many joins is infinite, and the
difference of two such estimates is not a number."""

_LEFT_KEPT = frozenset({JoinKind.LEFT, JoinKind.FULL})
_RIGHT_KEPT = frozenset({JoinKind.RIGHT, JoinKind.FULL})


@dataclass(frozen=True)
class KeyProfile:
    """How `rows` rows spread over `distinct` values of a key. `hot` has the rows of the most frequent ones, descending;
    the others are taken to be even. `nulls` are the hot ones that have a NULL in them; `hot_at_most` says that the hot
    ones may have fewer rows, by a condition of which nothing is known.
    """

    rows: float
    distinct: float
    hot: tuple[tuple[str, float], ...]
    nulls: frozenset[str] = frozenset()
    hot_at_most: bool = False

    @property
    def other_rows(self) -> float:
        """Rows of all values but the hot ones."""
        return max(self.rows - sum(rows for _, rows in self.hot), 0.0)

    @property
    def other_values(self) -> float:
        """Number of values but the hot ones."""
        return max(self.distinct - len(self.hot), 0.0)

    @property
    def even_rows(self) -> float:
        """Rows of a value that is not hot."""
        return self.other_rows / self.other_values if self.other_values else 0.0

    def scaled(self, factor: float) -> KeyProfile:
        """Every value's rows times `factor`; values that are left with less than a row drop out in proportion."""
        even = self.even_rows * factor
        values = self.other_values * min(even, 1.0) if self.other_values else 0.0
        hot = tuple((value, bounded(rows * factor)) for value, rows in self.hot)
        return replace(self, rows=bounded(self.rows * factor), distinct=values + len(hot), hot=hot)

    def filtered(self, share: float) -> KeyProfile:
        """What a condition that keeps `share` of the rows leaves at worst: all rows of the hot values, which may be
        what it asks for, and `share` of the others'.
        """
        others = replace(self, rows=self.other_rows, distinct=self.other_values, hot=()).scaled(share)
        hot_rows = self.rows - self.other_rows
        return replace(
            self, rows=others.rows + hot_rows, distinct=others.distinct + len(self.hot), hot_at_most=bool(self.hot)
        )


def bounded(rows: float) -> float:
    """An estimate that is not beyond `MOST_ROWS`."""
    return min(rows, MOST_ROWS)


def estimate_rows(node: Node, statistics: Statistics) -> int | None:
    """Rows that `node` emits; None where a table's size or a key's distinct values are not known."""
    rows = _rows(node, statistics)
    return None if rows is None else round(rows)


@once_per_node
def profile_of(node: Node, columns: tuple[str, ...], statistics: Statistics) -> KeyProfile | None:
    """How the rows that `node` emits spread over `columns`, all of one table; None where that is not known.

    Columns that only have another name here than in the table count as the table's.
    """
    match node:
        case Union() | Project() if node.stands_for is not None:
            return profile_of(node.stands_for, columns, statistics)
        case Scan():
            return _scan_profile(node, columns, statistics)
        case Filter():
            below = profile_of(node.input, columns, statistics)
            return below and below.filtered(share_of(node.condition, statistics))
        case Join():
            return _join_profile(node, columns, statistics)
        case Project():
            renamed = columns_below(node.items, columns)
            return profile_of(node.input, renamed, statistics) if renamed else None
        case Aggregate():
            return _group_profile(node, columns, statistics)
        case Union():
            return None
        case Limit():
            below = profile_of(node.input, columns, statistics)
            return below and below.scaled(min(node.count / below.rows, 1.0) if below.rows else 1.0)
        case Expand():
            below = profile_of(node.input, columns, statistics)
            return below and below.scaled(node.branches)
        case Windows():
            below = profile_of(node.input, columns, statistics)
            return below and below.scaled(node.size_ms / node.slide_ms)
        case _:
            return profile_of(node.input, columns, statistics)


@once_per_node
def bytes_per_row(node: Node, statistics: Statistics) -> float:
    """Bytes of a row of `node`, taking each table's rows at their size in its files."""
    sizes = (
        statistics.tables.get(scan.alias) for scan in walk_up(in_one_piece(node, statistics)) if isinstance(scan, Scan)
    )
    return sum(size.bytes / size.rows for size in sizes if size is not None and size.rows)


@once_per_node
def in_one_piece(node: Node, statistics: Statistics) -> Node:
    """The tree with each node that stands for another one replaced by that one: what it computes, not how it runs."""
    if isinstance(node, Union | Project) and node.stands_for is not None:
        return in_one_piece(node.stands_for, statistics)
    return with_inputs(node, tuple(in_one_piece(child, statistics) for child in inputs_of(node)))


def joined_profile(side: KeyProfile, other: KeyProfile, inner: bool) -> KeyProfile:
    """What a join of rows with these keys puts out, by the key; rows without a partner stay unless it is `inner`."""
    return _product(side, other, inner)


@once_per_node
def _rows(node: Node, statistics: Statistics) -> float | None:
    match node:
        case Scan():
            size = statistics.tables.get(node.alias)
            return None if size is None else float(size.rows)
        case Join():
            return _join_rows(node, statistics)
        case Aggregate():
            return _groups(node, statistics)
        case Union() | Project() if node.stands_for is not None:
            return _rows(node.stands_for, statistics)
        case Union():
            rows = [_rows(branch, statistics) for branch in node.inputs]
            return None if None in rows else sum(count for count in rows if count is not None)
        case _:
            below = _rows(node.input, statistics)
            if below is None:
                return None
            if isinstance(node, Filter):
                return below * share_of(node.condition, statistics)
            if isinstance(node, Expand):
                return below * node.branches
            if isinstance(node, Windows):
                return below * node.size_ms / node.slide_ms
            return min(below, node.count) if isinstance(node, Limit) else below


def _groups(node: Aggregate, statistics: Statistics) -> float | None:
    if not node.keys:
        return 1.0
    if node.grouping_sets:
        return _groups_of_sets(node, statistics)
    names = {key.name for key in node.keys}
    partials = [part for part in walk_up(node.input) if isinstance(part, Aggregate)]
    # The groups of a final aggregate are those of its partial one without the buckets.
    whole = partials[-1] if node.role is AggregateRole.FINAL and partials else node
    columns = columns_of(key.expression for key in whole.keys if key.name in names)
    profile = profile_of(whole.input, columns, statistics) if columns else None
    return None if profile is None else profile.distinct


def _groups_of_sets(node: Aggregate, statistics: Statistics) -> float | None:
    sets = (tuple(node.keys[position] for position in one) for one in node.grouping_sets)
    groups = [_groups(replace(node, keys=keys, grouping_sets=()), statistics) for keys in sets]
    return None if None in groups else sum(count for count in groups if count is not None)


def _group_profile(node: Aggregate, columns: tuple[str, ...], statistics: Statistics) -> KeyProfile | None:
    """Groups by all of their keys: each has one row. By some of them, how many rows each has is not known."""
    keys = columns_below(node.keys, columns)
    if node.grouping_sets or keys is None or set(columns) != {key.name for key in node.keys}:
        return None
    below = profile_of(node.input, keys, statistics)
    return None if below is None else KeyProfile(below.distinct, below.distinct, ())


def _scan_profile(scan: Scan, columns: tuple[str, ...], statistics: Statistics) -> KeyProfile | None:
    sketch, size = statistics.keys.get(columns), statistics.tables.get(scan.alias)
    if sketch is None or size is None or sketch.alias != scan.alias:
        return None
    return _sketch_profile(sketch, size.rows)


def _sketch_profile(sketch: KeySketch, rows: int) -> KeyProfile:
    hot = tuple((label_of(key), key.share * rows) for key in sketch.hot_keys)
    nulls = frozenset(label_of(key) for key in sketch.hot_keys if key.is_null)
    return KeyProfile(float(rows), float(max(sketch.distinct_keys, len(hot))), hot, nulls)


def label_of(key: HotKey) -> str:
    """How a profile names a hot key."""
    looks_null = NULL_KEY in key.value.split(", ")
    return f"'{key.value}'" if looks_null and not key.is_null else key.value


def _join_rows(join: Join, statistics: Statistics) -> float | None:
    left, right = _rows(join.left, statistics), _rows(join.right, statistics)
    if left is None or right is None:
        return None
    matched = bounded(left * right) if join.kind is JoinKind.CROSS else _matched_rows(join, left, right, statistics)
    if join.residual is not None:
        matched *= UNKNOWN_CONDITION
    if join.kind is JoinKind.LEFT_SEMI:
        return min(left, matched)
    if join.kind is JoinKind.LEFT_ANTI:
        return max(left - matched, 0.0)
    kept = [left] if join.kind in _LEFT_KEPT else []
    kept += [right] if join.kind in _RIGHT_KEPT else []
    return max([matched, *kept])


def _matched_rows(join: Join, left_rows: float, right_rows: float, statistics: Statistics) -> float:
    left, right = _key_profiles(join, statistics)
    if left is None or right is None:
        # As if the smaller side's key were unique, and every row of the larger found its partner.
        return max(left_rows, right_rows)
    return _product(left, right, inner=True).rows


def _key_profiles(join: Join, statistics: Statistics) -> tuple[KeyProfile | None, KeyProfile | None]:
    left, right = columns_of(key for key, _ in join.keys), columns_of(key for _, key in join.keys)
    return (
        profile_of(join.left, left, statistics) if left else None,
        profile_of(join.right, right, statistics) if right else None,
    )


def _product(side: KeyProfile, other: KeyProfile, inner: bool) -> KeyProfile:
    """The rows of `side` times their partners in `other`, by value of the join key; a row without keeps itself unless
    the join is `inner`.
    """
    ours, theirs = dict(side.hot), dict(other.hot)
    nulls = side.nulls | other.nulls
    fallback = 0.0 if inner else 1.0
    hot = {
        value: bounded(ours.get(value, side.even_rows) * max(theirs.get(value, other.even_rows), fallback))
        for value in dict.fromkeys([*ours, *theirs])
        if value not in nulls
    }
    if not inner:
        hot |= {value: ours[value] for value in side.nulls}
    widest = max(side.other_values, other.other_values)
    even = bounded(side.other_rows * other.other_rows / widest) if widest else 0.0
    rest = even if inner else max(even, side.other_rows)
    distinct = min(side.distinct, other.distinct) if inner else side.distinct
    ordered = tuple(sorted(((value, rows) for value, rows in hot.items() if rows), key=lambda item: -item[1]))
    total = bounded(rest + sum(rows for _, rows in ordered))
    at_most = bool(ordered) and (side.hot_at_most or other.hot_at_most)
    return KeyProfile(total, max(distinct, len(ordered)), ordered, frozenset() if inner else side.nulls, at_most)


def _join_profile(join: Join, columns: tuple[str, ...], statistics: Statistics) -> KeyProfile | None:
    """The profile of columns of one side behind a join: value by value where they are its key, else all alike."""
    from_left = set(columns) <= names_of(join.left)
    side = join.left if from_left else join.right
    profile, rows = profile_of(side, columns, statistics), _rows(join, statistics)
    if profile is None or rows is None or not profile.rows:
        return profile
    if join.kind not in ONE_SIDED and columns == columns_of(key[0 if from_left else 1] for key in join.keys):
        left, right = _key_profiles(join, statistics)
        other = right if from_left else left
        if other is not None:
            return _product(profile, other, inner=join.kind not in (_LEFT_KEPT if from_left else _RIGHT_KEPT))
    return profile.scaled(rows / profile.rows)
