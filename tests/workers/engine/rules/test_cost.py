"""The cost model: its turning points."""

from __future__ import annotations

import pytest

from service.contract.options import SkewSettings
from service.sql.types.data_types import BIGINT, Field
from workers.engine.plan.nodes import Limit, Scan, Union
from workers.engine.rules.cost import (
    PARSED,
    SPLIT_BYTES,
    Choice,
    Cost,
    distinct_in_share,
    hot_group,
    hottest_task,
    input_tasks,
    kept_by_local_phase,
    one_phase,
    parses_text,
    partitions_of_tables,
    row_of_table,
    two_phase,
)
from workers.engine.rules.distinct.cost import (
    branches,
    distinct_in_place,
    keyed_branches,
    native_distinct,
    one_phase_by_value,
    split_distinct,
    split_native,
)
from workers.engine.statistics.cardinality import KeyProfile
from workers.engine.statistics.model import Statistics, TableSize

MILLION = 1_000_000.0
HALF_HOT = KeyProfile(MILLION, 1001, (("7", MILLION / 2),))
UNIQUE = KeyProfile(MILLION, MILLION, ())


def even(distinct: float) -> KeyProfile:
    return KeyProfile(MILLION, distinct, ())


@pytest.mark.parametrize(("size", "tasks"), [(0, 4), (SPLIT_BYTES * 4, 4), (SPLIT_BYTES * 9 + 1, 10)])
def test_tasks_read_the_bytes_of_a_partition_in_spark(size: int, tasks: int) -> None:
    scan = Scan("t", "t", ((Field("t.a", BIGINT), "a"),))
    known = Statistics({"t": TableSize("t", 1, size, 1, True)}, {}, slots=4)
    assert input_tasks(scan, known) == tasks
    # A table of unknown size counts as an empty one.
    assert input_tasks(Union((scan, Scan("s", "s", scan.columns))), known) == tasks


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


@pytest.mark.parametrize(("rows", "slots", "turning_point"), [(2e8, 2, 0.2), (2e8, 8, 0.2), (1e6, 200, 0.85)])
def test_without_skew_one_phase_is_cheaper_when_enough_of_the_rows_are_kept(
    rows: float, slots: int, turning_point: float
) -> None:
    # By how large the tables of the local phase are: a fifth where they wait for memory, nearly all where they do not.
    for share in (0.005, 0.02, 0.1, 0.5, 1.0):
        profile = KeyProfile(rows, rows * share, ())
        cheaper = one_phase(profile, slots).slowest < two_phase(profile, slots, slots).slowest
        assert cheaper == (kept_by_local_phase(profile, slots) > turning_point)


def test_a_row_costs_more_in_a_table_that_waits_for_memory() -> None:
    costs = [row_of_table(entries) for entries in (1.0, 50_000.0, 175_000.0, 300_000.0, 1e9)]
    assert costs == pytest.approx([0.3, 0.3, 0.95, 1.6, 1.6])


def test_a_hot_key_makes_one_phase_dear_and_two_phases_do_not_feel_it() -> None:
    assert hottest_task(HALF_HOT, 8) == MILLION / 2 + MILLION / 16
    assert one_phase(HALF_HOT, 8).slowest > 3 * two_phase(HALF_HOT, 8, 8).slowest


def test_a_distinct_over_nearly_unique_pairs_is_cheaper_in_one_phase() -> None:
    groups, pairs = even(300_000), UNIQUE
    assert one_phase(groups, 8, pairs).slowest < native_distinct(groups, pairs, 8, 8).slowest


def test_a_distinct_over_few_pairs_is_cheaper_in_two_phases() -> None:
    groups, pairs = even(20), even(2000)
    assert one_phase(groups, 8, pairs).slowest > native_distinct(groups, pairs, 8, 8).slowest


def test_few_groups_of_many_values_are_sent_by_value() -> None:
    # 20 groups: by group they would be uneven, and a local phase of pairs is a large table for nothing.
    few, pairs = KeyProfile(2e7, 20, (("7", 1.2e7),)), KeyProfile(2e7, 1e7, ())
    by_value = one_phase_by_value(few, pairs, 8)
    assert by_value.slowest * 1.25 < min(one_phase(few, 8, pairs).slowest, native_distinct(few, pairs, 8, 8).slowest)
    assert by_value.hottest_task == 2e7 / 8
    repeated = KeyProfile(2e7, 1e5, ())
    assert one_phase_by_value(few, repeated, 8).slowest > native_distinct(few, repeated, 8, 8).slowest


def test_copies_after_the_exchange_share_one_table() -> None:
    groups, small, large = even(100_000), even(100_000), even(900_000)
    assert keyed_branches(groups, [small], 4).slowest == MILLION / 2 + 25_000
    wide = keyed_branches(groups, [large, large], 4)
    assert wide.slowest == pytest.approx(MILLION / 4 + 2 * MILLION / 4 * 1.6 + 450_000)


def test_a_split_pays_off_if_a_hot_group_would_stay_on_one_task() -> None:
    pairs = even(500_000)
    assert split_distinct(HALF_HOT, pairs, 16, 1024).slowest < distinct_in_place(HALF_HOT, pairs, 16).slowest
    assert split_distinct(even(1000), pairs, 16, 1024).hottest_task == MILLION / 16
    assert split_distinct(HALF_HOT, pairs, 16, 4).hottest_task == MILLION / 2 / 4 + MILLION / 2 / 16
    assert split_distinct(HALF_HOT, pairs, 16, 1).hottest_task > split_distinct(HALF_HOT, pairs, 16, 64).hottest_task


def test_a_split_of_what_spark_spreads_already_only_costs() -> None:
    pairs = even(500_000)
    assert split_native(HALF_HOT, pairs, 16, 16, 1024).slowest > native_distinct(HALF_HOT, pairs, 16, 16).slowest


@pytest.mark.parametrize(
    ("share", "row_bytes", "is_hot"),
    [
        (0.5, 200, True),
        (0.5, 100, False),
        (0.5, SkewSettings().threshold / (MILLION / 2), True),
        (0.2, 2000, False),
        (0.34, 2000, True),
    ],
)
def test_a_group_is_hot_when_it_outweighs_the_others_and_is_large(share: float, row_bytes: float, is_hot: bool) -> None:
    # Eight slots: what the others leave to one, times four, is (1 - share) / 2 of all rows.
    profile = KeyProfile(MILLION, 1000, (("7", MILLION * share),))
    hot = hot_group(profile, SkewSettings(), 8, row_bytes)
    assert (hot is not None) == is_hot
    if hot is not None:
        assert (hot.value, hot.share) == ("7", share)


def test_without_frequent_keys_none_is_hot() -> None:
    assert hot_group(even(1000), SkewSettings(), 8, 1e9) is None
    assert hot_group(KeyProfile(MILLION, 1000, (("7", MILLION * 0.5),)).scaled(0), SkewSettings(), 8, 1e9) is None


def test_an_alternative_has_its_cost_in_rows() -> None:
    choice = Choice({"ONE_PHASE": one_phase(HALF_HOT, 8)}, "TWO_PHASE")
    (alternative,) = choice.skip("").alternatives
    assert (alternative.name, alternative.chosen) == ("ONE_PHASE", False)
    assert (alternative.rows_shuffled, alternative.rows_on_hottest_task) == (1_000_000, 562_500)
    assert alternative.cost == 125_000 + 562_500


def test_text_that_is_read_again_is_parsed_again() -> None:
    groups, parts = KeyProfile(1000.0, 10.0, ()), [Cost(100.0, 0.0, 0.0)] * 3
    ready, parsed = branches(parts, groups, 4), branches(parts, groups, 4, PARSED)
    assert parsed.slowest - ready.slowest == 2 * (PARSED - 1) * 1000 / 4
    scan = Scan("t", "t", ())
    for is_text in (True, False):
        known = Statistics({"t": TableSize("t", 1, 9, 9, True, is_text=is_text)}, {}, slots=4)
        assert parses_text(Limit(scan, 3), known) is is_text
    assert not parses_text(scan, Statistics({}, {}, slots=4))


@pytest.mark.parametrize(
    ("entries", "slots", "partitions"), [(1e6, 2, None), (1.3e6, 2, 5), (5e6, 2, 17), (1e9, 2, 32), (5e6, 64, None)]
)
def test_large_tables_get_more_partitions(entries: float, slots: int, partitions: int | None) -> None:
    assert partitions_of_tables(entries, slots) == partitions
