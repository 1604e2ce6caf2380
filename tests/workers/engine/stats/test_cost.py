"""The cost model: its turning points."""

from __future__ import annotations

import pytest

from service.spec.options import SkewSettings
from service.spec.types import BIGINT, Field
from workers.engine.plan.nodes import Scan
from workers.engine.stats.cardinality import KeyProfile
from workers.engine.stats.cost import (
    SPLIT_BYTES,
    distinct_in_place,
    distinct_in_share,
    hot_group,
    hottest_task,
    input_tasks,
    kept_by_local_phase,
    native_distinct,
    one_phase,
    split_distinct,
    split_native,
    two_phase,
)
from workers.engine.stats.statistics import Statistics, TableSize

MILLION = 1_000_000.0
HALF_HOT = KeyProfile(MILLION, 1001, (("7", MILLION / 2),))
UNIQUE = KeyProfile(MILLION, MILLION, ())


def even(distinct: float) -> KeyProfile:
    return KeyProfile(MILLION, distinct, ())


@pytest.mark.parametrize(("size", "tasks"), [(0, 4), (SPLIT_BYTES * 4, 4), (SPLIT_BYTES * 9 + 1, 10)])
def test_tasks_read_as_many_bytes_as_spark_gives_them(size: int, tasks: int) -> None:
    scan = Scan("t", "t", ((Field("t.a", BIGINT), "a"),))
    assert input_tasks(scan, Statistics({"t": TableSize("t", 1, size, 1, True)}, {}, slots=4)) == tasks


def test_a_share_of_the_rows_has_as_many_keys_as_yao_expects() -> None:
    # 100 keys of 10 rows each: a key is missed by a tenth of the rows with probability 0.9^10.
    assert distinct_in_share(KeyProfile(1000, 100, ()), 0.1) == pytest.approx(100 * (1 - 0.9**10))
    assert distinct_in_share(KeyProfile(1000, 100, ()), 1.0) == 100


def test_there_are_never_more_keys_than_rows() -> None:
    assert distinct_in_share(UNIQUE, 0.25) == MILLION / 4
    assert kept_by_local_phase(UNIQUE, 4) == 1
    assert kept_by_local_phase(KeyProfile(0, 0, ()), 4) == 0


def test_a_hot_key_leaves_less_to_the_others() -> None:
    assert kept_by_local_phase(HALF_HOT, 4) < kept_by_local_phase(even(1001 * 2), 4)


@pytest.mark.parametrize("slots", [2, 8, 200])
def test_without_skew_one_phase_is_cheaper_when_more_than_half_of_the_rows_are_kept(slots: int) -> None:
    for distinct in (100_000, 300_000, 600_000, 900_000):
        profile, tasks = even(distinct), slots
        cheaper = one_phase(profile, slots).slowest < two_phase(profile, slots, tasks).slowest
        assert cheaper == (kept_by_local_phase(profile, tasks) > 0.5)


def test_a_hot_key_makes_one_phase_dear_and_two_phases_do_not_feel_it() -> None:
    assert hottest_task(HALF_HOT, 8) == MILLION / 2 + MILLION / 16
    assert one_phase(HALF_HOT, 8).slowest > 3 * two_phase(HALF_HOT, 8, 8).slowest


def test_a_distinct_over_nearly_unique_pairs_is_cheaper_in_one_phase() -> None:
    groups, pairs = even(300_000), UNIQUE
    assert one_phase(groups, 8, pairs).slowest < native_distinct(groups, pairs, 8, 8).slowest


def test_a_distinct_over_few_pairs_is_cheaper_in_two_phases() -> None:
    groups, pairs = even(20), even(2000)
    assert one_phase(groups, 8, pairs).slowest > native_distinct(groups, pairs, 8, 8).slowest


def test_a_split_pays_where_a_hot_group_would_stay_on_its_task() -> None:
    pairs = even(500_000)
    assert split_distinct(HALF_HOT, pairs, 16, 1024).slowest < distinct_in_place(HALF_HOT, pairs, 16).slowest
    assert split_distinct(HALF_HOT, pairs, 16, 1).hottest_task > split_distinct(HALF_HOT, pairs, 16, 64).hottest_task


def test_a_split_of_what_spark_spreads_already_only_costs() -> None:
    pairs = even(500_000)
    assert split_native(HALF_HOT, pairs, 16, 16, 1024).slowest > native_distinct(HALF_HOT, pairs, 16, 16).slowest


@pytest.mark.parametrize(
    ("share", "row_bytes", "is_hot"),
    [(0.5, 200, True), (0.5, 100, False), (0.2, 2000, False), (0.34, 2000, True)],
)
def test_a_group_is_hot_when_it_outweighs_the_others_and_is_large(share: float, row_bytes: int, is_hot: bool) -> None:
    # Eight slots: what the others leave to one, times four, is (1 - share) / 2 of all rows.
    profile = KeyProfile(MILLION, 1000, (("7", MILLION * share),))
    hot = hot_group(profile, SkewSettings(), 8, row_bytes)
    assert (hot is not None) == is_hot
    if hot is not None:
        assert (hot.value, hot.share) == ("7", share)


def test_without_frequent_keys_none_is_hot() -> None:
    assert hot_group(even(1000), SkewSettings(), 8, 1e9) is None


def test_an_alternative_tells_its_cost_in_rows() -> None:
    told = one_phase(HALF_HOT, 8).alternative("ONE_PHASE", chosen="TWO_PHASE")
    assert (told.name, told.chosen) == ("ONE_PHASE", False)
    assert (told.rows_shuffled, told.rows_on_hottest_task) == (1_000_000, 562_500)
    assert told.cost == 125_000 + 562_500
