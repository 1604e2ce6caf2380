"""Walking and rebuilding frozen plans."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from workers.engine.plan.nodes import Join, Node, Scan, Union, inputs_of


def with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    """`node` over other inputs, left first; the same object where each of them is the same object.

    Raises ValueError when their number is not the node's.
    """
    if len(inputs) != len(inputs_of(node)):
        raise ValueError(f"{type(node).__name__} has {len(inputs_of(node))} inputs, not {len(inputs)}")
    if isinstance(node, Scan) or all(new is own for new, own in zip(inputs, inputs_of(node), strict=True)):
        return node
    if isinstance(node, Join):
        return replace(node, left=inputs[0], right=inputs[1])
    if isinstance(node, Union):
        return replace(node, inputs=inputs)
    return replace(node, input=inputs[0])


def transform_up(node: Node, rewrite: Callable[[Node], Node]) -> Node:
    """The tree with every node replaced by `rewrite` of it, inputs first, so that `rewrite` sees rewritten inputs."""
    inputs = tuple(transform_up(child, rewrite) for child in inputs_of(node))
    return rewrite(with_inputs(node, inputs))


def walk_up(node: Node) -> Iterator[Node]:
    """Every node of the tree, inputs before the node that reads them."""
    for child in inputs_of(node):
        yield from walk_up(child)
    yield node
