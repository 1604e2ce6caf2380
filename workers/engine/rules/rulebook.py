"""The table of contents: every rule, in the order in which they see a plan."""

from __future__ import annotations

from workers.engine.plan.nodes import Aggregate
from workers.engine.rules.rule import Rule

RULES: tuple[Rule[Aggregate], ...] = ()
