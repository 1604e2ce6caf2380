"""What choices cost beside Spark's own way, which is told by rule and, of joins, by the sizes of their sides."""

from __future__ import annotations

import pytest

from service.spec.query import JoinKind
from service.spec.reports import Alternative, RuleOutcome, RuleTrace
from service.spec.scalar import column
from service.spec.types import BIGINT, Field
from tests.golden.test_golden import CASES, planned, read, statistics
from workers.engine.plan.explain import line_of
from workers.engine.plan.nodes import Join, Scan
from workers.engine.rules.rulebook import RULES
from workers.engine.stats.spark_ways import SPARKS_OWN, estimated_savings
from workers.engine.stats.statistics import Statistics, TableSize

ORDERS = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"),))
USERS = Scan("users", "u", ((Field("u.uid", BIGINT), "uid"),))
JOIN = Join(ORDERS, USERS, JoinKind.INNER, ((column("o.uid", BIGINT), column("u.uid", BIGINT)),))


def trace(rule: str, node: str, *ways: tuple[str, float], chosen: str) -> RuleTrace:
    alternatives = tuple(
        Alternative(name=name, cost=cost, rows_shuffled=0, rows_on_hottest_task=0, chosen=name == chosen)
        for name, cost in ways
    )
    return RuleTrace(rule=rule, outcome=RuleOutcome.FIRED, node=node, reason="", alternatives=alternatives)


def known(users_bytes: int) -> Statistics:
    sizes = {
        "o": TableSize("o", 4, 1 << 30, 1_000_000, True),
        "u": TableSize("u", 1, users_bytes, 10_000, True),
    }
    return Statistics(sizes, {}, 4)


def test_a_choice_beside_sparks_own() -> None:
    rules = [trace("skewed_join", "Join", ("NONE", 800.0), ("ISOLATE", 200.0), ("SALT", 300.0), chosen="ISOLATE")]
    (found,) = estimated_savings(rules, JOIN, known(1 << 30))
    assert (found.rule, found.node, found.alternative, found.cost) == ("skewed_join", "Join", "ISOLATE", 200.0)
    assert (found.spark_alternative, found.spark_cost, found.ratio) == ("NONE", 800.0, 0.25)


def test_nothing_where_nothing_was_chosen_or_sparks_own_was_not_weighed() -> None:
    rules = [
        trace("skewed_join", "Join", ("NONE", 800.0), ("SALT", 300.0), chosen=""),
        trace("skewed_join", "Join", ("ISOLATE", 200.0), chosen="ISOLATE"),
        trace("statistics", "Scan", ("NONE", 1.0), chosen="NONE"),
    ]
    assert estimated_savings(rules, JOIN, known(1 << 30)) == ()


def test_no_ratio_to_nothing() -> None:
    (found,) = estimated_savings([trace("skewed_join", "", ("NONE", 0.0), chosen="NONE")], JOIN, known(1))
    assert found.ratio is None


@pytest.mark.parametrize(("users_bytes", "own"), [(1 << 30, "SORT_MERGE"), (1 << 20, "BROADCAST_RIGHT")])
def test_spark_broadcasts_a_side_of_small_files_alone(users_bytes: int, own: str) -> None:
    ways = (("SORT_MERGE", 900.0), ("BROADCAST_RIGHT", 300.0))
    rules = [trace("join_strategy", line_of(JOIN), *ways, chosen="SORT_MERGE")]
    (found,) = estimated_savings(rules, JOIN, known(users_bytes))
    assert found.spark_alternative == own
    # Of a join that a rule has made it cannot be told.
    assert estimated_savings([trace("join_strategy", "Join made", *ways, chosen="SORT_MERGE")], JOIN, known(1)) == ()


def test_every_rule_that_weighs_ways_has_sparks_own_among_them() -> None:
    """By the golden plans: whatever a rule weighs, Spark's own way is told by the name that is known here."""
    weighed, told = set(), set()
    for path in CASES:
        given, _ = read(path)
        plan = planned(given)
        chosen = [one for one in plan.trace if any(way.chosen for way in one.alternatives)]
        weighed |= {one.rule for one in chosen}
        found = estimated_savings(plan.trace, plan.before, statistics(given))
        told |= {one.rule for one in found}
        by_rule = [one.rule for one in chosen if one.rule in SPARKS_OWN]
        assert [one.rule for one in found if one.rule in SPARKS_OWN] == by_rule, path
    assert weighed == told
    assert set(SPARKS_OWN) | {"join_strategy", "incremental_aggregate"} == {rule.name for rule in RULES}
