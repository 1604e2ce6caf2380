"""Spark's operators as they ran, from what its SQL page shows of a query."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from service.spec.reports import OperatorMetrics
from workers.engine.spark.sql_executions import MOST_OPERATORS, Execution

_ROWS = {"Exchange": "shuffle records written"}
_OTHER_ROWS = "number of output rows"
_BYTES = {"Exchange": "shuffle bytes written", "BroadcastExchange": "data size"}
_OTHER_BYTES = ("size of files read", "written output")
_SPILL = ("spill size",)
_TIMES = {
    "scan time",
    "time in aggregation build",
    "sort time",
    "shuffle write time",
    "time to build",
    "time to broadcast",
    "time to build hash map",
    "task commit time",
    "job commit time",
}
"""What an operator takes by itself, an aggregate aside. Not that of waiting for what another one sends."""

_READING = ("read", "fetch", "remote", "local")
"""Words in the names of what an exchange counts where its rows are taken, a stage later."""

_UNITS = {unit: float(1 << 10 * power) for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))}
_MILLISECONDS = {"ms": 1.0, "s": 1_000.0, "m": 60_000.0, "h": 3_600_000.0}
_TOTAL = re.compile(r"(?:total[^\n]*\n)?\s*(-?[\d,]+(?:\.\d+)?)(?: ([A-Za-z]+))?")
_STAGE = re.compile(r"\(stage (\d+)\.\d+: task \d+\)")
_PIPELINE = re.compile(r"WholeStageCodegen \((\d+)\)")
_EXCHANGES = frozenset({"Exchange", "BroadcastExchange"})
_WRITE = "Execute InsertInto"
_ADAPTIVE = "AdaptiveSparkPlan"
_FINAL = "isFinalPlan=true"


def operators_of(execution: Execution) -> tuple[OperatorMetrics, ...]:
    """The operators in Spark's order, the last one of the query first; none where adaptive execution was not done
    with the plan. Its own node, and pipelines, are left out: those who are part of one say so.
    """
    found = list(_flat(execution.nodes, execution.values))
    if any(each.name == _ADAPTIVE and _FINAL not in each.detail for each in found):
        return ()
    named = {each.id: each for each in found if each.name != _ADAPTIVE}
    named = dict(list(named.items())[:MOST_OPERATORS])
    inputs: dict[int, list[int]] = defaultdict(list)
    for edge in execution.edges:
        if edge["fromId"] in named and edge["toId"] in named:
            inputs[edge["toId"]].append(edge["fromId"])
    stages = _stages(named, inputs)
    sampled = _run_twice(named, inputs)
    return tuple(
        OperatorMetrics(
            id=each.id,
            operator=each.name,
            # Of the write it is where the attempt's files go, and options of stores.
            detail="" if each.name.startswith(_WRITE) else each.detail,
            inputs=tuple(inputs[each.id]),
            rows=None if each.id in sampled else each.first((_ROWS.get(each.name, _OTHER_ROWS),)),
            bytes=each.first((_BYTES[each.name],) if each.name in _BYTES else _OTHER_BYTES),
            time_ms=each.time_ms,
            spilled_bytes=each.first(_SPILL),
            stage_ids=stages[each.id],
            pipeline=each.pipeline,
            pipeline_ms=each.pipeline_ms,
        )
        for each in named.values()
    )


@dataclass(frozen=True)
class _Counted:
    """An operator with what it counted, by name: the text of the SQL page."""

    id: int
    name: str
    detail: str
    pipeline: int | None
    pipeline_ms: int | None
    counts: Mapping[str, str] = field(default_factory=dict)

    def first(self, names: Iterable[str]) -> int | None:
        """The first of these that it counts."""
        return next((value for name in names if (value := amount(self.counts.get(name))) is not None), None)

    @property
    def time_ms(self) -> int | None:
        times = [value for name, text in self.counts.items() if name in _TIMES and (value := amount(text)) is not None]
        return sum(times) if times else None


def _flat(
    nodes: list[dict[str, Any]], values: Mapping[str, str], pipeline: int | None = None, took: int | None = None
) -> Iterator[_Counted]:
    for node in nodes:
        counts = {one["name"]: values.get(str(one["accumulatorId"]), "") for one in node["metrics"]}
        match = _PIPELINE.fullmatch(node["name"])
        if match is not None:
            yield from _flat(node["nodes"], values, int(match[1]), amount(counts.get("duration")))
        elif "nodes" in node:
            # A subquery with operators of its own.
            yield _Counted(node["id"], node["name"].strip(), node["desc"], None, None, counts)
            yield from _flat(node["nodes"], values)
        else:
            yield _Counted(node["id"], node["name"].strip(), node["desc"], pipeline, took, counts)


def amount(text: str | None) -> int | None:
    """The total of what an operator counted: a number, bytes or milliseconds; None where it counted nothing.

    >>> amount("59,899"), amount("1.5 KiB"), amount("2.3 s"), amount("")
    (59899, 1536, 2300, None)
    >>> amount("total (min, med, max (stageId: taskId))\\n22 ms (5 ms, 16 ms, 16 ms (stage 4.0: task 7))")
    22
    """
    match = _TOTAL.match(text or "")
    if match is None:
        return None
    number, unit = float(match[1].replace(",", "")), match[2]
    if unit in _UNITS:
        return round(number * _UNITS[unit])
    if unit is None:
        return int(match[1].replace(",", "")) if "." not in match[1] else None
    return round(number * _MILLISECONDS[unit]) if unit in _MILLISECONDS else None


def _stages(operators: Mapping[int, _Counted], inputs: Mapping[int, list[int]]) -> dict[int, tuple[int, ...]]:
    """The stages that Spark names beside the largest value of a task, of all operators between two exchanges. What
    sends rows is in the stage of its input.
    """
    group = {key: key for key in operators}

    def top(key: int) -> int:
        while group[key] != key:
            group[key] = key = group[group[key]]
        return key

    for key, below in inputs.items():
        for child in below:
            if operators[child].name not in _EXCHANGES:
                group[top(child)] = top(key)
    found: dict[int, set[int]] = defaultdict(set)
    for key, each in operators.items():
        for name, text in each.counts.items():
            if each.name in _EXCHANGES and any(word in name for word in _READING):
                continue
            found[top(key)].update(int(stage) for stage in _STAGE.findall(text))
    return {key: tuple(sorted(found[top(key)])) for key in operators}


def _run_twice(operators: Mapping[int, _Counted], inputs: Mapping[int, list[int]]) -> frozenset[int]:
    """Operators below an exchange by ranges, up to those behind the exchanges below: Spark runs them once for a sample
    of the rows and once for the rows, and counts both.
    """
    found: set[int] = set()
    waiting = [
        child
        for key, each in operators.items()
        if each.name == "Exchange" and "rangepartitioning" in each.detail
        for child in inputs.get(key, ())
    ]
    while waiting:
        key = waiting.pop()
        if key not in found and operators[key].name not in _EXCHANGES:
            found.add(key)
            waiting += inputs.get(key, ())
    return frozenset(found)
