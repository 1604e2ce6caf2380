"""What a rule is: a value in, a value out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from service.contract.options import JobSettings
from service.contract.reports import Alternative
from service.sql.expressions.scalar import Scalar
from workers.engine.budget import PlanningBudget
from workers.engine.plan.nodes import Node
from workers.engine.statistics.model import Statistics

N = TypeVar("N", bound=Node)


@dataclass(frozen=True)
class RuleContext:
    """Everything that a rule may look at in addition to the node.

    `above` are the conditions above it with only joins between: Spark filters by them first. `budget` limits the pass.
    """

    settings: JobSettings
    statistics: Statistics
    above: tuple[Scalar, ...] = ()
    budget: PlanningBudget = field(default_factory=PlanningBudget, compare=False)


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


@runtime_checkable
class CascadingRule(Protocol):
    """A rule that looks at parts of what it made, each with a trace of its own."""

    def parts_of(self, match: Match[Any], made: Node, /) -> tuple[Node, ...]:
        """The nodes of `made`, what `rewrite` made of `match`, that the rule is to look at next. Each is smaller than
        the node that was matched: it has fewer joins below it.
        """
