"""Applies a rule to one node."""

from __future__ import annotations

from typing import Any

from workers.engine.plan.nodes import Node, output_of
from workers.engine.plan.validation import check
from workers.engine.rules.rule import Match, Rule, RuleContext, Skip


def matched(rule: Rule[Any], node: Node, ctx: RuleContext) -> Match[Any]:
    """Returns the match of a rule that rewrites `node`."""
    found = rule.match(node, ctx)
    assert isinstance(found, Match)
    return found


def skipped(rule: Rule[Any], node: Node, ctx: RuleContext) -> Skip:
    """Returns the skip of a rule that does not rewrite `node`."""
    found = rule.match(node, ctx)
    assert isinstance(found, Skip)
    return found


def applied(rule: Rule[Any], node: Node, ctx: RuleContext) -> tuple[Match[Any], Node]:
    """Returns the match of a rule and the rewritten plan, after checking that its columns are those of `node`."""
    match = matched(rule, node, ctx)
    after = rule.rewrite(match, ctx)
    check(after, rule.name, output_of(node))
    return match, after
