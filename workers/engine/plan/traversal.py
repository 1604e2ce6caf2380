"""Traverses, rebuilds and numbers frozen plans. Ids distinguish equal nodes in reports, traces and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from itertools import count

from workers.engine.plan.nodes import (
    Join,
    MultisetOperation,
    Node,
    Recursion,
    Scan,
    StepRows,
    Union,
    Values,
    inputs_of,
)

_NOT_COMPARED = frozenset({"id", "input", "inputs", "left", "right"})


def with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    """Returns `node` over other inputs, left first; the same object if all inputs are the same objects.

    Raises ValueError if the number of inputs is wrong.
    """
    if len(inputs) != len(inputs_of(node)):
        raise ValueError(f"{type(node).__name__} has {len(inputs_of(node))} inputs, not {len(inputs)}")
    is_same = all(new is own for new, own in zip(inputs, inputs_of(node), strict=True))
    if is_same or isinstance(node, Scan | Values | StepRows):
        return node
    if isinstance(node, Join | MultisetOperation):
        return replace(node, left=inputs[0], right=inputs[1])
    if isinstance(node, Union | Recursion):
        return replace(node, inputs=inputs)
    return replace(node, input=inputs[0])


def transform_up(node: Node, rewrite: Callable[[Node], Node]) -> Node:
    """Returns the tree with every node replaced by `rewrite` of it, inputs first; `rewrite` gets rewritten inputs."""
    inputs = tuple(transform_up(child, rewrite) for child in inputs_of(node))
    return rewrite(with_inputs(node, inputs))


def walk_up(node: Node) -> Iterator[Node]:
    """Yields every node of the tree, inputs before the node that reads them, left ones first."""
    # Not by recursive generators, which would pass each node through all that are above it.
    waiting, found = [node], list[Node]()
    while waiting:
        found.append(waiting.pop())
        waiting.extend(inputs_of(found[-1]))
    return reversed(found)


class NodeIds:
    """Assigns the ids of one planning pass. A node that a rule keeps in the plan keeps its id, others get new ones."""

    def __init__(self, first: int = 0) -> None:
        self._next: Iterator[int] = count(first)
        self.new: set[int] = set()
        """Ids of the nodes that were new in the last call of `number`."""
        self.copies: dict[int, int] = {}
        """Ids that the last call assigned to copies of nodes, with the ids of the original nodes."""

    @classmethod
    def after(cls, plan: Node) -> NodeIds:
        """Returns a generator of ids that are larger than all ids of `plan`."""
        return cls(max((node.id for node in walk_up(plan) if node.id is not None), default=-1) + 1)

    def number(self, plan: Node, before: Node | None = None) -> Node:
        """Returns `plan` with an id for each node, inputs first.

        The first node with an id keeps it; copies of it and nodes without an id get new ones. `new` gets the ids of the
        nodes that are not in `before`, a plan with ids, or whose fields changed. A node is not new if only its inputs
        were replaced, by the same number of inputs.
        """
        originals = {} if before is None else {node.id: node for node in walk_up(before)}
        taken: set[int] = set()
        self.new, self.copies = set(), {}

        def visit(node: Node) -> Node:
            made = with_inputs(node, tuple(visit(child) for child in inputs_of(node)))
            if made.id is None or made.id in taken:
                number = next(self._next)
                if made.id is not None:
                    self.copies[number] = made.id
                made = replace(made, id=number)
            taken.add(id_of(made))
            original = originals.get(node.id)
            if original is None or not _is_equal_except_inputs(node, original):
                self.new.add(id_of(made))
            return made

        return visit(plan)


def _is_equal_except_inputs(node: Node, original: Node) -> bool:
    if node is original:
        return True
    if type(node) is not type(original) or len(inputs_of(node)) != len(inputs_of(original)):
        return False
    names = (field.name for field in fields(node) if field.name not in _NOT_COMPARED)
    return all(getattr(node, name) is getattr(original, name) for name in names)


def with_ids(plan: Node) -> Node:
    """Returns `plan` with an id for each node; nodes with an id keep it."""
    return NodeIds.after(plan).number(plan)


def id_of(node: Node) -> int:
    """Returns the node's id. Raises ValueError if the plan was not numbered."""
    if node.id is None:
        raise ValueError(f"{type(node).__name__} has no id: number the plan first")
    return node.id


def identities(plan: Node) -> frozenset[int]:
    """Returns the identities (`id()`) of all nodes of `plan`, which must live longer than the set."""
    return frozenset(id(node) for node in walk_up(plan))
