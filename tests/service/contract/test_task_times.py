"""Task times estimated from quantiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contract.reports import task_times, total_task_time
from tests.support.stages import quantiles

TIMES = st.lists(st.floats(0, 1e7), min_size=5, max_size=5).map(sorted)
TASKS = st.integers(1, 400)


@given(TIMES, TASKS)
def test_there_is_a_time_for_each_task_between_the_quantiles(values: list[float], tasks: int) -> None:
    durations = list(task_times(quantiles(*values), tasks))
    assert len(durations) == tasks
    assert all(values[0] <= each <= values[4] for each in durations)
    # Quantile q of n sorted times is number floor(q n).
    for quarter, value in enumerate(values[:4]):
        if tasks >= 5:
            assert durations[tasks * quarter // 4] == value
    assert durations[-1] == values[4] or tasks < 5


@given(TIMES, TASKS)
def test_the_total_is_the_sum_of_all_times(values: list[float], tasks: int) -> None:
    assert total_task_time(quantiles(*values), tasks) == pytest.approx(sum(task_times(quantiles(*values), tasks)))
