"""What statistics are needed for: nothing is read before a run whose every choice is made already."""

from __future__ import annotations

from collections.abc import Callable

from service.spec.options import AggPhase, JobSettings, Toggle
from service.spec.strategies import DistinctMethod, JoinLocal, JoinShip, JoinSkew
from service.spec.types import TypeName
from workers.engine.plan.distinct import distinct_sets
from workers.engine.plan.nodes import Aggregate, Join, Node, Scan
from workers.engine.plan.transform import walk_up

NOT_READ = (
    "Every setting that is otherwise decided by cost is forced: no file was read before the run, and rows are "
    "estimated from bytes."
)

READ_IN_PART = (
    "Settings decide about some joins or aggregates of the query: before the run, keys were read of the others alone."
)

_TEXTS = frozenset({TypeName.STRING, TypeName.BINARY})
_BROADCASTS = frozenset({JoinShip.BROADCAST_LEFT, JoinShip.BROADCAST_RIGHT})
_METHODS_WITHOUT = frozenset({DistinctMethod.NATIVE, DistinctMethod.SPLIT})


def undecided(plan: Node, settings: JobSettings) -> Callable[[Node], bool]:
    """Whether how to run a node of `plan` is still to be decided, so that its keys must be known.

    A join is decided when its ship and local strategy are forced and its hot keys are not to be looked for; an
    aggregate when its phases are and, with DISTINCT, its method is. Aggregation below joins concerns both.
    """
    nodes = list(walk_up(plan))
    joins = [node for node in nodes if isinstance(node, Join) and node.keys]
    aggregates = [node for node in nodes if isinstance(node, Aggregate)]
    eager = settings.eager_aggregation is Toggle.AUTO and bool(joins) and bool(aggregates)
    open_joins = [join for join in joins if eager or not _join_is_forced(join, settings)]
    open_aggregates = [
        node for node in aggregates if (eager and _has_join(node)) or not _aggregate_is_forced(node, settings)
    ]
    # By identity: comparing nodes by value walks their subtrees.
    by_identity = {id(node): node for node in (*open_joins, *open_aggregates)}
    return lambda node: id(node) in by_identity


def joined_texts(plan: Node, matters: Callable[[Node], bool] = lambda _: True) -> frozenset[str]:
    """Emitted names of the tables' columns of texts and bytes below a join that `matters`: a side that is hashed holds
    them in memory.
    """
    joins = (node for node in walk_up(plan) if isinstance(node, Join) and node.keys and matters(node))
    scans = {part for join in joins for part in walk_up(join) if isinstance(part, Scan)}
    return frozenset(field.name for scan in scans for field, _ in scan.columns if field.type.name in _TEXTS)


def is_all_forced(plan: Node, settings: JobSettings) -> bool:
    """Whether `plan` has something to decide, and all of it is decided by the settings."""
    to_decide = _to_decide(plan)
    return bool(to_decide) and not any(map(undecided(plan, settings), to_decide))


def are_all_undecided(plan: Node, settings: JobSettings) -> bool:
    """Whether the settings decide about no join and no aggregate of `plan`."""
    return all(map(undecided(plan, settings), _to_decide(plan)))


def _to_decide(plan: Node) -> list[Node]:
    return [node for node in walk_up(plan) if isinstance(node, Aggregate) or (isinstance(node, Join) and node.keys)]


def _has_join(node: Aggregate) -> bool:
    return any(isinstance(part, Join) for part in walk_up(node.input))


def _join_is_forced(join: Join, settings: JobSettings) -> bool:
    told, whole = join.strategy, settings.join
    ship = whole.ship if told.ship is JoinShip.AUTO else told.ship
    local = whole.local if told.local is JoinLocal.AUTO else told.local
    skew = whole.skew if told.skew is JoinSkew.AUTO else told.skew
    # A broadcast side is the hashed one, and moves no row of the other.
    return ship in _BROADCASTS or (
        ship is JoinShip.REPARTITION and local is not JoinLocal.AUTO and skew is JoinSkew.NONE
    )


def _aggregate_is_forced(node: Aggregate, settings: JobSettings) -> bool:
    if settings.agg_phase is AggPhase.AUTO:
        return False
    if not distinct_sets(node):
        return True
    split, method = settings.distinct_split.enabled, settings.distinct_method
    return method in _METHODS_WITHOUT or (method is DistinctMethod.AUTO and split is Toggle.TRUE)
