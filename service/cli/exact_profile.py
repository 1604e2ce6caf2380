"""Exact statistics of keys: jobs count all rows; the result has the form of a response of `POST /v1/profiles`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.cli.connection import read
from service.cli.session import Session
from service.cli.terminal import CliError, ExitCode
from service.cli.waiting import exit_code, wait
from service.client.problem_text import problem_head
from service.client.responses import Document, Job, ResultPage
from service.client.text import safe_line


def exact_profile(session: Session, source: Mapping[str, Any], keys: Sequence[Sequence[str]], limit: int) -> Document:
    """Submits two jobs for each key, one for its most frequent values and one for its totals. Raises CliError.

    If one of them fails or the command is interrupted, all of them are cancelled.
    """
    job_ids: list[str] = []
    profiles = []
    try:
        for columns in keys:
            queries = _values_sql(columns, limit), _totals_sql(columns)
            job_ids += (_submit(session, source, columns, sql) for sql in queries)
        for columns, values, totals in zip(keys, job_ids[::2], job_ids[1::2], strict=True):
            counted = _rows(session, values)
            (total,) = _rows(session, totals)
            profiles.append(_profile(columns, counted, total))
    except BaseException:
        _cancel(session, job_ids)
        raise
    rows = profiles[0]["rows"] if profiles else None
    return {"table": {"rows": rows, "rows_are_exact": True}, "keys": profiles, "job_ids": job_ids}


def _cancel(session: Session, job_ids: Sequence[str]) -> None:
    for job_id in job_ids:
        try:
            session.service.cancel(job_id)
        except CliError as error:
            if error.code is not ExitCode.CONFLICT:  # the job has ended
                session.output.note(f"The job {job_id} could not be cancelled: {error.message}")


def _submit(session: Session, source: Mapping[str, Any], columns: Sequence[str], sql: str) -> str:
    name = "".join(letter for letter in f"profile of {', '.join(columns)}" if letter.isprintable())[:200]
    document, _ = session.service.submit({"name": name, "tables": {"t": dict(source)}, "sql": sql})
    return read(Job, document).id


def _rows(session: Session, job_id: str) -> tuple[tuple[Any, ...], ...]:
    job = read(Job, wait(session, job_id))
    code = exit_code(job)
    if code is not ExitCode.OK:
        reason = f": {problem_head(job.error)}" if job.error else ""
        raise CliError(f"the counting job {job_id} ended {safe_line(job.status)}{reason}", code=code)
    return read(ResultPage, session.service.result_page(job_id, 1000)).rows


def _profile(columns: Sequence[str], counted: Sequence[Sequence[Any]], total: Sequence[Any]) -> Document:
    rows, distinct, nulls = (int(value or 0) for value in total)
    return {
        "columns": list(columns),
        "rows": rows,
        "rows_are_exact": True,
        "sampled_rows": rows,
        "distinct_keys": distinct,
        "null_share": nulls / rows if rows else 0.0,
        "hot_keys": [
            {
                "value": ", ".join("NULL" if value is None else str(value) for value in values),
                "share": int(count) / rows,
                "estimated_rows": int(count),
                "is_null": None in values,
            }
            for *values, count in counted
        ],
    }


def _values_sql(columns: Sequence[str], limit: int) -> str:
    of_table = ", ".join(f"t.{_quoted(column)}" for column in columns)
    rows = len(columns) + 1
    return f"SELECT {of_table}, COUNT(*) FROM t GROUP BY {of_table} ORDER BY {rows} DESC LIMIT {limit}"  # noqa: S608


def _totals_sql(columns: Sequence[str]) -> str:
    names = [f"k{number}" for number, _ in enumerate(columns)]
    named = ", ".join(f"t.{_quoted(column)} AS {name}" for column, name in zip(columns, names, strict=True))
    of_table = ", ".join(f"t.{_quoted(column)}" for column in columns)
    has_null = " OR ".join(f"g.{name} IS NULL" for name in names)
    counted = f"SELECT {named}, COUNT(*) AS n FROM t GROUP BY {of_table}"  # noqa: S608
    nulls = f"SUM(CASE WHEN {has_null} THEN g.n ELSE 0 END)"
    return f"SELECT SUM(g.n) AS total, COUNT(*) AS distinct_keys, {nulls} AS nulls FROM ({counted}) g"  # noqa: S608


def _quoted(name: str) -> str:
    escaped = name.replace("`", "``")
    return f"`{escaped}`"
