"""Estimates of rows, of distinct values, of the distribution of rows over the values of a key, and of selectivities.

An estimate is None without statistics. The rules of thumb are those of System R (Selinger et al., 1979): a condition
without statistics keeps a third of the rows; an equi-join emits |L| * |R| / max(distinct L, distinct R) rows. Frequent
keys are multiplied one by one, since they make a join's output skewed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from service.contract.query import GeneratorFunction, JoinKind
from service.contract.reports import HotKey
from service.sql.expressions.analysis import is_standard, never_true_of_nulls
from service.sql.expressions.nodes import Connective, Expression, conjuncts
from service.sql.expressions.nodes import columns_of as columns_of_expression
from service.sql.expressions.scalar import Scalar, render
from service.sql.joins import ONE_SIDED
from service.sql.types.signatures import literal_integer
from workers.engine.plan.joined_aggregate import joined_aggregate
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Expand,
    Filter,
    Generate,
    Join,
    Limit,
    MultisetOperation,
    Node,
    Project,
    Recursion,
    Scan,
    StepRows,
    Union,
    Values,
    Windows,
    columns_below,
    columns_of,
    inputs_of,
    names_of,
)
from workers.engine.plan.traversal import walk_up, with_inputs
from workers.engine.statistics.guessed_groups import guessed_groups
from workers.engine.statistics.model import KeptKeys, KeySketch, Statistics, once_per_node

ABUNDANT = 50
"""A value that occurs more often than this in the sample is counted as it is and not extrapolated."""

NULL_KEY = "NULL"
"""The label of NULL; the label of the string NULL is 'NULL', in quotes."""

_STEPS = 10
"""The assumed number of steps of a recursion, each with as many rows as its first query."""
MOST_ROWS = 1e100
"""The largest estimate. Each join may multiply rows: without a bound, an estimate of many joins is infinite, and the
difference of two such estimates is not a number."""

_LEFT_KEPT = frozenset({JoinKind.LEFT, JoinKind.FULL})
_RIGHT_KEPT = frozenset({JoinKind.RIGHT, JoinKind.FULL})

UNKNOWN_ELEMENTS = 4.0
"""The elements of an array or a map without statistics."""

UNKNOWN_CONDITION = 1 / 3
"""Share of the rows that a condition without statistics keeps (Selinger et al., 1979)."""


def estimate_distinct(frequencies: Mapping[int, int], rows: int) -> int:
    """Returns the distinct values among `rows` rows, from the frequencies of a random sample: by j, how many values
    occur j times.

    Duj2a of Haas, Naughton, Seshadri, Stokes (VLDB 1995) and Haas, Stokes (1998), on Duj1, which PostgreSQL's ANALYZE
    uses: D = n d / (n - f1 + f1 n / N), with n the sampled rows, d the values among them, f1 those that occur once and
    N the rows of the table. Values that occur more than 50 times are counted as they are, and the rest is extrapolated
    separately: otherwise one hot key would hide that all others are nearly unique. The result is exact if the sample is
    the table, and if every value is unique; it is never below the values in the sample nor above `rows`.

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


@dataclass(frozen=True)
class KeyProfile:
    """How `rows` rows are distributed over `distinct` values of a key.

    `hot` has the rows of the most frequent values, in descending order; the other values are assumed to be even.
    `nulls` are the hot values with a NULL in them; `hot_at_most`: the hot values may have fewer rows, because of a
    condition without statistics.
    """

    rows: float
    distinct: float
    hot: tuple[tuple[str, float], ...]
    nulls: frozenset[str] = frozenset()
    hot_at_most: bool = False

    @property
    def other_rows(self) -> float:
        """Rows of values that are not hot."""
        return max(self.rows - sum(rows for _, rows in self.hot), 0.0)

    @property
    def other_values(self) -> float:
        """Number of values that are not hot."""
        return max(self.distinct - len(self.hot), 0.0)

    @property
    def even_rows(self) -> float:
        """Rows of a value that is not hot."""
        return self.other_rows / self.other_values if self.other_values else 0.0

    def scaled(self, factor: float) -> KeyProfile:
        """Returns the profile with all rows times `factor`; values with less than a row become fewer values."""
        even = self.even_rows * factor
        values = self.other_values * min(even, 1.0) if self.other_values else 0.0
        hot = tuple((value, bounded(rows * factor)) for value, rows in self.hot)
        return replace(self, rows=bounded(self.rows * factor), distinct=values + len(hot), hot=hot)

    def filtered(self, share: float) -> KeyProfile:
        """Returns the profile after a condition that keeps `share` of the rows, in the worst case: all rows of the hot
        values, which the condition may select, and `share` of the others.
        """
        others = replace(self, rows=self.other_rows, distinct=self.other_values, hot=()).scaled(share)
        hot_rows = self.rows - self.other_rows
        return replace(
            self, rows=others.rows + hot_rows, distinct=others.distinct + len(self.hot), hot_at_most=bool(self.hot)
        )


def rows_made(node: Generate) -> float:
    """Returns the rows that a generator is assumed to make of one row: those of `stack` are known, others are not."""
    if node.function is GeneratorFunction.STACK:
        return literal_integer(node.arguments[0].tree) or 1
    return 1.0 if node.function is GeneratorFunction.JSON_TUPLE else UNKNOWN_ELEMENTS


def bounded(rows: float) -> float:
    """Returns the smaller of `rows` and `MOST_ROWS`."""
    return min(rows, MOST_ROWS)


def estimate_rows(node: Node, statistics: Statistics) -> int | None:
    """Returns the rows that `node` emits; None if a table's size or a key's distinct values are not known."""
    rows = _rows(node, statistics)
    return None if rows is None else round(rows)


@once_per_node
def profile_of(node: Node, columns: tuple[str, ...], statistics: Statistics) -> KeyProfile | None:
    """Returns how the rows that `node` emits are distributed over `columns`, all of one table; None if it is not known.

    Columns that were only renamed count as columns of the table.
    """
    match node:
        case Union() | Project() if node.replaces is not None:
            return profile_of(node.replaces, columns, statistics)
        case Scan():
            return _scan_profile(node, columns, statistics)
        case Filter():
            below = profile_of(node.input, columns, statistics)
            return below and below.filtered(_share_at(node, statistics))
        case Join():
            return _join_profile(node, columns, statistics)
        case Project():
            renamed = columns_below(node.items, columns)
            return profile_of(node.input, renamed, statistics) if renamed else None
        case Aggregate():
            return _group_profile(node, columns, statistics)
        case Union() | MultisetOperation() | Values() | Recursion() | StepRows():
            return None
        case Limit():
            below = profile_of(node.input, columns, statistics)
            return below and below.scaled(node.rows(below.rows) / below.rows if below.rows else 1.0)
        case Expand():
            below = profile_of(node.input, columns, statistics)
            return below and below.scaled(node.branches)
        case Generate():
            below = profile_of(node.input, columns, statistics) if set(columns) <= names_of(node.input) else None
            return below and below.scaled(rows_made(node))
        case Windows():
            below = profile_of(node.input, columns, statistics)
            return below and below.scaled(node.size_ms / node.slide_ms)
        case _:
            return profile_of(node.input, columns, statistics)


@once_per_node
def bytes_per_row(node: Node, statistics: Statistics) -> float:
    """Returns the bytes of a row of `node`, by the size of each table's rows in its files."""
    sizes = (
        statistics.tables.get(scan.alias) for scan in walk_up(original_of(node, statistics)) if isinstance(scan, Scan)
    )
    return sum(size.bytes / size.rows for size in sizes if size is not None and size.rows)


@once_per_node
def original_of(node: Node, statistics: Statistics) -> Node:
    """Returns the plan before rules replaced nodes in it: each node with `replaces` is exchanged for that node."""
    if isinstance(node, Union | Project) and node.replaces is not None:
        return original_of(node.replaces, statistics)
    return with_inputs(node, tuple(original_of(child, statistics) for child in inputs_of(node)))


def joined_profile(side: KeyProfile, other: KeyProfile, inner: bool) -> KeyProfile:
    """Returns the distribution of a join's output over its key; without `inner`, rows without a partner are kept."""
    return _product(side, other, inner)


@once_per_node
def _rows(node: Node, statistics: Statistics) -> float | None:
    match node:
        case Scan():
            size = statistics.tables.get(node.alias)
            return None if size is None else float(size.rows)
        case Values():
            return float(len(node.rows))
        case StepRows():
            return None
        case Recursion():
            first = _rows(node.inputs[0], statistics)
            return None if first is None else bounded(first * _STEPS)
        case Join():
            return _join_rows(node, statistics)
        case Aggregate():
            return _groups(node, statistics)
        case Union() | Project() if node.replaces is not None:
            return _rows(node.replaces, statistics)
        case Union():
            rows = [_rows(branch, statistics) for branch in node.inputs]
            return None if None in rows else sum(count for count in rows if count is not None)
        case MultisetOperation():
            left, right = _rows(node.left, statistics), _rows(node.right, statistics)
            # The most that are possible.
            return left if left is None or right is None or node.kind == "except_all" else min(left, right)
        case _:
            below = _rows(node.input, statistics)
            if below is None:
                return None
            if isinstance(node, Filter):
                return below * _share_at(node, statistics)
            if isinstance(node, Expand):
                return below * node.branches
            if isinstance(node, Generate):
                return bounded(below * rows_made(node))
            if isinstance(node, Windows):
                return below * node.size_ms / node.slide_ms
            return node.rows(below) if isinstance(node, Limit) else below


def _groups(node: Aggregate, statistics: Statistics) -> float | None:
    if not node.keys:
        return 1.0
    if node.grouping_sets:
        return _groups_of_sets(node, statistics)
    names = {key.name for key in node.keys}
    partials = [part for part in walk_up(node.input) if isinstance(part, Aggregate)]
    # A final aggregate has the groups of its partial aggregate, without the buckets.
    whole = partials[-1] if node.role is AggregateRole.FINAL and partials else node
    columns = columns_of(key.expression for key in whole.keys if key.name in names)
    profile = profile_of(whole.input, columns, statistics) if columns else None
    if profile is not None or not statistics.guesses:
        return None if profile is None else profile.distinct
    rows = _rows(whole.input, statistics)
    keys = [key.expression for key in whole.keys if key.name in names]
    return None if rows is None else guessed_groups(whole.input, keys, rows, statistics)


def _groups_of_sets(node: Aggregate, statistics: Statistics) -> float | None:
    sets = (tuple(node.keys[position] for position in one) for one in node.grouping_sets)
    groups = [_groups(replace(node, keys=keys, grouping_sets=()), statistics) for keys in sets]
    return None if None in groups else sum(count for count in groups if count is not None)


def _group_profile(node: Aggregate, columns: tuple[str, ...], statistics: Statistics) -> KeyProfile | None:
    """Returns the distribution of groups over all of their keys, which have one row each; None for some of the keys."""
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
    """Returns the label of a hot key in a profile."""
    looks_null = NULL_KEY in key.value.split(", ")
    return f"'{key.value}'" if looks_null and not key.is_null else key.value


def _join_rows(join: Join, statistics: Statistics) -> float | None:
    left, right = _rows(join.left, statistics), _rows(join.right, statistics)
    if left is None or right is None:
        return None
    matched = bounded(left * right) if not join.keys else _matched_rows(join, left, right, statistics)
    if join.residual is not None:
        matched *= UNKNOWN_CONDITION
    if join.kind is JoinKind.LEFT_SEMI:
        if None in _key_profiles(join, statistics):
            unknown = 1.0 if join.residual is None else UNKNOWN_CONDITION
            return left * _share_left(join, statistics) * unknown
        return min(left, matched)
    if join.kind is JoinKind.LEFT_ANTI:
        return max(left - matched, 0.0)
    kept = [left] if join.kind in _LEFT_KEPT else []
    kept += [right] if join.kind in _RIGHT_KEPT else []
    return max([matched, *kept])


def _share_left(join: Join, statistics: Statistics) -> float:
    """Returns the share of the left rows that a semi-join keeps, without statistics of its keys: the share of its table
    that the right side has. This assumes that the table has each key, and all keys as often.
    """
    table = join.right
    while isinstance(table, Filter | Project):
        table = table.input
    rows, kept = _rows(table, statistics), _rows(join.right, statistics)
    return min(kept / rows, 1.0) if isinstance(table, Scan) and rows and kept is not None else 1.0


def _matched_rows(join: Join, left_rows: float, right_rows: float, statistics: Statistics) -> float:
    left, right = _key_profiles(join, statistics)
    if left is None or right is None:
        # Assumes that the smaller side's key is unique, and every row of the larger side has a partner.
        return max(left_rows, right_rows)
    return _product(left, right, inner=True).rows


def _key_profiles(join: Join, statistics: Statistics) -> tuple[KeyProfile | None, KeyProfile | None]:
    left, right = columns_of(key for key, _ in join.keys), columns_of(key for _, key in join.keys)
    return (
        profile_of(join.left, left, statistics) if left else None,
        profile_of(join.right, right, statistics) if right else None,
    )


def _product(side: KeyProfile, other: KeyProfile, inner: bool) -> KeyProfile:
    """Returns the rows of `side` times their partners in `other`, by value of the join key; without `inner`, rows
    without a partner are kept.
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
    """Returns the profile of columns of one side after a join: by value if they are the join key, otherwise all values
    are scaled by the same factor.
    """
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


@dataclass(frozen=True)
class Terms:
    """The terms of one condition's AND that are on one table. Their selectivity is measured together, since they may
    depend on each other. `columns` are the emitted names in them.
    """

    terms: tuple[Expression, ...]
    columns: frozenset[str]

    @property
    def text(self) -> str:
        """Their text, which identifies them."""
        return " AND ".join(render(term) for term in self.terms)


def conditions_of(plan: Node) -> tuple[Scalar, ...]:
    """Returns the conditions of all filters of `plan`, and of those that aggregation below joins would add."""
    return tuple(dict.fromkeys(condition for node in walk_up(plan) for condition in _conditions_at(node)))


def _conditions_at(node: Node) -> Iterator[Scalar]:
    if isinstance(node, Filter):
        yield node.condition
    over = joined_aggregate(node) if isinstance(node, Aggregate) else None
    if over is not None:
        yield from (part.condition for part in (over.join.left, over.join.right) if isinstance(part, Filter))


def terms_by_table(condition: Scalar, table_of: Mapping[str, str]) -> tuple[dict[str, Terms], int]:
    """Returns the terms of `condition` for each table, by alias, and the number of terms on no table or on several.

    `table_of` has the alias of each emitted column. A condition that no query may contain is one unknown term.
    """
    tree = condition.tree
    if not is_standard(tree):
        return {}, 1
    parts = tree.terms if isinstance(tree, Connective) and tree.operator == "AND" else (tree,)
    found: dict[str, list[Expression]] = {}
    unknown = 0
    for part in parts:
        aliases = {table_of.get(name) for name in columns_of_expression(part)}
        alias = aliases.pop() if len(aliases) == 1 else None
        if alias is None:
            unknown += 1
        else:
            found.setdefault(alias, []).append(part)
    grouped = {
        alias: Terms(tuple(terms), frozenset(name for term in terms for name in columns_of_expression(term)))
        for alias, terms in found.items()
    }
    return grouped, unknown


def combined(shares: list[float | None], unknown: int) -> float | None:
    """Returns the share that a condition keeps if the terms on its tables keep `shares`, assumed to be independent; all
    unknown terms count as one condition. None if all are unknown.
    """
    known = [share for share in shares if share is not None]
    if not known:
        return None
    return math.prod(known) * (UNKNOWN_CONDITION if unknown or len(known) < len(shares) else 1.0)


@once_per_node
def _share_at(node: Filter, statistics: Statistics) -> float:
    """Returns the share of the rows that a filter keeps. Its condition was measured on whole tables. If a table is
    joined by a key of which the other side has only a part of the range, as facts of five years have of a calendar,
    the share is that of the rows in this part.
    """
    share = share_of(node.condition, statistics)
    for kept in statistics.kept_keys.get(node.condition.sql, ()):
        factors = [
            factor
            for join in walk_up(node.input)
            if isinstance(join, Join) and join.kind is JoinKind.INNER
            for pair in join.keys
            for factor in factors_of_range(pair, kept, statistics)
        ]
        share *= max(factors, default=1.0)
    return min(share, 1.0)


def factors_of_range(pair: tuple[Scalar, Scalar], kept: KeptKeys, statistics: Statistics) -> Iterator[float]:
    """Yields how many times as many of the rows in the other side's range are kept as of all rows, if keys are evenly
    distributed over the range of the table, and kept keys over theirs.
    """
    for key, other in (pair, pair[::-1]):
        range_kept = kept.ranges.get(key.column or "")
        whole, others = statistics.ranges.get(key.column or ""), statistics.ranges.get(other.column or "")
        if range_kept is not None and whole is not None and others is not None:
            joined = _overlap((whole.low, whole.high), (others.low, others.high))
            if joined:
                yield _overlap(range_kept, (others.low, others.high)) / joined


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> float:
    """Returns the share of the values of the range `one` that are in `other`."""
    return max(min(one[1], other[1]) - max(one[0], other[0]) + 1, 0) / (one[1] - one[0] + 1)


@once_per_node
def share_before_join(node: Node, above: tuple[Scalar, ...], statistics: Statistics) -> float:
    """Returns the estimated share of the rows of `node`, a side of a join, that the conditions `above` the join keep:
    Spark evaluates what they have on one side before the join.

    If a condition is on several sides, its terms on a table without a sample count as if they kept all rows. So does a
    condition with a term that is true of NULLs: an outer join evaluates it on the rows that it emits.
    """
    names = names_of(node)
    aliases = {part.alias for part in walk_up(node) if isinstance(part, Scan)} if above else set()
    share = 1.0
    for condition in above:
        own = [term for term in conjuncts(condition.tree) if names.issuperset(columns_of_expression(term))]
        if not own or not all(map(never_true_of_nulls, own)):
            continue
        if names >= set(condition.columns):
            share *= share_of(condition, statistics)
        else:
            by_alias = statistics.table_shares.get(condition.sql, {})
            share *= math.prod(kept for alias, kept in by_alias.items() if alias in aliases)
    return share


def share_of(condition: Scalar, statistics: Statistics) -> float:
    """Returns the estimated share of the rows that `condition` keeps, 0 to 1."""
    return statistics.selectivities.get(condition.sql, UNKNOWN_CONDITION)
