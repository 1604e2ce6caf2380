"""The rules for joins of a stream with static tables."""

from __future__ import annotations

from typing import Any

import pytest

from service.contract.options import JobSettings
from service.contract.reports import HotKey, RuleOutcome
from service.sql.types.data_types import INT
from tests.support.scalars import scalar
from tests.support.stream_queries import STREAMS, planned
from workers.engine.plan.explain import text_of
from workers.engine.planner import Plan
from workers.engine.statistics.model import KeySketch, Statistics, TableSize
from workers.engine.streaming.static_joins import join_static_tables

JOINED = "SELECT n.name, COUNT(*) AS c, COUNT(DISTINCT s.k) AS d FROM s JOIN n ON s.g = n.g GROUP BY n.name"
LEFT = "SELECT n.name, SUM(s.i) AS x FROM s LEFT JOIN n ON s.g = n.g GROUP BY n.name"
LARGE = 1 << 29
"""Bytes of files that Spark does not broadcast."""


def known(*, on_stream: float = 0.6, on_table: float = 0.0, nulls: float = 0.0) -> Statistics:
    """A mini-batch of a million rows, and a table of half as many, with these shares of rows on the key 7."""
    sizes = {
        "s": TableSize("s", 4, LARGE, 1_000_000, rows_are_exact=False),
        "n": TableSize("n", 4, LARGE, 500_000, rows_are_exact=True),
    }
    keys: dict[tuple[str, ...], KeySketch] = {
        (f"{alias}.g",): KeySketch(
            alias,
            (f"{alias}.g",),
            sampled_rows=60_000,
            distinct_keys=100_000,
            null_share=nulls if alias == "s" else 0.0,
            hot_keys=(
                *([HotKey(value="7", share=share, estimated_rows=round(share * sizes[alias].rows))] if share else []),
                *(
                    [HotKey(value="NULL", share=nulls, estimated_rows=1, is_null=True)]
                    if alias == "s" and nulls
                    else []
                ),
            ),
            literals=(*([(scalar("7", INT),)] if share else []), *([None] if alias == "s" and nulls else [])),
        )
        for alias, share in (("s", on_stream), ("n", on_table))
    }
    return Statistics(sizes, keys, slots=4, is_adaptive=False)


NOT_FORCED = Statistics({}, {}, slots=4)


def rewritten(sql: str, statistics: Statistics, **join: Any) -> Plan:
    settings = JobSettings.model_validate({"join": join})
    return join_static_tables(planned(sql).node, STREAMS, statistics, settings, {})


def told(plan: Plan) -> dict[str, tuple[RuleOutcome, str]]:
    assert len({trace.rule for trace in plan.trace}) == len(plan.trace), "each join is told of once"
    return {trace.rule: (trace.outcome, trace.reason) for trace in plan.trace}


def test_a_hot_key_is_salted_with_one_read() -> None:
    plan = rewritten(JOINED, known())
    outcome, reason = told(plan)["skewed_join"]
    assert outcome is RuleOutcome.FIRED
    assert reason.startswith("Key 7 has 600,000 rows on the left and ")
    assert reason.endswith(": 1 hot key salted 16 ways in every mini-batch.")
    before, after = (text_of(part).count("Scan s AS s") for part in (plan.before, plan.after))
    # One for the distinct values, one for the plain call.
    assert (before, after) == (2, 2)
    assert "CAST(pmod(xxhash64(s.k), 16) + 1 AS INT), 1) AS $salt" in text_of(plan.after)


def test_rows_with_a_null_key_are_distributed_if_they_are_kept() -> None:
    plan = rewritten(LEFT, known(on_stream=0.0, nulls=0.7))
    outcome, reason = told(plan)["skewed_join"]
    assert outcome is RuleOutcome.FIRED, reason
    assert reason.endswith(": rows with a NULL key distributed by their other columns.")
    assert "if(s.g IS NULL, " in text_of(plan.after)


def test_isolation_is_refused_with_the_reason() -> None:
    plan = rewritten(JOINED, known(), skew="ISOLATE")
    outcome, reason = told(plan)["skewed_join"]
    assert outcome is RuleOutcome.SKIPPED
    assert reason.startswith("join.skew is ISOLATE, but isolated hot keys would need the stream to be read twice")
    assert plan.after == plan.before


def test_a_key_with_too_many_copies_is_not_salted() -> None:
    sql = "SELECT s.k, SUM(s.i) AS x FROM s LEFT SEMI JOIN n ON s.g = n.g GROUP BY s.k"
    outcome, reason = told(rewritten(sql, known(on_stream=0.001, on_table=0.9), skew="SALT"))["skewed_join"]
    assert outcome is RuleOutcome.SKIPPED
    assert reason.startswith("join.skew is SALT, but ")


@pytest.mark.parametrize("skew", ["AUTO", "SALT", "NONE"])
def test_without_statistics_joins_are_unchanged(skew: str) -> None:
    plan = rewritten(JOINED, NOT_FORCED, skew=skew)
    assert plan.after == plan.before
    assert {outcome for outcome, _ in told(plan).values()} == {RuleOutcome.SKIPPED}


def test_forced_strategies_apply_without_statistics() -> None:
    plan = rewritten(JOINED, NOT_FORCED, ship="REPARTITION", local="HASH_RIGHT")
    assert told(plan)["join_strategy"][0] is RuleOutcome.FIRED
    assert text_of(plan.after).count("Join INNER REPARTITION HASH_RIGHT") == 2


def test_joins_of_two_streams_are_unchanged() -> None:
    sql = "SELECT s.g, COUNT(*) AS c FROM s JOIN t ON s.g = t.g GROUP BY s.g"
    assert rewritten(sql, known(), ship="REPARTITION", local="HASH_RIGHT").trace == ()
