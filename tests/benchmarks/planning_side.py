"""Plans the queries of the planning benchmark with the source tree of the first argument.

    python tests/benchmarks/planning_side.py TREE

Reads a case as JSON from each line of stdin: `sql`, `knowledge`, `tables` and `columns`. Responds with a line:
processor seconds by stage, or `failed` with the error. Each side has its own process, so that it can be stopped when a
query takes too long, and because two source trees cannot be imported into one process.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

sys.path.insert(0, sys.argv[1])

from service.contract.job import JobSpec
from service.contract.options import JobSettings
from service.contract.reports import HotKey
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from workers.engine.plan.builder import build
from workers.engine.plan.expressions import literal
from workers.engine.plan.nodes import Node, Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.planner import plan_query, plan_report
from workers.engine.rules.required_statistics import (
    is_all_forced,
    joined_texts,
    statistics_keys,
    summed_columns,
    undecided,
)
from workers.engine.statistics.cardinality import conditions_of
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

T = TypeVar("T")
_SLOTS = 64
_ROWS_OF_FIRST, _ROWS, _BYTES_OF_ROW, _SAMPLED = 400_000_000, 20_000_000, 60, 64_000
_HOT = (("7", 0.2), ("8", 0.05))


def main() -> None:
    """Responds to every line of stdin."""
    for line in sys.stdin:
        try:
            answered = answer(json.loads(line))
        except Exception as error:  # noqa: BLE001 - it is reported with its case
            answered = {"failed": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answered) + "\n")
        sys.stdout.flush()


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """Returns the seconds of each stage of planning."""
    seconds: dict[str, float] = {}

    def timed(stage: str, work: Callable[[], T]) -> T:
        began = time.process_time()
        made = work()
        seconds[stage] = time.process_time() - began
        return made

    settings = JobSettings()
    schema = parse_schema(case["columns"], "/")
    tables = {name: {"format": "csv", "path": name, "schema": case["columns"]} for name in case["tables"]}
    spec = JobSpec.model_validate({"name": "planning", "tables": tables, "sql": case["sql"]})
    gc.collect()
    query = timed("compile", lambda: compile_job(spec, dict.fromkeys(case["tables"], schema), is_accepted=True))
    built = timed("build", lambda: build(query))
    keys = timed("needs", lambda: _needs(built, settings))
    statistics = _statistics(built, keys, case["knowledge"])
    plan = timed("rules", lambda: plan_query(query, statistics, settings))
    timed("report", lambda: plan_report(plan, statistics, None))
    return {"seconds": seconds}


def _needs(built: Node, settings: JobSettings) -> frozenset[tuple[str, ...]]:
    """Determines the required statistics of a plan and returns the keys to sketch."""
    is_all_forced(built, settings)
    is_open = undecided(built, settings)
    keys = statistics_keys(built, is_open)
    conditions_of(built)
    summed_columns(built)
    joined_texts(built, is_open)
    statistics_keys(built)
    return keys


def _statistics(built: Node, keys: frozenset[tuple[str, ...]], knowledge: str) -> Statistics:
    if knowledge == "none":
        return Statistics({}, {}, _SLOTS)
    sizes, types = {}, {}
    for scan in walk_up(built):
        if isinstance(scan, Scan):
            rows = _ROWS_OF_FIRST if scan.table == "t0" else _ROWS
            sizes[scan.alias] = TableSize(scan.alias, 8, rows * _BYTES_OF_ROW, rows, True)
            types.update({field.name: field.type for field, _ in scan.columns})
    sketches = {}
    for columns in keys:
        alias = columns[0].rpartition(".")[0]
        rows = sizes[alias].rows
        hot = _HOT if knowledge == "hot" and len(columns) == 1 else ()
        values = tuple(HotKey(value=text, share=share, estimated_rows=round(share * rows)) for text, share in hot)
        exact = [literal(text, types[columns[0]]) for text, _ in hot]
        literals = tuple(None if one is None else (one,) for one in exact)
        sketches[columns] = KeySketch(alias, columns, _SAMPLED, rows // 20, 0.0, values, literals=literals)
    return Statistics(sizes, sketches, _SLOTS)


if __name__ == "__main__":
    main()
