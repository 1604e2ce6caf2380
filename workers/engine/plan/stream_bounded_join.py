"""Two streams whose joined rows are asked for, joined by Spark: the rows of both sides are its state, and those go that
the watermarks of both have passed (`Join.within`).

Every pair is found once, when the later of its rows comes; a row that finds no partner comes out of an outer join once
none can come any more. So what comes out never changes, and whatever stands above rows of a stream may stand above it.
"""

from __future__ import annotations

from collections.abc import Callable

from service.spec.query import JoinKind
from workers.engine.plan.explain import seconds
from workers.engine.plan.nodes import Aggregate, Deduplicate, Join, Node
from workers.engine.plan.transform import walk_up


def bounded_join_obstacle(
    joins: tuple[Join, ...], is_streaming: Callable[[Node], bool], *, updates: bool
) -> str | None:
    """Why Spark cannot join the rows of `joins`, all joins of streams that a query has, and forget them again; None
    where it can. `updates`: the rows are aggregated, and groups come out as they change.
    """
    join = joins[0]
    if len(joins) > 1:
        return "more than two streams are joined"
    if join.within is None:
        return "the rows of two streams that are joined would be kept for ever"
    below = (part for side in (join.left, join.right) for part in walk_up(side))
    if any(isinstance(part, Aggregate | Deduplicate) and is_streaming(part) for part in below):
        return "one of two streams that are joined is grouped or made distinct before"
    if updates and join.kind is not JoinKind.INNER:
        return f"a {join.kind.value.upper()} JOIN of two streams comes out once watermarks have passed, in append mode"
    return None


def told_of(join: Join) -> str:
    """How the join is run, as a sentence."""
    within = join.within
    if within is None:
        return ""
    return (
        f"Spark joins the rows of both streams, since they are asked for: a pair comes out when its later row comes, "
        f"{within.left} - {within.right} being from {seconds(within.at_least_us)} to {seconds(within.at_most_us)}."
    )
