"""What a rule makes of one node."""

from __future__ import annotations

from typing import Any

from workers.engine.plan.nodes import Node, output_of
from workers.engine.plan.validation import check
from workers.engine.rules.rule import Match, Rule, RuleContext, Skip


def matched(rule: Rule[Any], node: Node, ctx: RuleContext) -> Match[Any]:
    """The match of a rule that rewrites `node`."""
    found = rule.match(node, ctx)
    assert isinstance(found, Match)
    return found


def skipped(rule: Rule[Any], node: Node, ctx: RuleContext) -> Skip:
    """What a rule says that is about `node` and leaves it."""
    found = rule.match(node, ctx)
    assert isinstance(found, Skip)
    return found


def applied(rule: Rule[Any], node: Node, ctx: RuleContext) -> tuple[Match[Any], Node]:
    """The match of a rule that rewrites `node`, and the plan that it makes, whose columns are those of `node`."""
    match = matched(rule, node, ctx)
    after = rule.rewrite(match, ctx)
    check(after, rule.name, output_of(node))
    return match, after
