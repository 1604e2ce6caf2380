"""The cache keeps statistics by file set, within its limits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from service.config.data import Location
from service.contract.read_options import ReadOptions
from service.data.file_io import UriFile, version_of
from service.data.roots import Store
from tests.support.tables import on_disk
from workers.engine.spark.sources import TableInput, file_set_of
from workers.engine.spark.statistics_cache import (
    MAX_CONDITIONS,
    MAX_SKETCHES,
    KnownTable,
    SketchKey,
    StatisticsCache,
)
from workers.engine.statistics.model import KeySketch

Tables = Callable[..., TableInput]


def known(rows: int, *columns: str) -> KnownTable:
    return KnownTable(rows, rows_are_exact=True, kept=dict.fromkeys(columns, (0.5, 0)), columns=frozenset(columns))


def test_the_least_recently_used_file_set_is_dropped() -> None:
    cache = StatisticsCache(max_file_sets=2)
    for name in ("a", "b"):
        cache.put(name, known(1))
    assert cache.get("a") is not None
    cache.put("c", known(1))
    assert [name for name in ("a", "b", "c") if cache.get(name) is not None] == ["a", "c"]


def test_bytes_are_bounded() -> None:
    cache = StatisticsCache(max_bytes=5_000)
    for number in range(100):
        cache.put(str(number), KnownTable(number, rows_are_exact=True, columns=frozenset(["x" * 1000])))
    assert 0 < len(cache) < 5
    cache.put("small", known(1))
    assert cache.get("small") == known(1)


def test_a_file_set_drops_its_own_oldest_entries() -> None:
    cache = StatisticsCache(max_bytes=80_000)
    cache.put("other", known(1, "x"))
    for number in range(100):
        cache.put("asked", KnownTable(1, rows_are_exact=True, kept={f"{number} {'x' * 1_000}": (0.5, 0)}))
    assert cache.get("other") == known(1, "x")
    asked = cache.get("asked")
    assert asked is not None
    assert [text.split()[0] for text in asked.kept] == ["95", "96", "97", "98", "99"][-len(asked.kept) :]
    assert 1 < len(asked.kept) < 10


def test_conditions_and_sketches_of_a_table_are_few() -> None:
    cache = StatisticsCache()
    for numbers in (range(MAX_CONDITIONS), range(MAX_CONDITIONS, MAX_CONDITIONS + 5)):
        sketches: dict[SketchKey, KeySketch | None] = {(("k", str(number)),): None for number in numbers}
        kept = {str(number): (0.5, 0) for number in numbers}
        cache.put("a", KnownTable(1, rows_are_exact=True, sketches=sketches, kept=kept))
    found = cache.get("a")
    assert found is not None
    assert list(found.kept) == [str(number) for number in range(5, MAX_CONDITIONS + 5)]
    assert len(found.sketches) == MAX_SKETCHES
    assert (("k", str(MAX_CONDITIONS + 4)),) in found.sketches


def test_later_statistics_are_added() -> None:
    cache = StatisticsCache()
    cache.put("a", known(1, "x"))
    cache.put("a", known(2, "y"))
    assert cache.get("a") == known(2, "x", "y")
    assert cache.get("b") is None


def test_no_key_keeps_nothing() -> None:
    cache = StatisticsCache()
    cache.put(None, known(1))
    assert cache.get(None) is None
    assert len(cache) == 0


def test_threads_share_it() -> None:
    cache = StatisticsCache(max_file_sets=8)

    def use(number: int) -> bool:
        name = str(number % 12)
        cache.put(name, known(number % 12))
        found = cache.get(name)
        return found is None or found.rows == number % 12

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(2_000)))
    assert len(cache) == 8


def test_files_and_options_identify_a_file_set(parquet_table: Tables) -> None:
    table = parquet_table(pa.table({"a": [1, 2, 3, 4]}), files=2)
    first = file_set_of(table)
    assert first is not None
    assert first == file_set_of(table)
    assert first != file_set_of(
        replace(table, source=table.source.model_copy(update={"options": ReadOptions(delimiter=";")}))
    )
    assert first != file_set_of(replace(table, files=replace(table.files, files=table.files.files[:1])))
    on_disk(table.files)[0].write_bytes(b"")
    second = file_set_of(table)
    assert second not in {first, None}
    on_disk(table.files)[0].unlink()
    assert file_set_of(table) is None


def test_versions_of_the_listing_are_not_read_again(parquet_table: Tables) -> None:
    table = parquet_table(pa.table({"a": [1, 2, 3, 4]}), files=2)
    listed = replace(table, files=replace(table.files, versions=tuple(map(version_of, table.files.files))))
    first = file_set_of(listed)
    assert first == file_set_of(table)
    for path in on_disk(table.files):
        path.unlink()
    assert file_set_of(listed) == first
    later = tuple((*version[:-1], 0) for version in listed.files.versions if version is not None)
    assert file_set_of(replace(listed, files=replace(listed.files, versions=later))) not in {first, None}


def test_files_without_modification_times_have_no_file_set(parquet_table: Tables) -> None:
    table = parquet_table(pa.table({"a": [1]}))
    store = Store(Location("hdfs", "h", ()), lambda: None)

    def in_store(modified: int | None) -> str | None:
        file = UriFile("hdfs://h/a", "a", 5, store, modified)
        return file_set_of(replace(table, files=replace(table.files, directory_or_file=Path("/"), files=(file,))))

    assert in_store(None) is None
    assert len({in_store(1), in_store(1), in_store(2)}) == 2
