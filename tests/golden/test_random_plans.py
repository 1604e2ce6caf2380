"""Plans of random queries are those that were recorded, or cheaper ones by the same cost model.

`random_plans.jsonl.xz` has a case a line: its seed, its SQL and settings, the plan after the rules as text, and what
each rule did. It was recorded before estimates were memoized, without a budget, and is written by

    python tests/golden/test_random_plans.py [--cases 600] [--seconds 3]

which leaves out queries that the SQL front end refuses, and those whose planning takes longer than `--seconds`. Record
again only where plans are meant to change, and read the differences that the test shows before it is committed.
"""

from __future__ import annotations

import argparse
import difflib
import json
import lzma
import math
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2]))

from service.contract.job import JobSpec
from service.contract.options import JobSettings
from service.contract.problems import SpecError
from service.contract.reports import RuleTrace
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from service.sql.resolve.bound import BoundQuery
from tests.golden.random_queries import TABLES, RandomQuery, random_query
from tests.golden.random_statistics import random_statistics
from workers.engine.plan.builder import build
from workers.engine.plan.explain import text_of
from workers.engine.planner import plan_query

RECORDED = Path(__file__).with_name("random_plans.jsonl.xz")
SCHEMAS = {name: parse_schema(ddl, "/") for name, ddl in TABLES.items()}
SPECS = {name: {"format": "csv", "path": name, "schema": ddl} for name, ddl in TABLES.items()}
CASES = 600
PARTS = 12
"""Tests that the cases are divided among."""
_FIGURE = re.compile(r"\d[\d,.]*")


@dataclass(frozen=True)
class Step:
    """What a rule did at a node. `figures` are the numbers of its reason, whose wording is free; `ways` has cost, rows
    shuffled, rows on the hottest task, and whether it was chosen, by the name of the alternative.
    """

    rule: str
    outcome: str
    node: str
    figures: list[str]
    ways: dict[str, tuple[float, int, int, bool]]


@dataclass(frozen=True)
class Case:
    """What planning one random query gives."""

    seed: int
    sql: str
    settings: dict[str, Any]
    plan: str
    steps: list[Step]

    @property
    def chosen(self) -> list[float]:
        """The cost of each alternative that was chosen."""
        return [way[0] for step in self.steps for way in step.ways.values() if way[3]]

    @property
    def cost(self) -> float:
        """The costs of all alternatives that were chosen."""
        return math.fsum(self.chosen)

    @property
    def lines(self) -> list[str]:
        """The plan and the steps as text, for a comparison line by line."""
        steps = [json.dumps(asdict(step), ensure_ascii=False) for step in self.steps]
        return [self.sql, json.dumps(self.settings), *self.plan.splitlines(), *steps]


def bound(query: RandomQuery) -> BoundQuery:
    """`query` as the SQL front end reads it. Raises SpecError where that refuses it."""
    return compile_job(JobSpec.model_validate({"name": "random", "tables": SPECS, "sql": query.sql}), SCHEMAS)


def planned(seed: int) -> Case:
    """The case of `seed`, planned now. Raises SpecError where the query is refused."""
    query = random_query(seed)
    read = bound(query)
    statistics = random_statistics(seed, build(read))
    plan = plan_query(read, statistics, JobSettings.model_validate(query.settings))
    return Case(seed, query.sql, query.settings, text_of(plan.after), [_step(trace) for trace in plan.trace])


def _step(trace: RuleTrace) -> Step:
    ways = {way.name: (way.cost, way.rows_shuffled, way.rows_on_hottest_task, way.chosen) for way in trace.alternatives}
    return Step(trace.rule, trace.outcome.value, trace.node, _FIGURE.findall(trace.reason), ways)


def _recorded() -> Iterator[Case]:
    for line in lzma.decompress(RECORDED.read_bytes()).decode().splitlines():
        case = json.loads(line)
        steps = [
            Step(**{**step, "ways": {name: tuple(way) for name, way in step["ways"].items()}}) for step in case["steps"]
        ]
        yield Case(**{**case, "steps": steps})


def difference(recorded: Case, now: Case) -> str | None:
    """Why `now` is not as good as `recorded`, with every line that differs; None where it is the same, or cheaper.

    A plan is cheaper only where as many choices were made by cost: one that is made by none costs nothing.
    """
    is_cheaper = now.cost < recorded.cost and len(now.chosen) >= len(recorded.chosen)
    if now == recorded or (now.plan != recorded.plan and is_cheaper):
        return None
    what = "steps to the same plan differ" if now.plan == recorded.plan else "plan differs and is not cheaper"
    costs = f"chosen alternatives cost {recorded.cost:,.1f} as recorded and {now.cost:,.1f} now"
    lines = difflib.unified_diff(recorded.lines, now.lines, "recorded", "now", lineterm="", n=1)
    return "\n".join([f"seed {recorded.seed}: the {what}; {costs}", recorded.sql, *lines])


@pytest.fixture(scope="module")
def recorded() -> list[Case]:
    """All cases of the file."""
    cases = list(_recorded())
    assert len(cases) == CASES
    return cases


@pytest.mark.parametrize("part", range(PARTS))
def test_random_queries_have_their_recorded_plans_or_cheaper_ones(recorded: list[Case], part: int) -> None:
    found = []
    for case in recorded[part::PARTS]:
        now = planned(case.seed)
        assert (now.sql, now.settings) == (case.sql, case.settings), "The generator has changed: record again."
        found.append(difference(case, now))
    differences = [text for text in found if text is not None]
    assert not differences, "\n\n".join(differences)


def _case(plan: str, *costs: float) -> Case:
    return Case(0, "SELECT 1", {}, plan, [Step("r", "fired", "n", [], {"A": (cost, 1, 1, True)}) for cost in costs])


@pytest.mark.parametrize(
    ("now", "is_good"),
    [
        (_case("old", 10.0), True),
        (_case("new", 9.9), True),
        (_case("new", 10.0), False),
        (_case("new", 5.0, 5.1), False),
        (_case("new"), False),
        (_case("old", 9.9), False),
    ],
    ids=["the same", "cheaper", "as dear", "dearer in all", "chosen without a cost", "other steps to the same plan"],
)
def test_another_plan_is_as_good_only_where_it_is_cheaper(now: Case, is_good: bool) -> None:
    assert (difference(_case("old", 10.0), now) is None) is is_good


class _TooSlowError(Exception):
    """A case took longer to plan than the limit of the recording."""


def _within(seed: int, seconds: float) -> Case:
    def stop(_: int, __: FrameType | None) -> None:
        raise _TooSlowError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return planned(seed)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def record(cases: int, seconds: float) -> None:
    """Writes the first `cases` cases that can be planned within the limit, in order of their seeds."""
    found: list[Case] = []
    refused, slow, seed = 0, [], 0
    while len(found) < cases:
        try:
            found.append(_within(seed, seconds))
        except SpecError as error:
            refused += 1
            sys.stderr.write(f"seed {seed} refused: {error.issues[0].code}: {error.issues[0].detail}\n")
        except _TooSlowError:
            slow.append(seed)
        seed += 1
    text = "".join(json.dumps(asdict(case), ensure_ascii=False) + "\n" for case in found)
    RECORDED.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
    sys.stdout.write(
        f"{len(found)} cases recorded, {len(text):,} bytes, {RECORDED.stat().st_size:,} compressed; {refused} refused, "
        f"{len(slow)} longer than {seconds:g} s: {slow}\n"
    )


def main(arguments: Sequence[str]) -> None:
    """Records."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=CASES)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args(arguments)
    record(given.cases, given.seconds)


if __name__ == "__main__":
    main(sys.argv[1:])
