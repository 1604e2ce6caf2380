"""Refusals of streaming jobs, and the changes of the job that they name: data of `test_ways_out.py`."""

from __future__ import annotations

from typing import Any

_EVENTS = {"path": "events", "schema": "k INT, v INT, ts TIMESTAMP", "role": "stream"}
_TIMED = {**_EVENTS, "event_time": {"column": "ts", "delay": "10m"}}
_NAMES = {"path": "text", "schema": "k INT, v INT", "role": "static"}
_WINDOW = "TUMBLE(s.ts, INTERVAL '1' HOUR)"
_BOUNDS = "s.ts BETWEEN t.ts - INTERVAL '1' HOUR AND t.ts + INTERVAL '1' HOUR"
_GROUPS = "SELECT s.k, COUNT(*) AS n FROM s GROUP BY s.k"
_STATIC = {"tables": {"t": {"role": "static", "event_time": None}}}


def _job(sql: str, tables: str = "s", **parts: Any) -> dict[str, Any]:
    """A streaming job. `tables`: s and t are streams with event times, p and q streams without, d is static."""
    known = {"s": _TIMED, "t": _TIMED, "p": _EVENTS, "q": _EVENTS, "d": _NAMES}
    return {"mode": "incremental", "sql": sql, "tables": {name: known[name] for name in tables}, **parts}


def _sql(sql: str) -> dict[str, Any]:
    return {"sql": sql}


STREAM_CASES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "no stream": (_job("SELECT k FROM d", "sd"), "Name one in FROM", _sql("SELECT d.k FROM s JOIN d ON s.k = d.k")),
    "a batch job instead": (
        {"mode": "incremental", "tables": {"d": {**_NAMES, "role": "static"}, "s": _EVENTS}, "sql": "SELECT k FROM d"},
        "or use the mode 'batch'",
        {"mode": None, "tables": {"d": {"role": None}, "s": {"role": None}}},
    ),
    "a table without a role": (
        {
            **_job("SELECT s.k FROM s JOIN d ON s.k = d.k", "sd"),
            "tables": {"s": _EVENTS, "d": {**_NAMES, "role": None}},
        },
        "needs a 'role', since the job has several tables: 'stream' or 'static'",
        {"tables": {"d": {"role": "static"}}},
    ),
    "an event time of a static table": (
        _job("SELECT s.k FROM s JOIN t ON s.k = t.k", "st")
        | {"tables": {"s": _TIMED, "t": {**_TIMED, "role": "static"}}},
        "remove it, or set the table's role to 'stream'",
        {"tables": {"t": {"event_time": None}}},
    ),
    "HAVING that turns false": (
        _job("SELECT k, COUNT(*) AS n FROM s GROUP BY k HAVING COUNT(*) < 3"),
        "COUNT, MAX, or SUM of values that cannot be negative, greater than a constant",
        _sql("SELECT k, COUNT(*) AS n FROM s GROUP BY k HAVING COUNT(*) > 3"),
    ),
    "WHERE over an aggregate": (
        _job(f"SELECT k FROM ({_GROUPS}) g WHERE n > 3"),
        "with HAVING instead of the outer WHERE",
        _sql(f"{_GROUPS} HAVING COUNT(*) > 3"),
    ),
    "an aggregate of windows": (
        _job(f"SELECT SUM(n) AS x FROM (SELECT s.k, COUNT(*) AS n FROM s GROUP BY s.k, {_WINDOW}) g"),
        "Group by longer windows",
        _sql("SELECT COUNT(*) AS n FROM s GROUP BY TUMBLE(s.ts, INTERVAL '1' DAY)"),
    ),
    "a call with OVER": (
        _job("SELECT k, RANK() OVER (ORDER BY v) AS r FROM s"),
        "Group by a window of time (TUMBLE or HOP)",
        _sql(f"SELECT s.k, MAX(s.v) AS v FROM s GROUP BY s.k, {_WINDOW}"),
    ),
    "UNION ALL with a static table": (
        _job("SELECT k FROM s UNION ALL SELECT k FROM d", "sd"),
        "Give the static table the role 'stream'",
        {"tables": {"d": {"role": "stream"}}},
    ),
    "LEFT JOIN that keeps static rows": (
        _job("SELECT d.k, COUNT(*) AS n FROM d LEFT JOIN s ON s.k = d.k GROUP BY d.k", "sd"),
        "Keep the unmatched rows of the stream instead",
        _sql("SELECT d.k, COUNT(*) AS n FROM s LEFT JOIN d ON s.k = d.k GROUP BY d.k"),
    ),
    "LEFT JOIN that keeps static rows, INNER": (
        _job("SELECT d.k, COUNT(*) AS n FROM d LEFT JOIN s ON s.k = d.k GROUP BY d.k", "sd"),
        "or use an INNER JOIN",
        _sql("SELECT d.k, COUNT(*) AS n FROM d INNER JOIN s ON s.k = d.k GROUP BY d.k"),
    ),
    "values that are kept": (
        _job("SELECT k, COLLECT_LIST(v) AS l FROM s GROUP BY k"),
        "group by a window (TUMBLE, HOP)",
        _sql(f"SELECT s.k, COLLECT_LIST(s.v) AS l FROM s GROUP BY s.k, {_WINDOW}"),
    ),
    "DISTINCT with ROLLUP": (
        _job("SELECT k, COUNT(DISTINCT v) AS n FROM s GROUP BY ROLLUP (k)"),
        "Submit a job for each of the grouping sets",
        _sql("SELECT k, COUNT(DISTINCT v) AS n FROM s GROUP BY k"),
    ),
    "DISTINCT of nested fractions": (
        _job("SELECT k, COUNT(DISTINCT array(double(v))) AS n FROM s GROUP BY k"),
        "Store their parts in separate columns, and use these",
        _sql("SELECT k, COUNT(DISTINCT double(v)) AS n FROM s GROUP BY k"),
    ),
    "a join without bounds": (
        _job("SELECT s.k FROM s JOIN t ON s.k = t.k", "st"),
        _BOUNDS,
        _sql(f"SELECT s.k FROM s JOIN t ON s.k = t.k AND {_BOUNDS}"),
    ),
    "a join without bounds, grouped": (
        _job("SELECT s.k FROM s JOIN t ON s.k = t.k", "st"),
        "aggregate with the join key in GROUP BY",
        _sql("SELECT s.k, COUNT(*) AS n FROM s JOIN t ON s.k = t.k GROUP BY s.k"),
    ),
    "a join without bounds, static": (
        _job("SELECT s.k FROM s JOIN t ON s.k = t.k", "st"),
        "give one of the two tables the role 'static'",
        _STATIC,
    ),
    "IN of a stream": (
        _job("SELECT s.k FROM s WHERE s.k IN (SELECT k FROM t)", "st"),
        "IN or EXISTS has to be written as such a join",
        _sql(f"SELECT s.k FROM s LEFT SEMI JOIN t ON s.k = t.k AND {_BOUNDS}"),
    ),
    "a join without event times": (
        _job("SELECT p.k FROM p JOIN q ON p.k = q.k", "pq"),
        "Declare 'event_time' on p and q, and bound the time between joined rows in ON",
        {
            "tables": {name: {"event_time": {"column": "ts", "delay": "10m"}} for name in "pq"},
            "sql": "SELECT p.k FROM p JOIN q ON p.k = q.k AND p.ts BETWEEN q.ts - INTERVAL '1' HOUR AND q.ts",
        },
    ),
    "groups that are not the join key": (
        _job("SELECT p.v, COUNT(*) AS n FROM p JOIN q ON p.k = q.k GROUP BY p.v", "pq"),
        "Group by the complete join key",
        _sql("SELECT p.k, COUNT(*) AS n FROM p JOIN q ON p.k = q.k GROUP BY p.k"),
    ),
    "FULL JOIN": (
        _job("SELECT p.k, COUNT(*) AS n FROM p FULL JOIN q ON p.k = q.k GROUP BY p.k", "pq"),
        "Use an INNER, LEFT or RIGHT JOIN",
        _sql("SELECT p.k, COUNT(*) AS n FROM p LEFT JOIN q ON p.k = q.k GROUP BY p.k"),
    ),
    "an anti join": (
        _job("SELECT p.k, COUNT(*) AS n FROM p LEFT ANTI JOIN q ON p.k = q.k GROUP BY p.k", "pq"),
        "or use a LEFT JOIN, count a column of q",
        _sql("SELECT p.k, COUNT(q.k) AS n FROM p LEFT JOIN q ON p.k = q.k GROUP BY p.k"),
    ),
    "an anti join, static": (
        _job("SELECT p.k, COUNT(*) AS n FROM p LEFT ANTI JOIN q ON p.k = q.k GROUP BY p.k", "pq"),
        "Give the table of q the role 'static'",
        {"tables": {"q": {"role": "static"}}},
    ),
    "a join without an equality": (
        _job("SELECT p.k, COUNT(*) AS n FROM p JOIN q ON p.v > q.v GROUP BY p.k", "pq"),
        "or join them by a key",
        _sql("SELECT p.k, COUNT(*) AS n FROM p JOIN q ON p.k = q.k GROUP BY p.k"),
    ),
    "a condition on both sides": (
        _job("SELECT p.k, COUNT(*) AS n FROM p JOIN q ON p.k = q.k AND p.v > q.v GROUP BY p.k", "pq"),
        "or remove the condition",
        _sql("SELECT p.k, COUNT(*) AS n FROM p JOIN q ON p.k = q.k GROUP BY p.k"),
    ),
    "a sum over both sides": (
        _job("SELECT p.k, SUM(p.v + q.v) AS n FROM p JOIN q ON p.k = q.k GROUP BY p.k", "pq"),
        "or SUM of a product of both sides",
        _sql("SELECT p.k, SUM(p.v * q.v) AS n, MAX(q.v) AS m FROM p JOIN q ON p.k = q.k GROUP BY p.k"),
    ),
    "three streams": (
        _job("SELECT s.k, COUNT(*) AS n FROM s JOIN t ON s.k = t.k JOIN p ON p.k = s.k GROUP BY s.k", "stp"),
        "Give all tables but two the role 'static'",
        {
            "tables": {"p": {"role": "static"}},
            "sql": "SELECT s.k, COUNT(*) AS n FROM (SELECT s.k FROM s JOIN p ON p.k = s.k) s JOIN t ON s.k = t.k "
            "GROUP BY s.k",
        },
    ),
    "bounds that contradict each other": (
        _job("SELECT s.k FROM s JOIN t ON s.k = t.k AND s.ts BETWEEN t.ts AND t.ts - INTERVAL '1' HOUR", "st"),
        "s.ts BETWEEN t.ts - INTERVAL '3600' SECOND AND t.ts",
        _sql("SELECT s.k FROM s JOIN t ON s.k = t.k AND s.ts BETWEEN t.ts - INTERVAL '3600' SECOND AND t.ts"),
    ),
    "an outer join that is updated": (
        _job(f"SELECT s.k, COUNT(*) AS n FROM s LEFT JOIN t ON s.k = t.k AND {_BOUNDS} GROUP BY s.k", "st"),
        "or group by a window (TUMBLE, HOP) with the output mode 'append'",
        {
            "output_mode": "append",
            "sql": f"SELECT s.k, COUNT(*) AS n FROM s LEFT JOIN t ON s.k = t.k AND {_BOUNDS} GROUP BY s.k, {_WINDOW}",
        },
    ),
    "an outer join that is updated, by its key": (
        _job(f"SELECT s.k, COUNT(*) AS n FROM s LEFT JOIN t ON s.k = t.k AND {_BOUNDS} GROUP BY s.k", "st"),
        "group by the join key only, without time bounds in ON",
        _sql("SELECT s.k, COUNT(*) AS n FROM s LEFT JOIN t ON s.k = t.k GROUP BY s.k"),
    ),
    "a window over joined streams": (
        _job(f"SELECT COUNT(*) AS n FROM s JOIN t ON s.k = t.k GROUP BY {_WINDOW}", "st"),
        "bound the time between joined rows in ON",
        _sql(f"SELECT COUNT(*) AS n FROM s JOIN t ON s.k = t.k AND {_BOUNDS} GROUP BY {_WINDOW}"),
    ),
    "a window over a number": (
        _job("SELECT COUNT(*) AS n FROM s GROUP BY TUMBLE(v, INTERVAL '1' HOUR)"),
        "Name a TIMESTAMP column that is declared as the 'event_time' of its table",
        _sql(f"SELECT COUNT(*) AS n FROM s GROUP BY {_WINDOW}"),
    ),
    "a window without an event time": (
        _job("SELECT COUNT(*) AS n FROM p GROUP BY TUMBLE(ts, INTERVAL '1' HOUR)", "p"),
        '"event_time": {"column": "ts", "delay": "10m"}',
        {"tables": {"p": {"event_time": {"column": "ts", "delay": "10m"}}}},
    ),
    "a slide that is too long": (
        _job("SELECT COUNT(*) AS n FROM s GROUP BY HOP(ts, INTERVAL '2' HOUR, INTERVAL '1' HOUR)"),
        "Use a slide of at most the window's size",
        _sql("SELECT COUNT(*) AS n FROM s GROUP BY HOP(ts, INTERVAL '1' HOUR, INTERVAL '1' HOUR)"),
    ),
    "a session window": (
        _job("SELECT k, COUNT(*) AS n FROM s GROUP BY k, SESSION(ts, INTERVAL '1' HOUR)"),
        "Group by a window of time (TUMBLE or HOP)",
        _sql("SELECT k, COUNT(*) AS n FROM s GROUP BY k, TUMBLE(ts, INTERVAL '1' HOUR)"),
    ),
    "a window of a batch job": (
        {"tables": {"s": {"path": "events", "schema": "k INT, v INT, ts TIMESTAMP"}}}
        | _sql(f"SELECT COUNT(*) AS n FROM s GROUP BY {_WINDOW}"),
        "or group by date_trunc('hour', t)",
        _sql("SELECT COUNT(*) AS n FROM s GROUP BY date_trunc('hour', ts)"),
    ),
    "groups that are appended": (
        _job(_GROUPS, output_mode="append"),
        "or set 'output_mode' to 'update'",
        {"output_mode": "update"},
    ),
    "groups that are appended, in windows": (
        _job(_GROUPS, output_mode="append"),
        "Group by a window (TUMBLE, HOP) over the table's 'event_time'",
        _sql(f"SELECT COUNT(*) AS n FROM s GROUP BY {_WINDOW}"),
    ),
    "groups in Parquet files": (
        _job(_GROUPS, sink={"kind": "parquet", "path": "out"}),
        "Use the sink 'managed', 'delta' or 'postgres'",
        {"sink": {"kind": "delta"}},
    ),
    "groups in Parquet files, in windows": (
        _job(_GROUPS, sink={"kind": "parquet", "path": "out"}),
        "or group by a window with the output mode 'append'",
        {"output_mode": "append", "sql": f"SELECT COUNT(*) AS n FROM s GROUP BY {_WINDOW}"},
    ),
    "a sink without the keys": (
        _job("SELECT COUNT(*) AS n FROM s GROUP BY k", sink={"kind": "postgres", "connection": "w", "table": "a"}),
        "Select every key of GROUP BY unchanged",
        _sql("SELECT k, COUNT(*) AS n FROM s GROUP BY k"),
    ),
    "a sink of grouping sets": (
        _job("SELECT k, COUNT(*) AS n FROM s GROUP BY ROLLUP (k)", sink={"kind": "delta", "path": "out"}),
        "Group by one set of keys",
        _sql("SELECT k, COUNT(*) AS n FROM s GROUP BY k"),
    ),
    "a sink of grouping sets, managed": (
        _job("SELECT k, COUNT(*) AS n FROM s GROUP BY ROLLUP (k)", sink={"kind": "delta", "path": "out"}),
        "or use the sink 'managed'",
        {"sink": None},
    ),
    "a sink of a batch job": (
        {"tables": {"d": {"path": "text"}}, "sql": "SELECT k FROM d", "sink": {"kind": "parquet", "path": "out"}},
        "The sink 'parquet' is for the modes 'incremental' and 'continuous': set 'mode', or remove it",
        {"sink": None},
    ),
    "a reserved table": (
        _job(_GROUPS, sink={"kind": "postgres", "connection": "w", "table": "evenkeel_batches"}),
        "are reserved for the service",
        {"sink": {"table": "batches"}},
    ),
    "a comparison": (
        _job(_GROUPS, compare_with="e0a9a1ab-1ff8-4d24-8f9e-cb6b3df1f6c4"),
        "remove 'compare_with'",
        {"compare_with": None},
    ),
    "no time limit": (
        _job(_GROUPS, limits={"timeout": None}),
        "Only a continuous job may have no time limit: set one",
        {"limits": {"timeout": "1h"}},
    ),
}
"""As `CASES`."""
