"""What a plan's statistics come to for a shuffle by a key."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.contract.profiles import KeyProfile, ProfileRequest
from service.contract.reports import HotKey, KeyStatistics, PlanReport, PlanTree, TableStatistics
from service.jobs.explain_job import build_profile, task_rows

TABLE = {"format": "parquet", "path": "flights/"}
ROWS = 10_000_000
ROW_BYTES = 100


def request(*keys: tuple[str, ...], **changes: Any) -> ProfileRequest:
    return ProfileRequest.model_validate({"table": TABLE, "keys": keys, **changes})


def known(alias: str, *columns: str, distinct: int = 1_000_000, hot: tuple[float, ...] = ()) -> KeyStatistics:
    keys = tuple(
        HotKey(value=f"v{at}", share=share, estimated_rows=round(share * ROWS)) for at, share in enumerate(hot)
    )
    return KeyStatistics(
        table=alias,
        columns=tuple(f"{alias}.{column}" for column in columns),
        rows=ROWS,
        rows_are_exact=True,
        sampled_rows=500_000,
        distinct_keys=distinct,
        null_share=0,
        hot_keys=keys,
    )


def profile(
    asked: ProfileRequest, *statistics: KeyStatistics, slots: int = 100, bytes_: int = ROWS * ROW_BYTES
) -> list[KeyProfile]:
    tree = PlanTree(nodes=(), text="")
    table = TableStatistics(table="k0", files=3, bytes=bytes_, rows=ROWS, rows_are_exact=True)
    plan = PlanReport(before=tree, after=tree, rules=(), tables=(table,), keys=statistics, statistics_ms=5)
    return list(build_profile(asked, plan, slots).keys)


def test_keys_are_told_in_the_order_in_which_they_were_asked_for() -> None:
    found = profile(
        request(("a",), ("b", "c")), known("derived/k1", "b", "c", distinct=7), known("k0", "a", distinct=3)
    )
    assert [(key.columns, key.distinct_keys) for key in found] == [(("a",), 3), (("b", "c"), 7)]


def test_a_hot_key_is_skewed() -> None:
    (found,) = profile(request(("a",)), known("k0", "a", hot=(0.5, 0.01)))
    assert found.rows_on_hottest_task == 5_000_000 + 4_900_000 // 100
    assert found.rows_on_median_task == 4_900_000 // 100
    assert (found.skewed, found.max_over_mean) == (True, 50.49)
    assert "a is v0 in 50.0% of the rows" in found.advice
    assert "join.skew ISOLATE" in found.advice


def test_a_hot_key_of_a_small_table_does_not_matter() -> None:
    (found,) = profile(request(("a",)), known("k0", "a", hot=(0.5,)), bytes_=1_000_000)
    assert not found.skewed
    assert "that task is too small to matter" in found.advice


def test_a_key_that_stands_for_few_rows_is_not_skewed() -> None:
    (found,) = profile(request(("a",)), known("k0", "a", hot=(0.002, 0.001)))
    assert not found.skewed
    assert "No change is needed" in found.advice


def test_fewer_keys_than_tasks_leave_tasks_without_rows() -> None:
    (found,) = profile(request(("a",)), known("k0", "a", distinct=3, hot=(0.4, 0.3, 0.3)))
    assert (found.busy_tasks, found.rows_on_hottest_task, found.skewed) == (3, 4_000_000, True)
    assert "about 3 values for 100 tasks" in found.advice
    assert "the largest task gets 40.0 times the rows of an even split over all slots" in found.advice


def test_two_even_keys_are_not_told_as_uneven() -> None:
    (found,) = profile(request(("a",)), known("k0", "a", distinct=2, hot=(0.5, 0.5)))
    assert (found.max_over_median, found.max_over_mean) == (1.0, 50.0)
    assert "times the rows of others" not in found.advice


def test_a_key_of_which_nothing_is_known_says_so() -> None:
    (found,) = profile(request(("a",)))
    assert (found.sampled_rows, found.hot_keys, found.skewed) == (0, (), False)
    assert "no statistics of this key are available" in found.advice


@given(
    hot=st.lists(st.integers(0, 10_000), max_size=10),
    others=st.integers(0, 100_000),
    distinct=st.integers(0, 1_000),
    slots=st.integers(1, 500),
)
def test_the_hottest_task_has_at_least_an_even_share_and_at_most_everything(
    hot: list[int], others: int, distinct: int, slots: int
) -> None:
    rows = sum(hot) + others
    hottest, median = task_rows(rows, distinct, hot, slots)
    assert 0 <= median <= hottest <= rows
    assert hottest >= max(hot, default=0)
    assert hottest + 1 >= rows / slots
