"""What is demanded of a join, told apart from what a rule has chosen for it.

What the five ways of running a join cost, and whether the side that would be hashed fits in memory.

Costs are rows handled by the slowest task, all phases added, as in `distinct/aggregate_cost.py`. For l and r rows on s
slots:

    sort-merge        (l + r)/s sent, then both hottest tasks sorted and merged     SORTED each row
    shuffled hash     (l + r)/s sent, then one hashed and the other looked up       HASHED the build side's rows
    broadcast hash    r gathered, hashed and sent by the driver, l/s looked up      GATHERED each build row, on one task

Memory is judged by the most rows that a side can have: what a condition would leave is a guess, and a wrong one ends
the query. A side above a join has no such bound, nor has one with texts that were not measured: no footer tells their
length, but a few rows tell it well enough, with a margin.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from service.contract.options import JoinLocal, JoinShip, JoinSkew
from service.sql.expressions.scalar import Scalar
from service.sql.statements.join_hints import refusal_of_local, refusal_of_ship
from service.sql.types.data_types import NUMERIC, TEMPORAL, TypeName
from workers.engine.plan.nodes import (
    Aggregate,
    Expand,
    Filter,
    Join,
    Limit,
    Node,
    Project,
    Scan,
    Union,
    columns_of,
    output_of,
    scanned_columns,
)
from workers.engine.plan.traversal import walk_up
from workers.engine.rules.distinct.aggregate_cost import Cost, hottest_task
from workers.engine.statistics.cardinality import KeyProfile, bounded, bytes_per_row, estimate_rows, profile_of
from workers.engine.statistics.model import Statistics, once_per_node
from workers.engine.statistics.partitioning import broadcast_side

Demand = tuple[JoinShip, JoinLocal]

NOTHING: Demand = (JoinShip.AUTO, JoinLocal.AUTO)
"""No demand: how the join runs is the rules' to choose."""


def demand_of(join: Join, ship: JoinShip, local: JoinLocal) -> Demand:
    """What the query demands of `join`, and where it does not, the settings, which have `ship` and `local`."""
    own = join.strategy
    own_ship, own_local = (own.ship, own.local) if own.demanded is None else own.demanded
    return ship if own_ship is JoinShip.AUTO else own_ship, local if own_local is JoinLocal.AUTO else own_local


def skew_of(join: Join, skew: JoinSkew) -> JoinSkew:
    """What is to be done about the hot keys of `join`, in a query whose settings have `skew`."""
    own = join.strategy.skew
    return skew if own is JoinSkew.AUTO else own


def with_choice(join: Join, ship: JoinShip, local: JoinLocal, demanded: Demand) -> Join:
    """`join` as a rule wants it to run, which keeps what was demanded of it."""
    return replace(join, strategy=replace(join.strategy, ship=ship, local=local, demanded=demanded))


def demand_text(ship: JoinShip, local: JoinLocal) -> str:
    """A demand for a sentence: `REPARTITION with SORT_MERGE`."""
    return " with ".join(way.value for way in (ship, local) if way.value != JoinShip.AUTO.value)


SORTED = 3.0
HASHED = 2.0
GATHERED = 3.0
"""Weights of a row, in rows that are sent or looked up."""

ROW_BYTES = 48
"""Bytes of a hashed row beside its values: header, key, pointers (`UnsafeHashedRelation`, `LongToUnsafeRowMap`)."""
_DECODED = 3
"""Bytes in memory for one in a compressed file."""
_COALESCED = 256 << 20
"""Bytes in memory of a partition that AQE has put together (`advisoryPartitionSizeInBytes` of 64 MB, decoded)."""
_PARTITIONS_PER_SLOT = 2
"""`spark.sql.shuffle.partitions`, as workers set it."""
_MARGIN = 2
BROADCAST_PARTS = 4
"""Into so many parts a task's memory is cut, of which a broadcast may take one: it is held beside everything else."""
_ALL_BROADCASTS = 2
"""How many such parts those of one query may take together."""
_BOUNDED = NUMERIC | TEMPORAL | {TypeName.BOOLEAN, TypeName.NULL}
_UNMEASURED = 512
"""Bytes taken for a text, and for any value without a bound, beside what files take for it."""


class Way(StrEnum):
    """One of the five pairs of ship and local strategy."""

    SORT_MERGE = "SORT_MERGE"
    HASH_LEFT = "HASH_LEFT"
    HASH_RIGHT = "HASH_RIGHT"
    BROADCAST_LEFT = "BROADCAST_LEFT"
    BROADCAST_RIGHT = "BROADCAST_RIGHT"

    @property
    def pair(self) -> tuple[JoinShip, JoinLocal]:
        """The pair that it is."""
        return _PAIRS[self]


_PAIRS = {
    Way.SORT_MERGE: (JoinShip.REPARTITION, JoinLocal.SORT_MERGE),
    Way.HASH_LEFT: (JoinShip.REPARTITION, JoinLocal.HASH_LEFT),
    Way.HASH_RIGHT: (JoinShip.REPARTITION, JoinLocal.HASH_RIGHT),
    Way.BROADCAST_LEFT: (JoinShip.BROADCAST_LEFT, JoinLocal.HASH_LEFT),
    Way.BROADCAST_RIGHT: (JoinShip.BROADCAST_RIGHT, JoinLocal.HASH_RIGHT),
}


@dataclass(frozen=True)
class JoinSide:
    """What is known of one side of a join.

    `rows` is the estimate, `most` the largest number there can be (None: not known, or rows have no largest size),
    `width` the bytes of a hashed row, `keys` how rows spread over the join key (None: not known). `is_exact`: no
    condition and no group has a say in it. `least_width` is `width` without what is guessed; `beside` the bytes of what
    joins below are estimated to broadcast, on both sides, which stay in memory as long.
    """

    rows: float
    most: float | None
    width: float
    keys: KeyProfile | None
    is_exact: bool
    least_width: float = 0.0
    beside: float = 0.0

    def hottest_task(self, slots: int) -> float:
        """Rows of the busiest task behind a shuffle by the key."""
        return self.rows / slots if self.keys is None else hottest_task(self.keys, slots)

    def fits_in_broadcast(self, statistics: Statistics) -> bool:
        """Whether it surely can be sent to every task, beside what is sent below."""
        if self.most is None:
            return False
        whole, room = self.most * self.width, broadcast_room(statistics)
        return whole <= room and whole + self.beside <= _ALL_BROADCASTS * room

    @property
    def least_bytes(self) -> float:
        """Bytes in memory of the rows that are estimated: texts that were not measured count as empty."""
        return self.rows * self.least_width

    def may_fit_in_broadcast(self, statistics: Statistics) -> bool:
        """Whether it is expected that it can be sent to every task, beside what is sent below, as far as is known."""
        room = broadcast_room(statistics)
        return self.least_bytes <= room and self.least_bytes + self.beside <= _ALL_BROADCASTS * room

    def is_too_large(self, statistics: Statistics) -> bool:
        """Whether it cannot be held in a task's memory, as far as is known."""
        return self.least_bytes > statistics.task_memory

    def fits_in_task(self, statistics: Statistics) -> bool:
        """Whether the part of any task surely can be hashed there, its most frequent key included."""
        if self.most is None or self.keys is None:
            return False
        whole = self.most * self.width
        part = max(min(whole / statistics.slots, _COALESCED), whole / (_PARTITIONS_PER_SLOT * statistics.slots))
        hot = self.keys.hot[0][1] * self.width if self.keys.hot else 0.0
        return (part + hot) * _MARGIN <= statistics.task_memory


def broadcast_room(statistics: Statistics) -> float:
    """Bytes that one broadcast may take."""
    return statistics.task_memory / BROADCAST_PARTS


@once_per_node
def join_sides(join: Join, statistics: Statistics) -> tuple[JoinSide, JoinSide] | None:
    """Both sides of `join`; None where the size of one is not known."""
    left = _side(join.left, tuple(key for key, _ in join.keys), statistics)
    right = _side(join.right, tuple(key for _, key in join.keys), statistics)
    if left is None or right is None:
        return None
    beside = _broadcast_bytes(join.left, statistics) + _broadcast_bytes(join.right, statistics)
    return replace(left, beside=beside), replace(right, beside=beside)


def sent_side(ship: JoinShip, sides: tuple[JoinSide, JoinSide]) -> JoinSide:
    """The one of `sides` that a broadcast sends."""
    return sides[0] if ship is JoinShip.BROADCAST_LEFT else sides[1]


def is_too_large_to_send(join: Join, ship: JoinShip, statistics: Statistics) -> bool:
    """Whether the side that Spark would broadcast, for its files are small, holds more rows than memory, so that
    Spark must be kept from it.
    """
    sides = join_sides(join, statistics)
    return sides is not None and sent_side(ship, sides).is_too_large(statistics)


@once_per_node
def _broadcast_bytes(node: Node, statistics: Statistics) -> float:
    ships = ((part, broadcast_side(part, statistics)) for part in walk_up(node) if isinstance(part, Join))
    sides = (join.left if ship is JoinShip.BROADCAST_LEFT else join.right for join, ship in ships if ship is not None)
    return sum((estimate_rows(side, statistics) or 0) * hashed_bytes(side, statistics) for side in sides)


def possible_ways(join: Join, ship: JoinShip, local: JoinLocal) -> tuple[Way, ...]:
    """The ways that the kind of join has and that agree with what is forced."""
    has_keys = bool(join.keys)

    def is_possible(way: Way) -> bool:
        its_ship, its_local = way.pair
        agrees = ship in {JoinShip.AUTO, its_ship} and local in {JoinLocal.AUTO, its_local}
        allowed = refusal_of_ship(join.kind, its_ship, has_keys) is None
        return agrees and allowed and (not has_keys or refusal_of_local(join.kind, its_local, has_keys) is None)

    return tuple(way for way in Way if is_possible(way))


def cost_of(way: Way, left: JoinSide, right: JoinSide, slots: int) -> Cost:
    """The cost of one way."""
    if way in {Way.BROADCAST_LEFT, Way.BROADCAST_RIGHT}:
        build, probe = (left, right) if way is Way.BROADCAST_LEFT else (right, left)
        part = probe.rows / slots
        return Cost(GATHERED * build.rows + part, build.rows * slots, part)
    sent = left.rows + right.rows
    hottest = left.hottest_task(slots), right.hottest_task(slots)
    weights = {Way.HASH_LEFT: (HASHED, 1.0), Way.HASH_RIGHT: (1.0, HASHED)}.get(way, (SORTED, SORTED))
    joined = sum(rows * weight for rows, weight in zip(hottest, weights, strict=True))
    return Cost(sent / slots + joined, sent, sum(hottest))


def _side(node: Node, keys: tuple[Scalar, ...], statistics: Statistics) -> JoinSide | None:
    rows = estimate_rows(node, statistics)
    if rows is None:
        return None
    columns = columns_of(keys) if keys else None
    profile = profile_of(node, columns, statistics) if columns else None
    is_exact = not any(isinstance(part, Filter | Join | Aggregate | Limit) for part in walk_up(node))
    most = None if _unmeasured(node, statistics) else most_rows(node, statistics)
    width, least = hashed_bytes(node, statistics), least_hashed_bytes(node, statistics)
    return JoinSide(float(rows), most, width, profile, is_exact, least)


@once_per_node
def most_rows(node: Node, statistics: Statistics) -> float | None:
    """The most rows that `node` can emit; None where a table's are estimated, or a join multiplies them."""
    match node:
        case Scan():
            size = statistics.tables.get(node.alias)
            return float(size.rows) if size is not None and size.rows_are_exact else None
        case Join():
            return None
        case Union():
            branches = [most_rows(branch, statistics) for branch in node.inputs]
            return None if None in branches else sum(rows for rows in branches if rows is not None)
        case Aggregate() if not node.keys:
            return 1.0
        case Aggregate() if node.grouping_sets:
            grouped = most_rows(node.input, statistics)
            return None if grouped is None else max(grouped, 1.0) * len(node.grouping_sets)
        case _:
            below = most_rows(node.input, statistics)
            if below is None:
                return None
            if isinstance(node, Expand):
                return below * node.branches
            return min(below, float(node.count)) if isinstance(node, Limit) else below


def most_joined_rows(node: Node, statistics: Statistics) -> float | None:
    """As `most_rows`, and above joins: as if each left row met each right one, and all were put out alone besides."""
    match node:
        case Filter() | Project():
            return most_joined_rows(node.input, statistics)
        case Join():
            left, right = (most_joined_rows(side, statistics) for side in (node.left, node.right))
            return None if left is None or right is None else bounded((left + 1) * (right + 1))
        case _:
            return most_rows(node, statistics)


@once_per_node
def hashed_bytes(node: Node, statistics: Statistics) -> float:
    """Bytes of a row of `node` in a hash table; a guess where it has values without a bound that were not measured."""
    unmeasured = len(_unmeasured(node, statistics))
    guessed = unmeasured * _UNMEASURED + _DECODED * bytes_per_row(node, statistics) if unmeasured else 0.0
    return least_hashed_bytes(node, statistics) + guessed


@once_per_node
def least_hashed_bytes(node: Node, statistics: Statistics) -> float:
    """As `hashed_bytes`, of what is known alone: texts that were not measured count as empty."""
    fields = output_of(node)
    fixed = ROW_BYTES + sum(8 if field.type.name is not TypeName.DECIMAL else 24 for field in fields)
    # The bytes of a text are filled up to whole words.
    return fixed + sum(width + 8 for width in _measured(node, statistics).values())


def _unmeasured(node: Node, statistics: Statistics) -> list[str]:
    """The columns of `node` whose values can be long, and are not known not to be. What a file takes tells nothing of
    texts: one of 200 characters that repeats takes a few bits, and all of its length in each row of a hash table.
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
