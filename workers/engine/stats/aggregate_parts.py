"""Which of Spark's aggregate operators that follow each other run which of our aggregates."""

from __future__ import annotations

import re
from collections.abc import Sequence

from service.spec.reports import OperatorMetrics
from workers.engine.plan.distinct import distinct_sets, spark_expands
from workers.engine.plan.nodes import Aggregate, Node
from workers.engine.stats.spots import is_aggregate

_FUNCTIONS = re.compile(r"functions=\[(.*)", re.DOTALL)


def _mode(operator: OperatorMetrics) -> str | None:
    """Which part of an aggregate it is: `final` (or the whole), `inner`, or `none` where it has no functions."""
    match = _FUNCTIONS.search(operator.detail)
    if match is None:
        return None
    if match[1].startswith("]"):
        return "none"
    return "inner" if match[1].startswith(("partial_", "merge_")) else "final"


def aggregate_groups(made: Sequence[Node], members: Sequence[OperatorMetrics]) -> list[list[OperatorMetrics]] | None:
    """Spark's operators by the aggregate of ours that they run, each group with what brings it the rows of the next
    operator at that one's head; None where they cannot be told apart.

    Of one with calls the first operator is its last part; the others have parts of the calls, or none where they tell
    distinct values apart. One without calls has an operator without functions, or two.
    """
    if len(made) == 1:
        return [list(members)]
    parts: list[tuple[str, list[OperatorMetrics]]] = []
    moved: list[OperatorMetrics] = []
    for each in members:
        moved.append(each)
        if is_aggregate(each):
            mode = _mode(each)
            if mode is None:
                return None
            parts.append((mode, moved))
            moved = []
    groups = []
    for place, node in enumerate(made):
        is_last = place == len(made) - 1
        taken = _taken(node, [mode for mode, _ in parts], None if is_last else made[place + 1])
        if taken is None:
            return None
        groups.append([each for _, part in parts[:taken] for each in part])
        parts = parts[taken:]
    groups[-1] += moved
    return None if parts else groups


def _taken(node: Node, modes: Sequence[str], following: Node | None) -> int | None:
    """How many operators of these parts, from the top down, run `node`; None where it cannot be told."""
    if not isinstance(node, Aggregate) or not node.calls:
        # One that follows without calls too could have any of them.
        if following is not None and not (isinstance(following, Aggregate) and following.calls):
            return None
        length = _length(modes, {"none"})
        return length if 1 <= length <= 2 else None
    if not modes or modes[0] != "final":
        return None
    if spark_expands(node) or node.grouping_sets:
        # Copies are put together in the middle, too.
        return len(modes) if following is None else None
    if not distinct_sets(node):
        return 1 + _length(modes[1:], {"inner"})
    if following is not None and not (isinstance(following, Aggregate) and following.calls):
        return None
    return 1 + _length(modes[1:], {"inner", "none"})


def _length(modes: Sequence[str], wanted: set[str]) -> int:
    return next((place for place, mode in enumerate(modes) if mode not in wanted), len(modes))
