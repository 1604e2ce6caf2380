"""Finds derived tables and common table expressions that are used several times."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Node, Project, Scan, Values
from workers.engine.plan.traversal import walk_up

_MOST_NODES = 2_000
"""The nodes of a plan above which it is not searched: the texts of nested subqueries take quadratic time."""


@dataclass(frozen=True)
class RepeatedSubquery:
    """A subquery with equal text that is used several times. `names` has the alias of each use, `scans` the aliases of
    its scans, in the same order for each use. `node` is the first use.
    """

    node: Project
    names: tuple[str, ...]
    scans: tuple[tuple[str, ...], ...]


def repeated_subqueries(plan: Node) -> tuple[RepeatedSubquery, ...]:
    """Returns the subqueries of a plan of the builder that are used several times with the same columns; only the
    outermost of nested ones. A use that only reads columns of a table does not count.
    """
    found: dict[tuple[str, ...], RepeatedSubquery] = {}
    for each in uses_of_subqueries(plan):
        names = tuple(name for name, _ in each)
        scans = tuple(tuple(scan.alias for scan in _scans(node)) for _, node in each)
        # The branches of a UNION have the same names.
        known = found.setdefault(names, RepeatedSubquery(each[0][1], names, tuple(() for _ in names)))
        joined = tuple((*own, *more) for own, more in zip(known.scans, scans, strict=True))
        found[names] = replace(known, scans=joined)
    return tuple(found.values())


def uses_of_subqueries(plan: Node) -> tuple[tuple[tuple[str, Project], ...], ...]:
    """Returns the uses of each subquery that is used several times, with their aliases, as `repeated_subqueries` does;
    the branches of a UNION separately.
    """
    if sum(1 for _ in walk_up(plan)) > _MOST_NODES:
        return ()
    uses: dict[str, list[tuple[str, Project]]] = {}
    for name, node in _derived(plan):
        uses.setdefault(_normal_text(node.input), []).append((name, node))
    groups = [each for each in uses.values() if len(each) > 1]
    inside = {id(part) for each in groups for _, node in each for part in walk_up(node.input)}
    return tuple(tuple(each) for each in groups if not all(id(node) in inside for _, node in each))


def _derived(plan: Node) -> Iterator[tuple[str, Project]]:
    """Yields the derived tables of a plan, each with its alias, which is the start of the names of its columns."""
    for node in walk_up(plan):
        if isinstance(node, Project) and any(not isinstance(part, Scan | Project) for part in walk_up(node.input)):
            aliases = {item.name.rpartition(".")[0] for item in node.items}
            if len(aliases) == 1 and (name := aliases.pop()):
                yield name, node


def _normal_text(node: Node) -> str:
    """Returns the text of a subquery with numbers for the aliases of its tables and derived tables."""
    aliases = dict.fromkeys(scan.alias for scan in _scans(node))
    aliases |= dict.fromkeys(name for name, _ in _derived(node))
    numbers = {alias: f"#{number}" for number, alias in enumerate(aliases)}
    rows = [part.rows for part in walk_up(node) if isinstance(part, Values)]
    text = text_of(node)
    if aliases:
        longest = sorted(map(re.escape, aliases), key=len, reverse=True)
        text = re.sub(rf"(?<!Scan )(?<![\w/.])({'|'.join(longest)})(?=[.\s])", lambda match: numbers[match[1]], text)
    return f"{text}\n{rows}"


def _scans(node: Node) -> Iterator[Scan]:
    return (part for part in walk_up(node) if isinstance(part, Scan))
