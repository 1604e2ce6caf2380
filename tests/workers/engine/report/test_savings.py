"""Costs of choices compared with Spark's default, which the rule names or the sizes of a join's sides decide."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.query import JoinKind
from service.contract.reports import Alternative, ChoiceOutcome, RuleOutcome, RuleTrace
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT
from tests.golden.test_golden import CASES, planned, read, statistics
from tests.support.plan_parts import ORDERS, USERS
from workers.engine.plan.explain import line_of
from workers.engine.plan.nodes import Join, Scan, Union
from workers.engine.plan.traversal import walk_up, with_ids
from workers.engine.report.estimates import SPARK_DEFAULTS, estimated_savings
from workers.engine.rules.rulebook import RULES
from workers.engine.statistics.model import Statistics, TableSize

JOIN = Join(ORDERS, USERS, JoinKind.INNER, ((column("o.uid", BIGINT), column("u.uid", BIGINT)),))


def trace(rule: str, node: str, *ways: tuple[str, float], chosen: str, node_id: int | None = None) -> RuleTrace:
    alternatives = tuple(
        Alternative(name=name, cost=cost, rows_shuffled=0, rows_on_hottest_task=0, chosen=name == chosen)
        for name, cost in ways
    )
    return RuleTrace(
        rule=rule, outcome=RuleOutcome.FIRED, node=node, node_id=node_id, reason="", alternatives=alternatives
    )


def known(users_bytes: int) -> Statistics:
    sizes = {
        "o": TableSize("o", 4, 1 << 30, 1_000_000, True),
        "u": TableSize("u", 1, users_bytes, 10_000, True),
    }
    return Statistics(sizes, {}, 4)


def test_a_choice_with_sparks_default_among_the_alternatives() -> None:
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
    sizes, join = known(users_bytes), with_ids(JOIN)
    rules = [trace("join_strategy", line_of(JOIN), *ways, chosen="SORT_MERGE", node_id=join.id)]
    (found,) = estimated_savings(rules, join, sizes)
    assert (found.spark_alternative, found.node_id) == (own, join.id)
    # Spark without the rules has no join that a rule made, though it reads like one of the query.
    made = [trace("join_strategy", line_of(JOIN), *ways, chosen="SORT_MERGE", node_id=9)]
    assert estimated_savings(made, join, sizes) == ()


def test_joins_that_read_alike_are_known_by_their_ids() -> None:
    """The left one joins small files, the right one large ones."""
    small = Scan("orders", "s", ORDERS.columns)
    left, right = (replace(JOIN, left=side) for side in (small, ORDERS))
    plan = with_ids(Union((left, right)))
    sizes = replace(known(1 << 30), tables={**known(1 << 30).tables, "s": TableSize("s", 1, 1 << 20, 10_000, True)})
    ways = (("SORT_MERGE", 900.0), ("BROADCAST_LEFT", 300.0))
    ids = [each.id for each in walk_up(plan) if isinstance(each, Join)]
    rules = [trace("join_strategy", line_of(left), *ways, chosen="SORT_MERGE", node_id=one) for one in ids]
    found = estimated_savings(rules, plan, sizes)
    assert [one.spark_alternative for one in found] == ["BROADCAST_LEFT", "SORT_MERGE"]
    assert line_of(left) == line_of(right)


def test_a_saving_by_a_wrong_estimate_is_marked() -> None:
    ways = (("NONE", 800.0), ("ISOLATE", 200.0))
    rules = [trace("skewed_join", "Join", *ways, chosen="ISOLATE", node_id=one) for one in (4, 5)]
    outcomes = [outcome(4, is_wrong=False), outcome(5, is_wrong=True)]
    found = estimated_savings(rules, JOIN, known(1 << 30), outcomes)
    assert [(one.node_id, one.is_wrong) for one in found] == [(4, False), (5, True)]


def outcome(node_id: int, *, is_wrong: bool) -> ChoiceOutcome:
    return ChoiceOutcome(
        rule="skewed_join",
        node="Join",
        node_id=node_id,
        alternative="ISOLATE",
        estimated_rows_shuffled=1,
        estimated_rows_on_hottest_task=1,
        measured_rows_shuffled=None,
        measured_rows_on_hottest_task=None,
        is_wrong=is_wrong,
    )


@pytest.mark.not_quick
def test_every_rule_that_weighs_ways_has_sparks_own_among_them() -> None:
    """By the golden plans: the alternatives of each rule include the known name of what Spark does by default."""
    weighed, named = set(), set()
    for path in CASES:
        given, _ = read(path)
        plan = planned(given)
        chosen = [one for one in plan.trace if any(way.chosen for way in one.alternatives)]
        weighed |= {one.rule for one in chosen}
        found = estimated_savings(plan.trace, plan.before, statistics(given))
        named |= {one.rule for one in found}
        by_rule = [one.rule for one in chosen if one.rule in SPARK_DEFAULTS]
        assert [one.rule for one in found if one.rule in SPARK_DEFAULTS] == by_rule, path
    assert weighed == named
    weighs_nothing = {"prune_union_branches", "merge_aggregates"}
    assert set(SPARK_DEFAULTS) | {"join_strategy", "incremental_aggregate"} | weighs_nothing == {
        rule.name for rule in RULES
    }
