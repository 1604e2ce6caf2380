"""The frequent values of keys, counted by ordinary jobs over all rows and told as `POST /v1/profiles` tells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.client.connection import problem_head
from service.client.responses import Document, Job, ResultPage, read
from service.client.session import Session
from service.client.terminal import CliError, ExitCode, safe_line
from service.client.waiting import exit_code, wait


def exact_profile(session: Session, source: Mapping[str, Any], keys: Sequence[Sequence[str]], limit: int) -> Document:
    """Two jobs a key: its most frequent values, and how many there are in all. Raises CliError where one fails.

    Nobody else knows of these jobs: however this ends before they have, they are cancelled.
    """
    job_ids: list[str] = []
    told = []
    try:
        for columns in keys:
            job_ids += (_submit(session, source, columns, sql) for sql in _queries(columns, limit))
        for columns, values, totals in zip(keys, job_ids[::2], job_ids[1::2], strict=True):
            counted = _rows(session, values)
            (total,) = _rows(session, totals)
            told.append(_key(columns, counted, total))
    except BaseException:
        _cancel(session, job_ids)
        raise
    rows = told[0]["rows"] if told else None
    return {
        "table": {"rows": rows, "rows_are_exact": True},
        "keys": told,
        "job_ids": job_ids,
    }


def _cancel(session: Session, job_ids: Sequence[str]) -> None:
    for job_id in job_ids:
        try:
            session.service.cancel(job_id)
        except CliError as error:
            if error.code is not ExitCode.CONFLICT:  # it has ended
                session.output.note(f"The job {job_id} could not be cancelled: {error.message}")


def _submit(session: Session, source: Mapping[str, Any], columns: Sequence[str], sql: str) -> str:
    name = "".join(letter for letter in f"profile of {', '.join(columns)}" if letter.isprintable())[:200]
    document, _ = session.service.submit({"name": name, "tables": {"t": dict(source)}, "sql": sql})
    return read(Job, document).id


def _rows(session: Session, job_id: str) -> tuple[tuple[Any, ...], ...]:
    job = read(Job, wait(session, job_id))
    code = exit_code(job)
    if code is not ExitCode.OK:
        told = f": {problem_head(job.error)}" if job.error else ""
        raise CliError(f"the job {job_id} that counts ended {safe_line(job.status)}{told}", code=code)
    return read(ResultPage, session.service.result_page(job_id, 1000)).rows


def _key(columns: Sequence[str], counted: Sequence[Sequence[Any]], total: Sequence[Any]) -> Document:
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


def _queries(columns: Sequence[str], limit: int) -> tuple[str, str]:
    return _values_sql(columns, limit), _totals_sql(columns)


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
