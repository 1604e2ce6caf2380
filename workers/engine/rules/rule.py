"""The interface of a rule: `match` and `rewrite` are pure functions of a node and a context."""

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
    """Everything that a rule may read in addition to the node.

    `above` are the conditions above the node with only joins between; Spark filters by them before these joins.
    `conditions` are those with only filters and projections between, over the node's columns.
    `budget` limits the planning pass.
    """

    settings: JobSettings
    statistics: Statistics
    above: tuple[Scalar, ...] = ()
    conditions: tuple[Scalar, ...] = ()
    budget: PlanningBudget = field(default_factory=PlanningBudget, compare=False)


@dataclass(frozen=True)
class Match(Generic[N]):
    """The rule applies to `node`; `choice` is the name of the chosen alternative, `reason` says why in one sentence."""

    node: N
    choice: str
    reason: str
    alternatives: tuple[Alternative, ...] = ()


@dataclass(frozen=True)
class Skip:
    """The rule is about this kind of node but does not change this one; `reason` says why in one sentence."""

    reason: str
    alternatives: tuple[Alternative, ...] = ()


class Rule(Protocol[N]):
    """One rewrite. `name` is the name of its module, of its golden folder and of the rule in every report."""

    @property
    def name(self) -> str:
        """The rule's id: the name of its module."""

    def match(self, node: Node, ctx: RuleContext, /) -> Match[N] | Skip | None:
        """Returns whether the rule applies to `node`, whose inputs it has already handled; None, without a trace, if
        the rule is not about this kind of node.
        """

    def rewrite(self, match: Match[N], ctx: RuleContext, /) -> Node:
        """Returns the plan that replaces `match.node`: the same columns, the same types, the same rows."""


@runtime_checkable
class CascadingRule(Protocol):
    """A rule that also applies to parts of its own result, each with its own trace."""

    def parts_of(self, match: Match[Any], made: Node, /) -> tuple[Node, ...]:
        """Returns the nodes of `made`, the result of `rewrite` for `match`, to which the rule applies next. Each has
        fewer joins below it than the matched node.
        """
