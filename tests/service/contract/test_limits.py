"""Large queries of every shape are compiled, or refused with a limit and a remedy."""

from __future__ import annotations

import re
from typing import Any

import pytest

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.contract.query import CODE, JOINS, LIMITS, TABLE_COLUMNS, Query
from service.sql import compile as compile_module
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from service.sql.expressions import compile_expression, nodes
from service.sql.resolve import aggregates
from service.sql.resolve import from_clause as equi_joins
from service.sql.statements.clauses import select as sql_select
from service.sql.statements.tables import from_clause as sql_from
from service.sql.types import inference
from tests.support.shapes import ACCEPTED, ACCEPTED_EARLIER, MANY_JOINS, TABLE, chain, joins, listed, sql

SCHEMA = parse_schema("a BIGINT, b INT, s STRING, ok BOOLEAN", "/x")
SCHEMAS = {TABLE: SCHEMA}


def job(part: dict[str, Any]) -> JobSpec:
    return JobSpec.model_validate({"tables": {TABLE: {"format": "parquet", "path": "t/"}}, **part})


def refusal(part: dict[str, Any], schemas: dict[str, Any] | None = None) -> SpecError:
    with pytest.raises(SpecError) as caught:
        compile_job(job(part), schemas or SCHEMAS)
    return caught.value


def test_each_limit_has_a_name_and_a_remedy() -> None:
    assert len({limit.name for limit in LIMITS}) == len(LIMITS)
    for limit in LIMITS:
        assert re.fullmatch("[a-z_]+", limit.name)
        assert limit.remedy.endswith(".")


def test_a_refusal_has_the_number_the_limit_and_the_remedy() -> None:
    assert JOINS.detail(200).startswith("The query has 200 joins in one FROM; at most 100 (limit `joins`). Split")
    assert JOINS.detail().startswith("The query has more than 100 joins in one FROM; at most 100 (limit `joins`).")


@pytest.mark.not_quick
@pytest.mark.parametrize("shape", [*ACCEPTED, *MANY_JOINS])
def test_a_large_query_is_compiled(shape: str) -> None:
    assert compile_job(job({**ACCEPTED, **MANY_JOINS}[shape]), SCHEMAS).select


SHARED = f"concat({listed('s', 2_000)})"
REPEATED = {
    "a long operand of IN": f"SELECT a FROM t WHERE {SHARED} IN ({listed(chr(39) + 'x#' + chr(39), 5_000)})",
    "a long operand of CASE": "SELECT CASE {} {} END AS x FROM t".format(
        SHARED, " ".join(f"WHEN 'x{number}' THEN {number}" for number in range(3_000))
    ),
    "long conditions in both branches of an OR": "SELECT t.a FROM t, t u WHERE ({0}) OR ({0})".format(
        chain("AND", "t.a <> #", 900)
    ),
    "100 tables and equalities that connect none": f"SELECT COUNT(*) AS n FROM {listed('t t#', 100)} "
    f"WHERE {chain('AND', 't0.a = t0.b', 900)}",
    "deep expressions over a group key": f"SELECT {listed('a' + '+1' * 55 + ' AS c#', 150)} FROM t GROUP BY a",
    "deep conditions on a group key": "SELECT a FROM t GROUP BY a HAVING "
    f"{chain('AND', 'a' + '+1' * 55 + ' > #', 150)}",
    "many names in HAVING": f"SELECT {listed('a + # AS c#', 60)}, COUNT(*) AS n FROM t "
    f"GROUP BY {listed('c#', 60)} HAVING {chain('OR', 'c7 > #', 1_400)}",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", REPEATED)
def test_the_compiler_takes_linear_time(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the steps of the compiler: a scan of everything for each part would take millions."""
    steps = 0

    def counted(original: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal steps
            steps += 1
            return original(*arguments, **named)

        return call

    monkeypatch.setattr(nodes.Comparison, "__eq__", counted(nodes.Comparison.__eq__))
    monkeypatch.setattr(inference.Typing, "type_of", counted(inference.Typing.type_of))
    monkeypatch.setattr(sql_from.Sources, "qualify", counted(sql_from.Sources.qualify))
    for module, function in (
        (compile_expression, "resolve"),
        (aggregates, "resolve"),
        (aggregates, "walk"),
        (sql_select, "walk"),
        (equi_joins, "_pair"),
    ):
        monkeypatch.setattr(module, function, counted(getattr(module, function)))
    assert compile_job(job(sql(REPEATED[name])), SCHEMAS).select
    assert steps < 200_000


def test_a_name_is_resolved_without_a_scan_of_all_columns() -> None:
    wide = parse_schema(listed("c# BIGINT", 3_000), "/x")
    compared = 0

    class Counted(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return super().__eq__(other)

    for field in wide.fields:
        object.__setattr__(field, "name", Counted(field.name))
    assert all(wide.find(f"c{number}") for number in range(3_000))
    assert compared <= 3_000


def test_tables_with_many_columns_are_read_a_few_times_only() -> None:
    wide = {TABLE: parse_schema(f"a BIGINT, {listed('c# INT', 3_000)}", "/x")}
    error = refusal(sql(joins(99)), wide)
    assert error.code == CODE
    assert f"300100 {TABLE_COLUMNS.counted}; at most {TABLE_COLUMNS.most}" in str(error)


@pytest.mark.not_quick
def test_a_job_that_was_accepted_earlier_is_compiled() -> None:
    wide = {TABLE: parse_schema(f"a BIGINT, {listed('c# INT', 3_000)}", "/x")}
    assert compile_job(job(sql(joins(99))), wide, is_accepted=True).joins


@pytest.mark.slow
@pytest.mark.parametrize("shape", ACCEPTED_EARLIER)
def test_a_query_that_was_accepted_before_a_limit_existed_is_compiled(shape: str) -> None:
    limit, part = ACCEPTED_EARLIER[shape]
    assert f"(limit `{limit}`)" in str(refusal(part))
    assert compile_job(job(part), SCHEMAS, is_accepted=True).select
    assert compile_job(job(part), SCHEMAS, is_accepted=True, has_new_settings=True).select


def test_the_new_settings_of_an_accepted_job_are_checked() -> None:
    _, part = ACCEPTED_EARLIER["AND of 1,200"]
    spec = job({**part, "settings": {"distinct_split": {"enabled": "true"}}})
    assert compile_job(spec, SCHEMAS, is_accepted=True).select
    with pytest.raises(SpecError) as caught:
        compile_job(spec, SCHEMAS, is_accepted=True, has_new_settings=True)
    assert caught.value.code != CODE


@pytest.mark.parametrize("shape", ["calls 32 deep", "structure: queries 11 deep"])
def test_a_recursion_error_is_refused(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(*arguments: Any, **named: Any) -> Any:
        return endless(*arguments, **named)

    monkeypatch.setattr(compile_module, "bind", endless)
    # Earlier tests compiled the same query.
    compile_module._bound_batch_query.cache_clear()
    assert refusal(ACCEPTED[shape]).code == CODE


@pytest.mark.parametrize(
    ("part", "version"),
    [
        (sql("SELECT a FROM t"), 3),
        (sql(joins(30)), 3),
        (sql(joins(33)), 9),
        (sql(chain("UNION ALL", "SELECT a FROM t", 64)), 9),
        (ACCEPTED["AND of 1,000"], 9),
        (ACCEPTED["structure: queries 11 deep"], 3),
        (MANY_JOINS["structure: 60 joins"], 9),
    ],
)
def test_larger_queries_need_newer_workers(part: dict[str, Any], version: int) -> None:
    assert compile_job(job(part), SCHEMAS).needs_version == version


def test_sql_and_structured_unions_have_the_same_limit_of_branches() -> None:
    assert Query.model_validate(ACCEPTED["structure: 64 branches"]["query"])
    assert compile_job(job(ACCEPTED["64 branches"]), SCHEMAS).select
