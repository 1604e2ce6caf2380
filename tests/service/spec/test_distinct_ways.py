"""A forced way of telling distinct values apart that no aggregate of the query can follow is refused."""

from __future__ import annotations

import pytest

from service.spec.compile import compile_job
from service.spec.errors import SpecError
from service.spec.job import JobSpec
from service.spec.types import DOUBLE, INT, Field, Schema, array
from tests.support.compiled import compiled

COLUMNS = "k INT, i BIGINT, s STRING, q BOOLEAN, da DATE, m DECIMAL(18,4), w DECIMAL(19,4), d DOUBLE"


def submit(method: str, calls: str, by: str = "k", split: str = "auto", buckets: int = 1024) -> None:
    sql = f"SELECT k, {calls} FROM t GROUP BY {by}"
    settings = {"distinct_method": method, "distinct_split": {"enabled": split, "bucket_num": buckets}}
    compiled({"t": COLUMNS}, sql, settings=settings)


@pytest.mark.parametrize(
    ("method", "calls", "words"),
    [
        ("bitmap", "COUNT(DISTINCT s) AS n, COUNT(*) AS c", "a bitmap counts"),
        ("bitmap", "COUNT(DISTINCT d) AS n, COUNT(*) AS c", "a bitmap counts"),
        ("bitmap", "COUNT(DISTINCT w) AS n, COUNT(*) AS c", "DECIMALs of up to 18 digits"),
        ("bitmap", "COUNT(DISTINCT i, k) AS n, COUNT(*) AS c", "single integers"),
        ("bitmap", "COUNT(DISTINCT i) AS n, SUM(DISTINCT i) AS s", "neither SUM nor AVG"),
        ("bitmap", ", ".join(f"COUNT(DISTINCT s) FILTER (WHERE i > {n}) AS n{n}" for n in range(9)), "a bitmap counts"),
        ("branches", "COUNT(DISTINCT i) AS n, SUM(DISTINCT i) AS s", "of one set"),
        *((method, "COUNT(*) AS n", "no aggregate of the query") for method in ("bitmap", "branches", "split")),
        ("split", "MAX(DISTINCT s) AS n", "MIN and MAX are the same without"),
    ],
)
def test_what_no_aggregate_can_follow_is_an_error(method: str, calls: str, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        submit(method, calls)
    (issue,) = caught.value.issues
    assert (issue.code, issue.pointer) == ("unsupported_distinct_method", "/settings/distinct_method")
    assert words in issue.detail


@pytest.mark.parametrize(
    ("calls", "by", "words"),
    [
        ("COUNT(*) AS n", "k", "no aggregate of the query is over DISTINCT values"),
        ("MAX(DISTINCT s) AS n", "k", "MIN and MAX are the same without"),
        ("COUNT(DISTINCT i) AS n", "ROLLUP (k)", "several grouping sets"),
    ],
)
def test_a_split_that_no_aggregate_can_follow_is_an_error_however_it_is_asked_for(
    calls: str, by: str, words: str
) -> None:
    with pytest.raises(SpecError) as caught:
        submit("auto", calls, by, split="true")
    (issue,) = caught.value.issues
    assert (issue.code, issue.pointer) == ("unsupported_distinct_method", "/settings/distinct_split/enabled")
    assert issue.detail.startswith("distinct_split.enabled true cannot be had: ")
    assert words in issue.detail
    assert issue.detail.endswith("Leave the setting out, or set it to auto.")
    for free in ("auto", "false"):
        submit("auto", calls, by, split=free)


def test_a_split_that_one_may_follow_is_taken_and_its_parameters_demand_nothing() -> None:
    submit("auto", "COUNT(DISTINCT s) AS n", split="true")
    submit("auto", "COUNT(*) AS n", split="auto", buckets=7)


@pytest.mark.parametrize(
    ("method", "calls"),
    [
        *(("bitmap", f"COUNT(DISTINCT {name}) AS n") for name in ("i", "q", "da", "m")),
        ("bitmap", "COUNT(DISTINCT s) AS n, COUNT(DISTINCT i) AS m"),
        # By an integer, which has the bits.
        *(("bitmap", f"COUNT(DISTINCT {names}) AS n") for names in ("s", "d", "w", "s, d")),
        ("bitmap", "COUNT(DISTINCT i) AS n, SUM(DISTINCT i) AS t, COUNT(DISTINCT s) AS m, COUNT(*) AS c"),
        ("split", "COUNT(DISTINCT s) AS n"),
        ("branches", "COUNT(DISTINCT s) AS n, COUNT(DISTINCT i) AS m"),
        ("native", "COUNT(DISTINCT s) AS n"),
        ("native", "COUNT(*) AS n"),
        ("auto", "COUNT(*) AS n"),
    ],
)
def test_what_one_may_follow_is_taken(method: str, calls: str) -> None:
    submit(method, calls)


def test_fractions_in_arrays_are_not_split() -> None:
    schema = Schema((Field("k", INT), Field("x", array(DOUBLE)), Field("a", array(INT))))
    tables = {"t": {"format": "parquet", "path": "t"}}

    def submit_nested(calls: str, **settings: str) -> None:
        job = {"tables": tables, "sql": f"SELECT k, {calls} FROM t GROUP BY k", "settings": settings}
        compile_job(JobSpec.model_validate(job), {"t": schema})

    for calls in ("COUNT(DISTINCT x) AS n", "COUNT(DISTINCT a) AS n, COUNT(DISTINCT k, x) AS m"):
        submit_nested(calls, distinct_method="branches" if "," in calls else "native")
        with pytest.raises(SpecError, match="may have different hashes") as caught:
            submit_nested(calls, distinct_method="split")
        assert caught.value.code == "unsupported_distinct_method"
    submit_nested("COUNT(DISTINCT a) AS n", distinct_method="split")


def test_grouping_sets_are_left_to_spark() -> None:
    with pytest.raises(SpecError, match="several grouping sets") as caught:
        submit("split", "COUNT(DISTINCT i) AS n", by="ROLLUP (k)")
    assert caught.value.code == "unsupported_distinct_method"
