"""The costs of the five join algorithms, the memory that a hashed side needs, and what is forced for a join.

The unit of costs is that of `workers.engine.rules.cost`. For l and r rows on s slots:

    sort-merge        (l + r)/s sent, then both hottest tasks sorted and merged     SORTED each row
    shuffled hash     (l + r)/s sent, then one hashed and the other looked up       HASHED the build side's rows
    broadcast hash    r gathered, hashed and sent by the driver, l/s looked up      GATHERED each build row, on one task

Spark's adaptive execution replaces a sort-merge whose side has less than 10 MB after the shuffle by a broadcast of this
side: nothing is sorted then.

Memory is estimated from the largest number of rows that a side can have, since a wrong guess about a condition would
end the query. This bound is not known for a side with a join below, nor for one with strings that were not measured.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from service.contract.options import JoinLocal, JoinSettings, JoinShip, JoinSkew
from service.contract.query import GeneratorFunction
from service.sql.expressions.scalar import Scalar
from service.sql.joins import refusal_of_local, refusal_of_ship
from service.sql.types.data_types import NUMERIC, TEMPORAL, TypeName
from workers.engine.plan.nodes import (
    Aggregate,
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
    output_of,
    scanned_columns,
)
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.cost import Cost, hottest_task, key_profile
from workers.engine.statistics.cardinality import (
    KeyProfile,
    bounded,
    bytes_per_row,
    estimate_rows,
    rows_made,
    share_before_join,
)
from workers.engine.statistics.model import Statistics, once_per_node
from workers.engine.statistics.partitioning import BROADCAST_BYTES, broadcast_side

SORTED = 3.0
HASHED = 2.0
GATHERED = 3.0
"""Weights of a row that is sorted, hashed or gathered; a row that is sent or looked up has weight 1."""

ROW_BYTES = 48
"""Bytes of a hashed row without its values: header, key, pointers (`UnsafeHashedRelation`, `LongToUnsafeRowMap`)."""
_DECODED = 3
"""Bytes in memory for one byte in a compressed file."""
_COALESCED = 256 << 20
"""Bytes in memory of a partition that AQE has coalesced (`advisoryPartitionSizeInBytes` of 64 MB, decoded)."""
_PARTITIONS_PER_SLOT = 2
"""`spark.sql.shuffle.partitions` per slot, as workers set it."""
_MARGIN = 2
BROADCAST_PARTS = 4
"""A broadcast may use a task's memory divided by this number: the rest is for everything else."""
_ALL_BROADCASTS = 2
"""How many times the limit of one broadcast all broadcasts of a query may use together."""
_BOUNDED = NUMERIC | TEMPORAL | {TypeName.BOOLEAN, TypeName.NULL}
_UNMEASURED = 512
"""Bytes assumed for a string, or any value without a bound, in addition to its size in the files."""


EXPECTED_BROADCAST = "Spark is expected to find during the run that a side is small, and to broadcast it"
"""Why a rule leaves a join to adaptive execution, without a full stop."""


class ForcedStrategy(NamedTuple):
    """The ship and the local strategy that query or settings force for a join."""

    ship: JoinShip = JoinShip.AUTO
    local: JoinLocal = JoinLocal.AUTO

    @property
    def may_broadcast(self) -> bool:
        """Whether AUTO may isolate hot keys. Users force a shuffle if broadcasts ran out of memory."""
        return self == NOT_FORCED

    @property
    def may_sort(self) -> bool:
        """Whether hot keys may be salted, which requires sort-merge. A forced hash table takes precedence."""
        return self.local in {JoinLocal.AUTO, JoinLocal.SORT_MERGE}

    @property
    def text(self) -> str:
        """The strategy as a part of a sentence: `REPARTITION with SORT_MERGE`."""
        return " with ".join(choice.value for choice in self if choice.value != JoinShip.AUTO.value)


NOT_FORCED = ForcedStrategy()
"""Nothing is forced: the rules choose how the join runs."""


def forced_strategy(join: Join, settings: JoinSettings) -> ForcedStrategy:
    """Returns what the query forces for `join`; what it leaves open has the value of the settings."""
    own = join.strategy
    ship, local = (own.ship, own.local) if own.forced is None else own.forced
    return ForcedStrategy(
        settings.ship if ship is JoinShip.AUTO else ship, settings.local if local is JoinLocal.AUTO else local
    )


def skew_of(join: Join, skew: JoinSkew) -> JoinSkew:
    """Returns the skew strategy of `join`: its own, or `skew`, the settings' value."""
    own = join.strategy.skew
    return skew if own is JoinSkew.AUTO else own


def with_choice(join: Join, ship: JoinShip, local: JoinLocal, forced: ForcedStrategy) -> Join:
    """Returns `join` with the strategy that a rule chose, and a record of what was `forced` for it."""
    return replace(join, strategy=replace(join.strategy, ship=ship, local=local, forced=forced))


class JoinAlgorithm(StrEnum):
    """A pair of ship and local strategy. Spark supports these five."""

    SORT_MERGE = "SORT_MERGE"
    HASH_LEFT = "HASH_LEFT"
    HASH_RIGHT = "HASH_RIGHT"
    BROADCAST_LEFT = "BROADCAST_LEFT"
    BROADCAST_RIGHT = "BROADCAST_RIGHT"

    @property
    def pair(self) -> tuple[JoinShip, JoinLocal]:
        """The ship and the local strategy."""
        return _PAIRS[self]


_PAIRS = {
    JoinAlgorithm.SORT_MERGE: (JoinShip.REPARTITION, JoinLocal.SORT_MERGE),
    JoinAlgorithm.HASH_LEFT: (JoinShip.REPARTITION, JoinLocal.HASH_LEFT),
    JoinAlgorithm.HASH_RIGHT: (JoinShip.REPARTITION, JoinLocal.HASH_RIGHT),
    JoinAlgorithm.BROADCAST_LEFT: (JoinShip.BROADCAST_LEFT, JoinLocal.HASH_LEFT),
    JoinAlgorithm.BROADCAST_RIGHT: (JoinShip.BROADCAST_RIGHT, JoinLocal.HASH_RIGHT),
}


@dataclass(frozen=True)
class JoinSide:
    """The size of one side of a join.

    `rows` is the estimate, `max_rows` the largest possible number (None: not known, or rows have no largest size),
    `width` the bytes of a hashed row, `keys` how rows are distributed over the join key (None: not known). `is_exact`:
    no condition and no aggregate affects `rows`. `min_width` is `width` without the guessed part; `other_broadcasts`
    the estimated bytes that joins below, on both sides, broadcast and that stay in memory at the same time.
    """

    rows: float
    max_rows: float | None
    width: float
    keys: KeyProfile | None
    is_exact: bool
    min_width: float = 0.0
    other_broadcasts: float = 0.0

    def hottest_task(self, slots: int) -> float:
        """Returns the rows of the busiest task after a shuffle by the key."""
        return self.rows / slots if self.keys is None else hottest_task(self.keys, slots)

    def fits_in_broadcast(self, statistics: Statistics) -> bool:
        """Whether a broadcast of this side is certain to fit in memory together with the broadcasts below."""
        if self.max_rows is None:
            return False
        size, limit = self.max_rows * self.width, broadcast_limit(statistics)
        return size <= limit and size + self.other_broadcasts <= _ALL_BROADCASTS * limit

    @property
    def min_bytes(self) -> float:
        """Bytes in memory of the estimated rows; strings that were not measured count as empty."""
        return self.rows * self.min_width

    @property
    def shuffled_bytes(self) -> float:
        """Bytes of the estimated rows in a shuffle, at most; strings that were not measured have a guessed length."""
        return self.rows * (self.width - ROW_BYTES + 8)

    def may_fit_in_broadcast(self, statistics: Statistics) -> bool:
        """Whether, by what is known, a broadcast is expected to fit in memory together with the broadcasts below."""
        limit = broadcast_limit(statistics)
        return self.min_bytes <= limit and self.min_bytes + self.other_broadcasts <= _ALL_BROADCASTS * limit

    def is_too_large(self, statistics: Statistics) -> bool:
        """Whether, by what is known, it does not fit in a task's memory."""
        return self.min_bytes > statistics.task_memory

    def fits_in_task(self, statistics: Statistics) -> bool:
        """Whether the rows of any task, with the most frequent key among them, are certain to fit in its memory."""
        if self.max_rows is None or self.keys is None:
            return False
        whole = self.max_rows * self.width
        part = max(min(whole / statistics.slots, _COALESCED), whole / (_PARTITIONS_PER_SLOT * statistics.slots))
        hot = self.keys.hot[0][1] * self.width if self.keys.hot else 0.0
        return (part + hot) * _MARGIN <= statistics.task_memory


def broadcast_limit(statistics: Statistics) -> float:
    """Returns the bytes that one broadcast may use."""
    return statistics.task_memory / BROADCAST_PARTS


@once_per_node
def join_sides(join: Join, statistics: Statistics, above: tuple[Scalar, ...] = ()) -> tuple[JoinSide, JoinSide] | None:
    """Returns both sides of `join`, after the conditions `above` it; None if the size of one is not known."""
    left = _side(join.left, tuple(key for key, _ in join.keys), statistics, above)
    right = _side(join.right, tuple(key for _, key in join.keys), statistics, above)
    if left is None or right is None:
        return None
    broadcasts = broadcast_bytes(join.left, statistics) + broadcast_bytes(join.right, statistics)
    return replace(left, other_broadcasts=broadcasts), replace(right, other_broadcasts=broadcasts)


def broadcast_input(ship: JoinShip, sides: tuple[JoinSide, JoinSide]) -> JoinSide:
    """Returns the one of `sides` that `ship`, a broadcast, broadcasts."""
    return sides[0] if ship is JoinShip.BROADCAST_LEFT else sides[1]


def is_too_large_to_broadcast(join: Join, ship: JoinShip, statistics: Statistics) -> bool:
    """Whether the side that Spark would broadcast because its files are small does not fit in memory."""
    sides = join_sides(join, statistics)
    return sides is not None and broadcast_input(ship, sides).is_too_large(statistics)


@once_per_node
def broadcast_bytes(node: Node, statistics: Statistics) -> float:
    """Returns the estimated bytes that the joins of `node` broadcast."""
    ships = ((part, broadcast_side(part, statistics)) for part in walk_up(node) if isinstance(part, Join))
    sides = (join.left if ship is JoinShip.BROADCAST_LEFT else join.right for join, ship in ships if ship is not None)
    return sum((estimate_rows(side, statistics) or 0) * hashed_bytes(side, statistics) for side in sides)


def possible_algorithms(join: Join, ship: JoinShip, local: JoinLocal) -> tuple[JoinAlgorithm, ...]:
    """Returns the algorithms that Spark supports for this kind of join and that agree with what is forced."""
    has_keys = bool(join.keys)

    def is_possible(algorithm: JoinAlgorithm) -> bool:
        its_ship, its_local = algorithm.pair
        agrees = ship in {JoinShip.AUTO, its_ship} and local in {JoinLocal.AUTO, its_local}
        allowed = refusal_of_ship(join.kind, its_ship, has_keys) is None
        return agrees and allowed and (not has_keys or refusal_of_local(join.kind, its_local, has_keys) is None)

    return tuple(algorithm for algorithm in JoinAlgorithm if is_possible(algorithm))


def cost_of(algorithm: JoinAlgorithm, left: JoinSide, right: JoinSide, slots: int) -> Cost:
    """Returns the cost of one algorithm."""
    if algorithm in {JoinAlgorithm.BROADCAST_LEFT, JoinAlgorithm.BROADCAST_RIGHT}:
        build, probe = (left, right) if algorithm is JoinAlgorithm.BROADCAST_LEFT else (right, left)
        part = probe.rows / slots
        return Cost(GATHERED * build.rows + part, build.rows * slots, part)
    sent = left.rows + right.rows
    hottest = left.hottest_task(slots), right.hottest_task(slots)
    hashed = {JoinAlgorithm.HASH_LEFT: (HASHED, 1.0), JoinAlgorithm.HASH_RIGHT: (1.0, HASHED)}
    weights = hashed.get(algorithm, (SORTED, SORTED))
    joined = sum(rows * weight for rows, weight in zip(hottest, weights, strict=True))
    return Cost(sent / slots + joined, sent, sum(hottest))


def adaptive_broadcast(
    join: Join, sides: tuple[JoinSide, JoinSide], statistics: Statistics
) -> tuple[JoinAlgorithm, Cost] | None:
    """Returns the broadcast by which adaptive execution is expected to replace a sort-merge during the run, because a
    side is small after its conditions, and the cost of the join then: both sides are sent, and nothing is sorted. None
    if no broadcast is expected, or if it would gain nothing.
    """
    left, right = sides
    slots, builds = statistics.slots, {JoinAlgorithm.BROADCAST_LEFT: left, JoinAlgorithm.BROADCAST_RIGHT: right}
    small = [
        algorithm
        for algorithm in possible_algorithms(join, JoinShip.AUTO, JoinLocal.AUTO)
        if algorithm in builds
        and builds[algorithm].shuffled_bytes < BROADCAST_BYTES
        # Spark does not broadcast a side of which most partitions are empty.
        and builds[algorithm].rows >= _PARTITIONS_PER_SLOT * slots
    ]
    if not small or not statistics.is_adaptive:
        return None
    algorithm = min(small, key=lambda one: builds[one].rows)
    joined = cost_of(algorithm, left, right, slots)
    sent = left.rows + right.rows
    cost = Cost(sent / slots + joined.slowest, sent + joined.shuffled, joined.hottest_task)
    is_gain = cost.slowest < cost_of(JoinAlgorithm.SORT_MERGE, left, right, slots).slowest
    return (algorithm, cost) if is_gain else None


def _side(node: Node, keys: tuple[Scalar, ...], statistics: Statistics, above: tuple[Scalar, ...]) -> JoinSide | None:
    rows = estimate_rows(node, statistics)
    if rows is None:
        return None
    share = share_before_join(node, above, statistics)
    profile = key_profile(node, keys, statistics)
    is_exact = share == 1 and not any(isinstance(part, Filter | Join | Aggregate | Limit) for part in walk_up(node))
    most = None if _unmeasured(node, statistics) else max_rows(node, statistics)
    width, least = hashed_bytes(node, statistics), min_hashed_bytes(node, statistics)
    return JoinSide(rows * share, most, width, profile and profile.scaled(share), is_exact, least)


@once_per_node
def max_rows(node: Node, statistics: Statistics) -> float | None:
    """Returns the most rows that `node` can emit; None if a table's rows are estimated, or a join multiplies them."""
    match node:
        case Scan():
            size = statistics.tables.get(node.alias)
            return float(size.rows) if size is not None and size.rows_are_exact else None
        case Values():
            return float(len(node.rows))
        case Join() | Recursion() | StepRows():
            return None
        case Union():
            branches = [max_rows(branch, statistics) for branch in node.inputs]
            return None if None in branches else sum(rows for rows in branches if rows is not None)
        case MultisetOperation():
            return max_rows(node.left, statistics)
        case Generate() if node.function not in {GeneratorFunction.STACK, GeneratorFunction.JSON_TUPLE}:
            return None
        case Aggregate() if not node.keys:
            return 1.0
        case Aggregate() if node.grouping_sets:
            grouped = max_rows(node.input, statistics)
            return None if grouped is None else max(grouped, 1.0) * len(node.grouping_sets)
        case _:
            below = max_rows(node.input, statistics)
            if below is None:
                return None
            if isinstance(node, Expand):
                return below * node.branches
            if isinstance(node, Generate):
                return below * rows_made(node)
            return node.rows(below) if isinstance(node, Limit) else below


def max_joined_rows(node: Node, statistics: Statistics) -> float | None:
    """Like `max_rows`, but also for joins: as if every pair of rows matched, and each row were also emitted alone."""
    match node:
        case Filter() | Project():
            return max_joined_rows(node.input, statistics)
        case Join():
            left, right = (max_joined_rows(side, statistics) for side in (node.left, node.right))
            return None if left is None or right is None else bounded((left + 1) * (right + 1))
        case _:
            return max_rows(node, statistics)


@once_per_node
def hashed_bytes(node: Node, statistics: Statistics) -> float:
    """Returns the bytes of a row of `node` in a hash table; a guess if a value has no bound and was not measured."""
    unmeasured = len(_unmeasured(node, statistics))
    guessed = unmeasured * _UNMEASURED + _DECODED * bytes_per_row(node, statistics) if unmeasured else 0.0
    return min_hashed_bytes(node, statistics) + guessed


@once_per_node
def min_hashed_bytes(node: Node, statistics: Statistics) -> float:
    """Like `hashed_bytes`, but strings that were not measured count as empty."""
    fields = output_of(node)
    fixed = ROW_BYTES + sum(8 if field.type.name is not TypeName.DECIMAL else 24 for field in fields)
    # The bytes of a string are padded to whole words.
    return fixed + sum(width + 8 for width in _measured(node, statistics).values())


def _unmeasured(node: Node, statistics: Statistics) -> list[str]:
    """Returns the columns of `node` whose values can be long and were not measured. Their size in a file says nothing:
    a string of 200 characters that repeats takes a few bits there, but its full length in each row of a hash table.
    """
    measured = _measured(node, statistics)
    return [name for name in _unbounded(node) if name not in measured]


@once_per_node
def _measured(node: Node, statistics: Statistics) -> dict[str, float]:
    unbounded, widths = _unbounded(node), statistics.widths
    if not unbounded or not widths:
        return {}
    own = {field.name for part in walk_up(node) if isinstance(part, Scan) for field, _ in part.columns}
    origins = {name: name if name in own else _origin(node, name) for name in unbounded}
    return {name: widths[origin] for name, origin in origins.items() if origin in widths}


def _origin(node: Node, name: str) -> str:
    found = scanned_columns(node, (name,))
    return found[0] if found else name


def _unbounded(node: Node) -> list[str]:
    return [field.name for field in output_of(node) if field.type.name not in _BOUNDED]
