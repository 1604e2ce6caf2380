"""Metrics of stages and operators, for tests of reports."""

from __future__ import annotations

from service.contract.reports import OperatorMetrics, Quantiles, StageMetrics
from tests.support.lifecycle import STAGE


def quantiles(least: float, first: float, median: float, third: float, most: float) -> Quantiles:
    """Returns the five quantiles of a metric of a stage's tasks."""
    return Quantiles(min=least, p25=first, median=median, p75=third, max=most)


def stage(
    times: tuple[float, ...] | None = (10.0, 10.0, 10.0, 10.0, 10.0),
    *,
    tasks: int = 5,
    wall_ms: int = 10_000,
    rows: int = 0,
    read: int = 0,
    written: int = 0,
    most: float | None = None,
    status: str = "COMPLETE",
    stage_id: int = 3,
) -> StageMetrics:
    """Returns a stage with these task times and shuffled rows. One task read `most` records and the others none; None
    if that is unknown.
    """
    changed = {
        "stage_id": stage_id,
        "name": "",
        "status": status,
        "tasks": tasks,
        "wall_ms": wall_ms,
        "input_rows": rows,
        "input_bytes": 0,
        "shuffle_read_rows": read,
        "shuffle_write_rows": written,
        "duration_ms": None if times is None else quantiles(*times),
        "records": None if most is None else quantiles(0, 0, 0, 0, most),
    }
    return STAGE.model_copy(update=changed)


def operator(
    number: int, name: str, *inputs: int, rows: int | None = None, detail: str = "", node: int | None = None
) -> OperatorMetrics:
    """Returns an operator with inputs, of which only the output rows are known."""
    return OperatorMetrics(
        id=number,
        operator=name,
        detail=detail or name,
        inputs=inputs,
        rows=rows,
        bytes=None,
        time_ms=None,
        spilled_bytes=None,
        node=node,
    )
