"""What a rule is: a value in, a value out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from service.spec.options import JobSettings
from service.spec.reports import Alternative
from workers.engine.plan.nodes import Node
from workers.engine.stats.statistics import Statistics

N = TypeVar("N", bound=Node)


@dataclass(frozen=True)
class RuleContext:
    """Everything that a rule may look at beside the node."""

    settings: JobSettings
    statistics: Statistics


@dataclass(frozen=True)
class Match(Generic[N]):
    """The rule applies to `node`; `choice` names the alternative it takes, `reason` says why in one sentence."""

    node: N
    choice: str
    reason: str
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True)
class Skip:
    """The rule is about nodes like this one but leaves it as it is; `reason` says why in one sentence."""

    reason: str
    alternatives: tuple[Alternative, ...] = ()


class Rule(Protocol[N]):
    """One rewrite. `name` is its module, its golden folder and its name in every report."""

    @property
    def name(self) -> str:
        """The rule's id: the name of its module."""

    def match(self, node: Node, ctx: RuleContext, /) -> Match[N] | Skip | None:
        """Whether the rule applies to `node`, whose inputs it has seen already; None, untraced, where it is not about
        this kind of node.
        """

    def rewrite(self, match: Match[N], ctx: RuleContext, /) -> Node:
        """The plan in place of `match.node`: the same columns, the same types, the same rows."""
