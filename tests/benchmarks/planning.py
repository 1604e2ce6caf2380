"""Measures the planning of queries by the shape and number of their joins, without Spark.

    python tests/benchmarks/planning.py [--baseline TREE] [--joins 5,10,20,40,60] [--rounds 3] [--limit 20]

Plans chains, stars, snowflakes, cliques and nested common table expressions, with and without statistics, with DISTINCT
and with hot keys. Prints medians for each shape and size, the share of the SQL front end (`service.sql`), the growth of
the time, and whether the limits hold: 0.3 s for 10 joins, 1 s for 20 and 5 s for 60, and at most quadratic growth in
tables plus join conditions. `--baseline` is the root of another source tree, which is measured in turn with this one. A
side that exceeds `--limit` seconds for a case is stopped, and its larger cases of the same shape are skipped. Times are
processor times, which depend little on the machine's load.
"""

from __future__ import annotations

import argparse
import json
import math
import selectors
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.planning_cases import COLUMNS, SHAPES, TABLES, VARIANTS, PlanningCase, planning_case
from tests.support.machine import machine

ROOT = Path(__file__).parents[2]

BOUNDS = {10: 0.3, 20: 1.0, 60: 5.0}
"""The limit in seconds for a query with this number of joins, over all stages."""

MOST_GROWTH = 2.0
"""The largest exponent of the time in tables plus join conditions."""

_HEAD = (
    "| shape | variant | joins | tables and conditions | side | compile | needs | rules | report | total "
    "| share of compile |\n| --- | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |"
)
_GROWTH_HEAD = "| side | shape | variant | exponent | largest between two sizes |\n| --- | --- | --- | ---: | ---: |"
_START_SECONDS = 120.0
_SIDE = Path("tests", "benchmarks", "planning_side.py")
"""Relative to each tree, because modules change."""


class Side:
    """A process that plans with a source tree."""

    def __init__(self, name: str, tree: Path) -> None:
        self.name = name
        self._tree = tree
        self._process: subprocess.Popen[str] | None = None
        self._slow: dict[tuple[str, str], int] = {}

    def times(self, case: PlanningCase, limit: float) -> dict[str, float] | str:
        """Returns the seconds by stage, or the reason why there are none: the planner failed, or this or a smaller case
        took longer than `limit` seconds.
        """
        kind = (case.shape, case.variant.name)
        slow = f"over {limit:g} s"
        if case.joins >= self._slow.get(kind, case.joins + 1):
            return slow
        answer = self._ask(case, limit)
        if answer is None:
            self._slow[kind] = case.joins
            return slow
        found: dict[str, float] | str = answer["seconds"] if "seconds" in answer else answer["failed"]
        return found

    def _ask(self, case: PlanningCase, limit: float) -> dict[str, Any] | None:
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        asked = {"sql": case.sql, "knowledge": case.variant.knowledge, "tables": TABLES, "columns": COLUMNS}
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if not selector.select(limit):
                self.end()
                return None
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer

    def _start(self) -> subprocess.Popen[str]:
        self._process = subprocess.Popen(
            [sys.executable, str(self._tree / _SIDE), str(self._tree)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        # The first query includes imports and other work at first use.
        self._ask(planning_case("chain", VARIANTS[-1], 3), _START_SECONDS)
        return self._process

    def end(self) -> None:
        """Stops the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Returns the median of each stage, and of their sum as `total`."""
    found = {stage: statistics.median(one[stage] for one in rounds) for stage in rounds[0]}
    return {**found, "total": statistics.median(sum(one.values()) for one in rounds)}


def growth(points: Sequence[tuple[int, float]]) -> float | None:
    """Returns the exponent e of seconds ~ size^e that fits `points` best; None for fewer than two points.

    >>> round(growth([(10, 0.1), (20, 0.4), (40, 1.6)]), 6)
    2.0
    """
    if len(points) < 2:
        return None
    sizes, seconds = ([math.log(point[at]) for point in points] for at in (0, 1))
    return statistics.linear_regression(sizes, seconds).slope


def main() -> None:
    """Measures and prints the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--joins", default="5,10,20,40,60")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=20.0)
    given = parser.parse_args()
    sides = [Side("this tree", ROOT)]
    sides += [Side("baseline", given.baseline.resolve())] if given.baseline else []
    joins = [int(count) for count in given.joins.split(",")]
    try:
        for line in measured(sides, given.shapes.split(","), joins, given.rounds, given.limit):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
    finally:
        for side in sides:
            side.end()


def measured(
    sides: Sequence[Side], shapes: Sequence[str], joins: Sequence[int], rounds: int, limit: float
) -> Iterator[str]:
    """Yields the lines of the report, each as soon as it is measured."""
    yield _HEAD
    broken: list[str] = []
    exponents: list[tuple[str, str, str, float, float]] = []
    for shape in shapes:
        for variant in VARIANTS:
            points: dict[str, list[tuple[int, float]]] = {side.name: [] for side in sides}
            for count in joins:
                case = planning_case(shape, variant, count)
                for side, times in _in_turn(sides, case, rounds, limit).items():
                    yield _line(case, side, times)
                    what = f"{side}: {shape}, {variant.name}, {count} joins"
                    if isinstance(times, str):
                        broken.append(f"{what}: {times}")
                        continue
                    points[side].append((case.size, times["total"]))
                    if times["total"] > BOUNDS.get(count, math.inf):
                        broken.append(f"{what}: {times['total']:.2f} s")
            for name, found in points.items():
                exponent = growth(found)
                if exponent is not None:
                    largest = max(growth(pair) or 0.0 for pair in pairwise(found))
                    exponents.append((name, shape, variant.name, exponent, largest))
    yield "\n" + _GROWTH_HEAD
    for name, shape, about, exponent, largest in exponents:
        yield f"| {name} | {shape} | {about} | {exponent:.2f} | {largest:.2f} |"
        if exponent > MOST_GROWTH:
            broken.append(f"{name}: {shape}, {about}: grows by size^{exponent:.2f}")
    yield "\n" + ("\n".join(["Over the bounds:", *broken]) if broken else "All bounds hold.")
    yield machine()


def _in_turn(sides: Sequence[Side], case: PlanningCase, rounds: int, limit: float) -> dict[str, dict[str, float] | str]:
    """Returns the medians of each side, measured in alternating rounds, or the reason why there are none."""
    found: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
    without: dict[str, str] = {}
    for _ in range(rounds):
        for side in sides:
            if side.name in without:
                continue
            times = side.times(case, limit)
            if isinstance(times, str):
                without[side.name] = times
            else:
                found[side.name].append(times)
    return {name: without[name] if name in without else medians(times) for name, times in found.items()}


def _line(case: PlanningCase, side: str, times: Mapping[str, float] | str) -> str:
    head = f"| {case.shape} | {case.variant.name} | {case.joins} | {case.size} | {side} "
    if isinstance(times, str):
        return f"{head}| | | | | {times} | |"
    stages = {**times, "rules": times["build"] + times["rules"]}
    cells = [f"{stages[stage]:.3f}" for stage in ("compile", "needs", "rules", "report", "total")]
    return f"{head}| {' | '.join(cells)} | {times['compile'] / times['total']:.0%} |"


if __name__ == "__main__":
    main()
