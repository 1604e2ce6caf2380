"""The traces of a streaming plan in the report."""

from __future__ import annotations

from typing import Any

import pytest

from service.contract.job import JobSpec
from service.contract.options import JobSettings
from service.sql.compile import compile_job
from service.sql.types.data_types import BIGINT, STRING, TIMESTAMP, Field, Schema
from workers.engine.plan.builder import build
from workers.engine.streaming.engine import traces_of
from workers.engine.streaming.stream_plan import stream_plan

SCHEMA = Schema((Field("k", STRING), Field("v", BIGINT), Field("ts", TIMESTAMP)))
COUNT = "SELECT k, COUNT(*) AS n FROM s GROUP BY k"


def told(sql: str, settings: dict[str, Any]) -> list[tuple[str, str]]:
    table = {"format": "parquet", "path": "s", "role": "stream", "event_time": {"column": "ts"}}
    spec = JobSpec.model_validate({"mode": "continuous", "tables": {"s": table, "t": table}, "sql": sql})
    plan = stream_plan(build(compile_job(spec, {"s": SCHEMA, "t": SCHEMA})), frozenset({"s", "t"}))
    traces = traces_of(plan, frozenset({"s", "t"}), JobSettings.model_validate(settings), is_changed=False)
    return [(trace.rule, trace.reason) for trace in traces]


def test_a_trace_reports_that_the_state_only_grows() -> None:
    shape, state = told(COUNT, {})
    assert shape[0] == "stream_shape"
    assert state[0] == "stream_state"
    assert state[1].startswith("Nothing is ever removed: the state keeps every group")


def test_a_trace_reports_that_windows_are_removed() -> None:
    _, state = told("SELECT COUNT(*) AS n FROM s GROUP BY TUMBLE(ts, INTERVAL '1' MINUTE)", {})
    assert state == ("stream_state", "The state of a window is removed once the watermark has passed its end.")


def test_rows_without_an_aggregate_have_no_state() -> None:
    assert [rule for rule, _ in told("SELECT k FROM s WHERE v > 0", {})] == ["stream_shape"]


NEAR = "s JOIN t ON s.k = t.k AND s.ts BETWEEN t.ts - INTERVAL '2' MINUTE AND t.ts + INTERVAL '1' SECOND"


def test_a_trace_reports_how_long_joined_rows_are_kept() -> None:
    (_, shape), (rule, state) = told(f"SELECT s.k, t.v FROM {NEAR}", {})
    assert shape.startswith("Spark joins the rows of both streams")
    assert rule == "stream_state"
    assert "left side until the watermark is 120s after their time, those of the right side until it is 1s" in state
    assert "twice" not in state


def test_traces_report_joined_rows_and_groups() -> None:
    _, _, (_, state) = told(f"SELECT s.v, COUNT(*) AS n FROM {NEAR} GROUP BY s.v", {})
    assert state.startswith("Nothing is ever removed: the state keeps every group")
    window = "TUMBLE(t.ts, INTERVAL '1' HOUR)"
    _, (_, rows), (_, state) = told(f"SELECT COUNT(*) AS n, COUNT(DISTINCT s.v) AS c FROM {NEAR} GROUP BY {window}", {})
    assert rows.endswith("The join runs twice, and its rows are kept twice: for DISTINCT, and for the others.")
    assert state.startswith("The state of a window is removed")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"agg_phase": "ONE_PHASE"}, "agg_phase has no effect"),
        ({"distinct_split": {"enabled": True}}, "distinct_split.* has no effect"),
        ({"distinct_method": "native"}, "distinct_method native has no effect"),
        ({"incremental_agg": False}, "incremental_agg has no effect"),
        ({"eager_aggregation": True}, "eager_aggregation has no effect"),
        ({"join": {"ship": "REPARTITION"}}, "join.ship and join.local have no effect"),
        ({"join": {"skew": "SALT"}}, "join.skew has no effect"),
        ({"skew": {"factor": 2}}, "skew.* has no effect"),
    ],
)
def test_a_trace_reports_a_setting_without_effect(settings: dict[str, Any], words: str) -> None:
    rule, reason = told(COUNT, settings)[-1]
    assert rule == "stream_settings"
    assert reason.startswith(words)


def test_settings_with_an_effect_have_no_trace() -> None:
    settings = {"mini_batch": {"size": 5}, "state": {"partitions": 3}}
    assert [rule for rule, _ in told(COUNT, settings)] == ["stream_shape", "stream_state"]
