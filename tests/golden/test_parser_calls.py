"""The text of a job is parsed once when it is submitted and once by the worker; rules parse nothing."""

from __future__ import annotations

import pytest
from sqlglot.parser import Parser

from service.contract.job import JobSpec
from service.contract.options import JobSettings
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from workers.engine.plan.builder import build
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.planner import plan_query, plan_report
from workers.engine.rules.required_statistics import statistics_keys
from workers.engine.statistics.cardinality import conditions_of
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

ORDERS = "uid BIGINT, item INT, price DECIMAL(10,2), city STRING"
USERS = "uid BIGINT, name STRING"
TABLES = {
    "orders": {"format": "csv", "path": "orders", "schema": ORDERS},
    "users": {"format": "csv", "path": "users", "schema": USERS},
}
SCHEMAS = {"orders": parse_schema(ORDERS, ""), "users": parse_schema(USERS, "")}
SQL = """
SELECT u.name, COUNT(DISTINCT o.item) AS items, SUM(o.price * 2) AS total, AVG(o.price) AS mean
FROM orders o JOIN users u ON o.uid = u.uid AND o.city <> 'x'
WHERE o.price > 1 AND (o.city LIKE 'A%' OR o.item IN (1, 2, 3))
GROUP BY u.name HAVING SUM(o.price) > 10 ORDER BY total DESC LIMIT 10
"""
QUERY = {
    "source": {"kind": "table", "table": "orders", "alias": "o"},
    "where": "o.price > 1",
    "group_by": [{"expression": "o.city", "name": "city"}],
    "aggregates": [{"function": "COUNT", "arguments": ["o.item"], "distinct": True, "name": "items"}],
}


class Calls:
    """How often sqlglot's parser was called."""

    def __init__(self) -> None:
        self.number = 0

    def taken(self) -> int:
        """The calls since the last time."""
        number, self.number = self.number, 0
        return number


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    made, parse = Calls(), Parser._parse

    def counted(*arguments: object, **named: object) -> object:
        made.number += 1
        return parse(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Parser, "_parse", counted)
    return made


def plan(spec: JobSpec) -> str:
    """Plans a job as a worker does, from its stored text on; returns the plan."""
    query = compile_job(spec, SCHEMAS, is_accepted=True)
    built = build(query)
    conditions_of(built)
    sizes = {
        scan.alias: TableSize(scan.alias, 8, 1_000_000_000, 20_000_000, True)
        for scan in walk_up(built)
        if isinstance(scan, Scan)
    }
    sketches = {
        columns: KeySketch(columns[0].partition(".")[0], columns, 60_000, 1_000_000, 0.0, ())
        for columns in statistics_keys(built)
    }
    statistics = Statistics(sizes, sketches, 64)
    planned = plan_query(query, statistics, JobSettings())
    plan_report(planned, statistics, None)
    return text_of(planned.after)


def test_sql_is_parsed_once_at_submission_and_once_by_the_worker(calls: Calls) -> None:
    spec = JobSpec.model_validate({"name": "job", "tables": TABLES, "sql": SQL + "-- of this test"})
    compile_job(spec, SCHEMAS)
    assert calls.taken() == 1
    first = plan(spec)
    assert calls.taken() > 1, "a process reads the templates of rules when they are first used"
    assert plan(spec.model_copy(update={"sql": f"{spec.sql}, again"})) == first
    assert calls.taken() == 1


def test_a_repeated_batch_query_is_not_parsed_again(calls: Calls) -> None:
    spec = JobSpec.model_validate({"name": "job", "tables": TABLES, "sql": SQL + "-- repeated"})
    compile_job(spec, SCHEMAS)
    plan(spec)
    calls.taken()
    again = spec.model_copy(
        update={"name": "another", "settings": JobSettings.model_validate({"agg_phase": "ONE_PHASE"})}
    )
    compile_job(again, SCHEMAS)
    plan(again)
    assert calls.taken() == 0
    # Other columns are another query.
    wider = SCHEMAS | {"users": parse_schema(f"{USERS}, age INT", "")}
    compile_job(spec, wider)
    assert calls.taken() == 1


def test_each_expression_of_a_structured_query_is_parsed_once(calls: Calls) -> None:
    spec = JobSpec.model_validate({"name": "job", "tables": TABLES, "query": QUERY})
    compile_job(spec, SCHEMAS)
    assert calls.taken() == 3
    plan(spec)
    calls.taken()
    plan(spec)
    assert calls.taken() == 3
