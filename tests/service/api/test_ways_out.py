"""What the refusal of a job says to do instead is accepted. `tests/sql/suggestions.test` has the refusals of SQL."""

from __future__ import annotations

import gzip
from copy import deepcopy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from tests.service.api.stream_ways_out import STREAM_CASES
from tests.support.api import Api

COUNT = "SELECT k, COUNT(*) AS n FROM t GROUP BY k"
STREAM: dict[str, Any] = {
    "mode": "incremental",
    "tables": {"t": {"path": "text", "schema": "k INT, v INT", "role": "stream"}},
}


CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "a nearby path": (
        {"tables": {"t": {"path": "txt"}}},
        "Did you mean text",
        {"tables": {"t": {"path": "text"}}},
    ),
    "files of two formats": (
        {"tables": {"t": {"path": "mixed"}}},
        "such as 'orders/*.csv'",
        {"tables": {"t": {"path": "mixed/*.csv"}}},
    ),
    "a format that is not that of the file": (
        {"tables": {"t": {"path": "text", "format": "parquet"}}},
        "set 'format' to csv",
        {"tables": {"t": {"format": "csv"}}},
    ),
    "the name of a format": (
        {"tables": {"t": {"path": "text", "format": "cvs"}}},
        "csv",
        {"tables": {"t": {"format": "csv"}}},
    ),
    "two delimiters": (
        {"tables": {"t": {"path": "tabs"}}},
        "set 'delimiter'",
        {"tables": {"t": {"options": {"delimiter": ","}}}},
    ),
    "the row of XML": (
        {"tables": {"t": {"path": "rows.xml"}}},
        "requires 'row_tag'",
        {"tables": {"t": {"options": {"row_tag": "row"}}}},
    ),
    "different columns": (
        {"tables": {"t": {"path": "merged"}}},
        "Set the option 'merge_schema'",
        {"tables": {"t": {"options": {"merge_schema": True}}}},
    ),
    "a schema of Parquet": (
        {"tables": {"t": {"path": "merged/a.parquet", "schema": "k INT"}}},
        "remove 'schema' from this table",
        {"tables": {"t": {"schema": None}}},
    ),
    "an option of another format": (
        {"tables": {"t": {"path": "text", "options": {"merge_schema": True}}}},
        "'merge_schema' has no effect on CSV files: remove it",
        {"tables": {"t": {"options": None}}},
    ),
    "a version of files": (
        {"tables": {"t": {"path": "text", "version": 1}}},
        "'version' has no effect on CSV files: remove it",
        {"tables": {"t": {"version": None}}},
    ),
    "the files of a Delta table": (
        {"tables": {"t": {"path": "versions", "format": "parquet"}}},
        "Set 'path' to its directory and 'format' to delta",
        {"tables": {"t": {"format": "delta"}}},
    ),
    "a compressed file without the suffix": (
        {"tables": {"t": {"path": "packed.csv"}}},
        "rename the file so that it ends in .gz",
        {"tables": {"t": {"path": "packed.csv.gz"}}},
    ),
    "an option": (
        {"tables": {"t": {"path": "text", "options": {"delimeter": ","}}}},
        "Did you mean delimiter",
        {"tables": {"t": {"options": {"delimeter": None, "delimiter": ","}}}},
    ),
    "schema and columns": (
        {"tables": {"t": {"path": "text", "schema": "k INT, v INT", "columns": {"k": "INT"}}}},
        "Give 'schema' with all columns, or 'columns'",
        {"tables": {"t": {"columns": None}}},
    ),
    "a setting": (
        {"settings": {"agg_fase": "TWO_PHASE"}},
        "Did you mean agg_phase",
        {"settings": {"agg_fase": None, "agg_phase": "TWO_PHASE"}},
    ),
    "a setting under two names": (
        {"settings": {"agg_phase": "TWO_PHASE", "table.optimizer.agg-phase-strategy": "ONE_PHASE"}},
        "remove one of them",
        {"settings": {"table.optimizer.agg-phase-strategy": None}},
    ),
    "a setting of joins": (
        {"settings": {"join.ship": "broadcast_right"}},
        "the query has no join. Remove the setting",
        {"settings": {"join.ship": None}},
    ),
    "parameters of a structured query": (
        {
            "sql": None,
            "query": {"source": {"kind": "table", "table": "t"}, "select": [{"expression": "k", "name": "k"}]},
            "parameters": {"a": 1},
        },
        "remove 'parameters'",
        {"parameters": None},
    ),
    "a list as a parameter": (
        {"sql": "SELECT k FROM t WHERE k IN (:ks)", "parameters": {"ks": [1, 2]}},
        "x IN (:first, :second)",
        {"sql": "SELECT k FROM t WHERE k IN (:first, :second)", "parameters": {"ks": None, "first": 1, "second": 2}},
    ),
    "a stream of a batch job": (
        {"tables": {"t": {"path": "text", "schema": "k INT, v INT", "role": "stream"}}},
        "set 'mode', or remove it",
        {"tables": {"t": {"role": None}}},
    ),
    "a job of streams without one": (
        {"mode": "incremental", "tables": {"t": {"path": "text", "schema": "k INT, v INT", "role": "static"}}},
        "set it for the table to which rows are added",
        {"tables": {"t": {"role": "stream"}}},
    ),
    "new files of a stream": (
        {**STREAM, "tables": {"t": {**STREAM["tables"]["t"], "refresh": True}}},
        "remove 'refresh'",
        {"tables": {"t": {"refresh": None}}},
    ),
    "retries of a job that is resumed": (
        {**STREAM, "limits": {"failure_retries": 2}},
        "remove 'failure_retries'",
        {"limits": {"failure_retries": None}},
    ),
    "a schedule of a continuous job": (
        {**STREAM, "mode": "continuous", "schedule": {"every": "1h"}},
        "remove 'schedule'",
        {"schedule": None},
    ),
    "the time limit of a continuous job": (
        {**STREAM, "mode": "continuous", "limits": {"timeout": "1h"}},
        "remove 'timeout'",
        {"limits": {"timeout": None}},
    ),
}
"""A job that is refused (changes of one that is not), the text that says what to do, and that change of the job; None
removes a field.
"""


@pytest.mark.one_database("sqlite")
def test_what_a_refusal_says_to_do_is_accepted(api: Api, subtests: pytest.Subtests) -> None:
    _write_tables(api.settings.data_roots[0])
    for case, (given, text, change) in CASES.items():
        with subtests.test(case):
            _follow(api, _changed({"tables": {"t": {"path": "text"}}, "sql": COUNT}, given), text, change)


_FOLLOWS = {"tables": {"followed": {"path": "text", "schema": "k INT, v INT", "role": "static", "refresh": True}}}
"""A job that follows a table does not compute its query by changes, so that more queries are refused."""


@pytest.mark.one_database("sqlite")
def test_what_the_refusal_of_a_streaming_job_says_to_do_is_accepted(api: Api, subtests: pytest.Subtests) -> None:
    _write_tables(api.settings.data_roots[0])
    for case, (job, text, change) in STREAM_CASES.items():
        with subtests.test(case):
            stays_stream = "mode" in job and "mode" not in change
            _follow(api, _changed(_FOLLOWS if stays_stream else {}, job), text, change)


def _follow(api: Api, job: dict[str, Any], text: str, change: dict[str, Any]) -> None:
    """Posts a job, and the one that the text of its refusal says to post instead."""
    refusal = api.client.post("/v1/jobs", json=job)
    assert refusal.status_code == 422, refusal.text
    assert text in " ".join(issue["detail"] for issue in refusal.json()["errors"])
    accepted = api.client.post("/v1/jobs", json=_changed(job, change))
    assert accepted.status_code == 202, accepted.text


def _write_tables(root: Path) -> None:
    for name in ("text", "mixed", "merged", "tabs", "events"):
        (root / name).mkdir()
    (root / "text" / "a.csv").write_text("k,v\n1,2\n")
    (root / "events" / "a.csv").write_text("k,v,ts\n1,2,2026-01-01T00:00:00Z\n")
    (root / "mixed" / "a.csv").write_text("k,v\n1,2\n")
    (root / "mixed" / "b.json").write_text('{"k": 1}\n')
    (root / "tabs" / "a.csv").write_text("k,v\n1,2\n")
    (root / "tabs" / "b.tsv").write_text("k,v\n1,2\n")
    (root / "packed.csv").write_bytes(gzip.compress(b"k,v\n1,2\n"))
    (root / "packed.csv.gz").write_bytes(gzip.compress(b"k,v\n1,2\n"))
    (root / "rows.xml").write_text("<a><row><k>1</k></row></a>")
    pq.write_table(pa.table({"k": pa.array([1], pa.int32())}), root / "merged" / "a.parquet")
    pq.write_table(pa.table({"k": pa.array([1], pa.int64()), "v": [2]}), root / "merged" / "b.parquet")
    write_deltalake(root / "versions", pa.table({"k": [1]}))


def _changed(job: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    result = deepcopy(job)
    for name, value in change.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict) and isinstance(result.get(name), dict):
            result[name] = _changed(result[name], value)
        else:
            result[name] = deepcopy(value)
    return result
