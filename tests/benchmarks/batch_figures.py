"""The arithmetic and the table of the batch benchmark."""

from __future__ import annotations

import heapq
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SLOTS = (16, 64, 256)
PLAIN, TUNED, ENGINE, DUCKDB = "plain", "tuned", "evenkeel", "duckdb"
"""Plain Spark with its defaults, and with the number of shuffle partitions of an Evenkeel worker."""

Stages = Sequence[Sequence[float]]
"""The task times of each stage."""


def makespan(stages: Stages, slots: int) -> float:
    """Returns the duration of the tasks on this number of slots, in the unit of the times: stage by stage, the longest
    task first. List scheduling takes at most 4/3 of the optimum (Graham, 1969).
    """
    return sum(_makespan(tasks, slots) for tasks in stages)


def _makespan(tasks: Sequence[float], slots: int) -> float:
    busy_until = [0.0] * min(slots, max(1, len(tasks)))
    for task in sorted(tasks, reverse=True):
        heapq.heapreplace(busy_until, busy_until[0] + task)
    return max(busy_until)


def hottest(stages: Stages) -> tuple[float, float]:
    """Returns the longest task and its ratio to the median of its stage; 0 and 1 without tasks."""
    tasks = max((stage for stage in stages if stage), key=max, default=[0.0])
    longest, median = max(tasks), statistics.median(tasks)
    return longest, longest / median if median else 1.0


@dataclass(frozen=True)
class Side:
    """The measurements of one side of a case. `stages` are the task times in ms of a run for many slots; stages in
    `reducing` read a shuffle. `wide_rules` fired in that run, `rules` in the others.
    """

    seconds: Sequence[float] = ()
    stages: Stages = ()
    trouble: str | None = None
    rules: Sequence[str] = field(default_factory=tuple)
    reducing: Sequence[bool] = ()
    wide_rules: Sequence[str] = ()

    @property
    def median(self) -> float | None:
        """The median of the rounds; None if the side did not finish."""
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def hottest_reducing(self) -> float:
        """The longest task after a shuffle, where joins and final aggregates run; 0 without shuffles."""
        reducing = [tasks for tasks, reduces in zip(self.stages, self.reducing, strict=False) if reduces]
        return hottest(reducing)[0]


def ratio(plain: Side, other: Side) -> float | None:
    """Returns the factor against plain Spark; None if one of them did not finish."""
    return plain.median / other.median if plain.median and other.median else None


def summary(sides: Mapping[str, Side]) -> dict[str, object]:
    """Returns a case's figures for the JSON file."""
    found: dict[str, object] = {}
    for name, side in sides.items():
        longest, times = hottest(side.stages)
        found[name] = {
            "seconds": list(side.seconds),
            "median_seconds": side.median,
            "trouble": side.trouble,
            "rules": list(side.rules),
            "rules_for_many_slots": list(side.wide_rules),
            "faster_than_plain": None if name == PLAIN else ratio(sides.get(PLAIN, Side()), side),
            "faster_than_tuned": None if name in {PLAIN, TUNED} else ratio(sides.get(TUNED, Side()), side),
            "hottest_task_ms": longest if side.stages else None,
            "hottest_task_behind_a_shuffle_ms": side.hottest_reducing if side.stages else None,
            "hottest_to_median": times if side.stages else None,
            "makespan_ms": {slots: makespan(side.stages, slots) for slots in SLOTS} if side.stages else None,
        }
    return found


HEAD = (
    "| case | to reach | plain Spark | tuned Spark | Evenkeel | ratio | ratio to tuned | DuckDB "
    "| hottest task: plain | Evenkeel | after a shuffle: plain | Evenkeel | hottest / median: plain | Evenkeel "
    "| 16 slots: plain, Evenkeel | 64 slots | 256 slots | rules |\n"
    "| --- | --- " + "| ---: " * 15 + "| --- |\n"
)


def line(about: str, target: str, sides: Mapping[str, Side]) -> str:
    """Returns the case's row of the table."""
    plain, tuned, engine, duck = (sides.get(name, Side()) for name in (PLAIN, TUNED, ENGINE, DUCKDB))
    spread = [
        f"{_ms(makespan(plain.stages, slots), plain)}, {_ms(makespan(engine.stages, slots), engine)}" for slots in SLOTS
    ]
    both = [(side, *hottest(side.stages)) for side in (plain, engine)]
    cells = [
        about,
        target,
        _seconds(plain),
        _seconds(tuned),
        _seconds(engine),
        _times(ratio(plain, engine)),
        _times(ratio(tuned, engine)),
        _seconds(duck),
        *(_ms(longest, side) for side, longest, _ in both),
        *(_ms(side.hottest_reducing, side) for side, *_ in both),
        *(f"{times:.1f}" if side.stages else "" for side, _, times in both),
        *spread,
        ", ".join(engine.rules),
    ]
    return f"| {' | '.join(cells)} |\n"


def _times(faster: float | None) -> str:
    return "" if faster is None else f"{faster:.2f}x"


def _seconds(side: Side) -> str:
    return side.trouble or "" if side.median is None else f"{side.median:.2f} s"


def _ms(value: float, side: Side) -> str:
    return f"{value / 1000:.2f} s" if side.stages else "-"
