"""Stages on any number of slots: what must hold whatever the tasks took."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.contract.reports import StageMetrics, task_times
from service.jobs.reports import MAX_SCHEDULED_TASKS, makespan, simulate, stage_times
from tests.support.lifecycle import STAGE
from tests.support.stages import quantiles

TIMES = st.lists(st.floats(0, 1e7), min_size=5, max_size=5).map(sorted)
TASKS, SLOTS = st.integers(1, 400), st.integers(1, 500)


def stage(values: list[float], tasks: int, status: str = "COMPLETE") -> StageMetrics:
    return STAGE.model_copy(update={"duration_ms": quantiles(*values), "tasks": tasks, "status": status})


@given(st.lists(st.integers(0, 10_000), max_size=60), SLOTS)
def test_a_makespan_is_within_grahams_bounds(durations: list[int], slots: int) -> None:
    found = makespan(durations, slots)
    work, longest = sum(durations), max(durations, default=0)
    assert max(work / slots, longest) <= found + 1e-6
    # Whichever task ends last began when no slot was free.
    assert found <= work / slots + longest * (1 - 1 / slots) + 1e-6
    assert makespan(durations, slots + 1) <= found


@given(TIMES, TASKS, SLOTS)
def test_even_tasks_are_never_slower_and_more_slots_neither(values: list[float], tasks: int, slots: int) -> None:
    times = quantiles(*values)
    actual, balanced = stage_times(times, tasks, slots)
    more_actual, more_balanced = stage_times(times, tasks, slots + 1)
    tolerance = 1e-9 * (1 + actual)
    assert 0 <= balanced <= actual
    assert more_actual <= actual + tolerance
    assert more_balanced <= balanced + tolerance
    told = simulate([stage(values, tasks)], slots)
    assert told.saved_ms == told.actual_ms - told.balanced_ms >= 0


@example(time=0.3, tasks=127, slots=26)  # The sum of the times divided by their number is less than each of them.
@given(st.floats(0, 1e7), TASKS, SLOTS)
def test_equal_tasks_save_nothing(time: float, tasks: int, slots: int) -> None:
    told = simulate([stage([time] * 5, tasks)], slots)
    assert told.saved_ms == 0
    assert told.actual_ms == pytest.approx(-(-tasks // slots) * time, rel=1e-6, abs=1)


@given(st.floats(0, 1e7), SLOTS)
def test_one_task_saves_nothing_and_takes_its_time(time: float, slots: int) -> None:
    assert stage_times(quantiles(*[time] * 5), 1, slots) == (time, time)


@given(TIMES, TASKS)
def test_as_many_slots_as_tasks_end_with_the_slowest(values: list[float], tasks: int) -> None:
    actual, balanced = stage_times(quantiles(*values), tasks, tasks)
    durations = list(task_times(quantiles(*values), tasks))
    assert actual == max(durations)
    assert balanced == pytest.approx(min(actual, sum(durations) / tasks))


def test_a_slow_task_among_many() -> None:
    # 99 tasks of 10 ms and one of 1,000 ms: 1,990 ms of work.
    told = simulate([stage([10, 10, 10, 10, 1000], 100)], 10)
    assert (told.actual_ms, told.balanced_ms, told.saved_ms) == (1000, 199, 801)
    assert simulate([stage([10, 10, 10, 10, 1000], 100)], 1).saved_ms == 0


def test_the_sum_is_of_completed_stages() -> None:
    stages = [stage([10, 10, 10, 10, 1000], 5), stage([1] * 5, 5, "FAILED"), STAGE, stage([20] * 5, 2)]
    told = simulate(stages, 5)
    assert [each.actual_ms for each in told.stages] == [1000, 20]
    assert (told.slots, told.actual_ms, told.balanced_ms, told.saved_ms) == (5, 1020, 228, 792)


def test_more_tasks_than_are_given_out_one_by_one() -> None:
    told = simulate([stage([10, 20, 30, 40, 50_000], 3 * MAX_SCHEDULED_TASKS)], 100)
    exact = stage_times(quantiles(10, 20, 30, 40, 50_000), 3 * MAX_SCHEDULED_TASKS, 100)
    assert told.actual_ms == pytest.approx(exact[0], rel=0.01)
    assert told.balanced_ms == pytest.approx(exact[1], rel=0.01)
