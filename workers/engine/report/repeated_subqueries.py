"""Finds derived tables and common table expressions that are used several times, and says how Spark computes them.

Each use is compiled and planned by itself. Spark computes equal exchanges once (`ReusedExchange`). Whether those of two
uses are equal depends on the conditions, IS NOT NULL for join keys, and columns that Spark moves into each use, so it
is read from Spark's physical plan: the scans below a reused exchange are not in its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Node, Project, Scan, Values
from workers.engine.plan.traversal import walk_up

SUBQUERIES = "subqueries"
"""The name in the trace for subqueries that are used several times."""

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
    if sum(1 for _ in walk_up(plan)) > _MOST_NODES:
        return ()
    uses: dict[str, list[tuple[str, Project]]] = {}
    for name, node in _derived(plan):
        uses.setdefault(_normal_text(node.input), []).append((name, node))
    groups = [each for each in uses.values() if len(each) > 1]
    inside = {id(part) for each in groups for _, node in each for part in walk_up(node.input)}
    found: dict[tuple[str, ...], RepeatedSubquery] = {}
    for each in groups:
        if not all(id(node) in inside for _, node in each):
            names = tuple(name for name, _ in each)
            scans = tuple(tuple(scan.alias for scan in _scans(node)) for _, node in each)
            # The branches of a UNION have the same names.
            known = found.setdefault(names, RepeatedSubquery(each[0][1], names, tuple(() for _ in names)))
            joined = tuple((*own, *more) for own, more in zip(known.scans, scans, strict=True))
            found[names] = replace(known, scans=joined)
    return tuple(found.values())


def use_of(subquery: RepeatedSubquery, physical: str) -> str:
    """Returns a sentence that says how Spark computes the subquery, by the text of a physical plan with reused
    exchanges.
    """
    names = f"{', '.join(subquery.names[:-1])} and {subquery.names[-1]}"
    read = [[scan for scan in scans if f" AS {scan}." in physical] for scans in subquery.scans]
    counts = [len(each) for each in read]
    subject = f"{names} are {len(counts)} uses of one subquery"
    computed = sum(1 for count in counts if count)
    if not computed:
        return f"{subject}, which Spark does not compute: it knows that there are no rows."
    if computed == 1:
        return f"{subject}, which is computed once: its exchange is reused."
    if computed < len(counts):
        return f"{subject}, which is computed {computed} times; the other uses reuse an exchange."
    why = "Spark applies different conditions or columns in the uses, or uses no exchange in them"
    if min(counts) < max(counts):
        return f"{subject}, which is computed each time, because {why}. Exchanges of some of its tables are reused."
    return f"{subject}, which is computed each time, because {why}."


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
