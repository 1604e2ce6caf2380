"""How wide the texts of a table are in memory, by a few rows of some of its Parquet files.

What is known of a query's tables before it runs: row counts, and key sketches from a bounded sample.

Read with pyarrow, not with Spark: a sample costs milliseconds and no job. The same files give the same sample, and
what it told is kept for the next query over them. Whatever goes wrong here costs a sketch and a warning, and never the
job: a file that cannot be read is for Spark to report.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from service.contract.job import TableFormat
from service.contract.reports import HotKey
from service.data.file_io import DataFile, for_each, opened
from service.data.roots import StoreUnavailableError
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import DataType, TypeName
from workers.engine.budget import no_check
from workers.engine.plan.expressions import literal
from workers.engine.plan.nodes import Scan
from workers.engine.spark.parquet_footers import column_leaves, width_of
from workers.engine.spark.predicate_evaluation import share_kept, typed
from workers.engine.spark.sampling import BYTES_PER_ROW, Sample, Troubles, sample_parquet, sample_text, spread
from workers.engine.spark.sources import TableInput
from workers.engine.spark.statistics_cache import KnownTable, SketchKey, StatisticsCache, file_set_of
from workers.engine.statistics.cardinality import estimate_distinct
from workers.engine.statistics.model import KeySketch, Statistics, TableSize, ValueRange
from workers.engine.statistics.selectivity import Terms, combined, terms_by_table

_SLICES = 4
"""Places of a table that widths are measured at: the beginnings of row groups, of four files or of one, and places all
over a row group where there are fewer."""

_SLICE_ROWS = 4_096
_SLICE_BYTES = 1 << 20
_LEAST_ROWS = 64
"""Rows of a slice: fewer where values are wide."""

_MOST_BYTES = 32 << 20
"""Encoded bytes of a row group that are read for more than its beginning: there is no way to a place but through all
that is before it. A row group of more, where it is needed for several places, is not measured."""

_BUFFER_BYTES = 256 << 10
"""Read at once: without, Arrow fetches the whole column of a row group for its first page."""

MARGIN = 1.5
"""What the widest slice is multiplied by: others may be wider."""


def decoded_widths(files: Sequence[DataFile], columns: Collection[str], troubles: Troubles) -> dict[str, float | None]:
    """Bytes of a value of each of these columns of texts or bytes in memory, with a margin; None where no file tells.

    The mean of the widest of a few slices from all over the table, or what a value takes as it is encoded, if that is
    more. What repeats takes hardly anything in a file, and all of its length in a hash table.
    """
    if not columns:
        return {}
    chosen = spread(files, _SLICES)

    def read(file: DataFile) -> Mapping[str, float]:
        troubles.check()
        try:
            return _widths_of_file(file, sorted(columns), -(-_SLICES // len(chosen)))
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            troubles.add("A sample", file, error)
            return {}

    found: list[Mapping[str, float]] = []
    try:
        found.extend(for_each(chosen, read))
    except StoreUnavailableError as error:
        troubles.add("A sample", None, error)
    return {name: max((one[name] for one in found if name in one), default=None) for name in columns}


def _widths_of_file(path: DataFile, columns: Sequence[str], slices: int) -> dict[str, float]:
    with opened(path) as stream:
        footer = pq.read_metadata(stream)
        held = sorted({*columns} & column_leaves(footer).keys())
        # Texts as indices into a dictionary, where the file has them so: one of a megabyte that repeats is read once.
        with pq.ParquetFile(stream, metadata=footer, buffer_size=_BUFFER_BYTES, read_dictionary=held) as file:
            return _widths(file, held, slices) if held else {}


def _widths(file: pq.ParquetFile, columns: Sequence[str], slices: int) -> dict[str, float]:
    encoded = {name: width_of(name, [file.metadata]) for name in columns}
    rows = max(_LEAST_ROWS, min(_SLICE_ROWS, round(_SLICE_BYTES / max([1.0, *encoded.values()]))))
    found: dict[str, float] = {}
    groups = spread(range(file.num_row_groups), slices)
    for group in groups:
        for batch in _slices(file, group, columns, rows, -(-slices // len(groups))):
            for name in columns:
                mean = _mean_length(batch.column(name))
                found[name] = max(found.get(name, encoded[name]), MARGIN * mean)
    return found


def _slices(
    file: pq.ParquetFile, group: int, columns: Sequence[str], rows: int, count: int
) -> Iterator[pa.RecordBatch]:
    """At most `count` slices of so many rows from all over a row group, of which the first is its beginning."""
    metadata = file.metadata.row_group(group)
    begins = range(0, max(metadata.num_rows - rows, 0) + 1, rows)
    places = spread(begins, count) if count > 1 else [0]
    if len(places) > 1 and _encoded_bytes(metadata, columns) > _MOST_BYTES:
        return
    end = 0
    for batch in file.iter_batches(rows, row_groups=[group], columns=columns, use_threads=False):
        end += batch.num_rows
        if places[0] < end:
            yield batch
            places = [place for place in places if place >= end]
        if not places:
            return


def _encoded_bytes(group: pq.RowGroupMetaData, columns: Sequence[str]) -> int:
    chunks = (group.column(index) for index in range(group.num_columns))
    return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema in columns)


def _mean_length(values: pa.Array) -> float:
    if isinstance(values, pa.DictionaryArray):
        lengths = pc.binary_length(values.dictionary).take(values.indices)
    else:
        lengths = pc.binary_length(values)
    return float((pc.sum(lengths).as_py() or 0) / len(values))


HOT_KEYS = 10
"""Heavy hitters kept of each key."""

MIN_OCCURRENCES = 5
"""A value seen less often in the sample may be there by chance."""

MIN_SHARE = 0.001
"""A value with a smaller share of the rows keeps no task waiting."""

MAX_CONDITION_COLUMNS = 4
"""Columns of a table that are sampled for one condition; of one with more nothing is known."""

_MAX_VALUE_LENGTH = 120

_log = logging.getLogger(__name__)

Key = tuple[str, ...]
"""Emitted column names (`("o.uid",)`), all of one scan."""


@dataclass(frozen=True)
class Texts:
    """Emitted names of columns of texts whose width is to be measured, in tables of at most so many rows."""

    columns: Collection[str] = ()
    most_rows: float = 0.0


NO_TEXTS = Texts()


def gather_statistics(
    keys: Collection[Key],
    scans: Sequence[Scan],
    tables: Mapping[str, TableInput],
    slots: int,
    *,
    conditions: Collection[Scalar] = (),
    texts: Texts = NO_TEXTS,
    ranged: Collection[str] = (),
    cache: StatisticsCache | None = None,
    check: Callable[[], None] = no_check,
) -> Statistics:
    """Sizes of the scanned tables, a sketch of each key that can be sampled, the share of rows that each condition
    keeps, as far as the sample tells, how wide `texts` are, and the ranges of the columns `ranged` and those of keys.

    `scans` has one scan an alias; `tables` is by table name; `slots` is the number of tasks that run at once. At most
    64 Ki rows of each of at most 8 files are kept of a table, however many keys and aliases it has. What `cache` knows
    of the same files is not read again. `check` is called before each file is read; what it raises is passed on.
    """
    start = time.monotonic()
    cache = StatisticsCache() if cache is None else cache
    table_of = {field.name: scan.alias for scan in scans for field, _ in scan.columns}
    split = {condition: terms_by_table(condition, table_of) for condition in conditions}
    gathered = _Gathered({}, {}, {}, {}, {}, [])
    for name in dict.fromkeys(scan.table for scan in scans):
        aliases = [scan for scan in scans if scan.table == name]
        found = [terms for by_alias, _ in split.values() for terms in by_alias.items()]
        wanted = _wanted(keys, aliases, found, texts, ranged)
        gathered.add(aliases, tables[name], wanted, *_known_of(tables[name], wanted, cache, check))
    shares = {
        condition.sql: combined(
            [gathered.kept.get((alias, terms.text), (None, 1))[0] for alias, terms in by_alias.items()],
            unknown + sum(gathered.kept.get((alias, terms.text), (None, 1))[1] for alias, terms in by_alias.items()),
        )
        for condition, (by_alias, unknown) in split.items()
    }
    return Statistics(
        gathered.sizes,
        gathered.sketches,
        slots,
        elapsed_ms=round((time.monotonic() - start) * 1000),
        ranges=gathered.ranges,
        selectivities={text: share for text, share in shares.items() if share is not None},
        widths=gathered.widths,
        warnings=tuple(gathered.warnings),
    )


def sizes_alone(scans: Sequence[Scan], tables: Mapping[str, TableInput], slots: int, why: str) -> Statistics:
    """What the listing of the files tells, none of which is opened; `why` is told as a warning."""
    sizes = {}
    for scan in scans:
        sizes[scan.alias] = _size(scan.alias, tables[scan.table], _by_bytes(tables[scan.table]), cached=False)
    return Statistics(sizes, {}, slots, warnings=((None, why),))


@dataclass(frozen=True)
class _Wanted:
    """What is to be known of one table: keys, each with its scan, and terms of conditions, each with its alias and
    the names of its columns in the files; how wide texts are, by their names there, where rows are few enough; and
    ranges of columns, by their names there too.
    """

    sketches: Mapping[Key, tuple[Scan, SketchKey]]
    terms: Mapping[tuple[str, str], tuple[Terms, Mapping[str, str]]]
    texts: frozenset[str]
    most_rows: float
    ranged: frozenset[str]


@dataclass(frozen=True)
class _Gathered:
    """What is known so far, of all tables; `kept` is by alias and the text of the terms."""

    sizes: dict[str, TableSize]
    sketches: dict[Key, KeySketch]
    ranges: dict[str, ValueRange]
    widths: dict[str, float]
    kept: dict[tuple[str, str], tuple[float | None, int]]
    warnings: list[tuple[str | None, str]]

    def add(
        self,
        aliases: Sequence[Scan],
        table: TableInput,
        wanted: _Wanted,
        known: KnownTable,
        warnings: Sequence[str],
        cached: bool,
    ) -> None:
        """Notes what is known of one table, under the names of its scans."""
        self.warnings.extend((table.files.table, warning) for warning in warnings)
        for scan in aliases:
            self.sizes[scan.alias] = _size(scan.alias, table, known, cached=cached)
            self.ranges.update({field.name: known.ranges[name] for field, name in scan.columns if name in known.ranges})
            widths = {field.name: known.widths.get(name) for field, name in scan.columns}
            self.widths.update({name: width for name, width in widths.items() if width is not None})
        for key, (scan, sketch_key) in wanted.sketches.items():
            sketch = known.sketches.get(sketch_key)
            if sketch is not None:
                self.sketches[key] = replace(sketch, alias=scan.alias, columns=key)
        for place, (terms, names) in wanted.terms.items():
            self.kept[place] = known.kept.get(_kept_key(terms, names), (None, len(terms.terms)))


def _wanted(
    keys: Collection[Key],
    aliases: Sequence[Scan],
    conditions: Sequence[tuple[str, Terms]],
    texts: Texts,
    ranged: Collection[str],
) -> _Wanted:
    sketches: dict[Key, tuple[Scan, SketchKey]] = {}
    for scan in aliases:
        # Arrow does not group by nested values: nothing would be known of them.
        atomic = ((field, name) for field, name in scan.columns if field.type.name is not TypeName.OTHER)
        types = {field.name: (name, str(field.type)) for field, name in atomic}
        for key in sorted(keys):
            if key and key not in sketches and all(column in types for column in key):
                sketches[key] = (scan, tuple(types[column] for column in key))
    names = {scan.alias: {field.name: name for field, name in scan.columns} for scan in aliases}
    terms = {
        (alias, found.text): (found, {column: names[alias][column] for column in found.columns})
        for alias, found in conditions
        if alias in names and found.columns <= names[alias].keys() and len(found.columns) <= MAX_CONDITION_COLUMNS
    }
    wide = frozenset(name for scan in aliases for field, name in scan.columns if field.name in texts.columns)
    values = frozenset(name for scan in aliases for field, name in scan.columns if field.name in ranged)
    return _Wanted(sketches, terms, wide, texts.most_rows, values)


def _kept_key(terms: Terms, names: Mapping[str, str]) -> str:
    # Texts of conditions may be long, and many: their digests are not.
    return hashlib.sha256(f"{terms.text} {sorted(names.items())}".encode(errors="surrogateescape")).hexdigest()


def _known_of(
    table: TableInput, wanted: _Wanted, cache: StatisticsCache, check: Callable[[], None]
) -> tuple[KnownTable, tuple[str, ...], bool]:
    """What is known of the table, warnings, and whether nothing had to be read for it."""
    try:
        file_set = file_set_of(table)
        earlier = cache.get(file_set)
        if earlier is not None and _is_enough(earlier, wanted):
            return earlier, (), True
        known, warnings = _read(table, wanted, check)
    except Exception as error:  # noqa: BLE001 - statistics fail no job, whatever they meet
        # Raises again where it was the check that ended the reading.
        check()
        _log.warning("no statistics of %s", table.files.table, exc_info=True)
        return _by_bytes(table), (f"It could not be read before the run ({type(error).__name__}).",), False
    if not warnings:
        # What could not be read may be readable soon.
        cache.put(file_set, known)
    return known, warnings, False


def _is_enough(known: KnownTable, wanted: _Wanted) -> bool:
    return (
        all(key in known.sketches for _, key in wanted.sketches.values())
        and all(_kept_key(terms, names) in known.kept for terms, names in wanted.terms.values())
        and wanted.ranged <= known.columns
        and (wanted.texts <= known.widths.keys() or not _may_be_hashed(known.rows, known.rows_are_exact, wanted))
    )


def _may_be_hashed(rows: int, rows_are_exact: bool, wanted: _Wanted) -> bool:
    return rows_are_exact and rows <= wanted.most_rows


def _by_bytes(table: TableInput) -> KnownTable:
    return KnownTable(table.files.bytes // BYTES_PER_ROW, rows_are_exact=False)


def _read(table: TableInput, wanted: _Wanted, check: Callable[[], None]) -> tuple[KnownTable, tuple[str, ...]]:
    keys = {name for _, key in wanted.sketches.values() for name, _ in key}
    in_conditions = {name for _, names in wanted.terms.values() for name in names.values()}
    sample = _sample(table, keys | in_conditions, in_conditions - keys, wanted.ranged, check)
    types = {field.name: field.type for field in table.schema.fields}
    troubles = Troubles(check)
    # Rows are exact where footers told them.
    texts = wanted.texts if _may_be_hashed(sample.rows, sample.rows_are_exact, wanted) else ()
    widths = decoded_widths(table.files.files, texts, troubles)
    return (
        KnownTable(
            sample.rows,
            sample.rows_are_exact,
            {key: _sketch(key, types, sample) for _, key in wanted.sketches.values()},
            sample.ranges,
            {_kept_key(terms, names): _kept(terms, names, types, sample) for terms, names in wanted.terms.values()},
            frozenset(keys | in_conditions | wanted.ranged),
            widths,
        ),
        tuple(dict.fromkeys((*sample.warnings, *troubles.sentences()))),
    )


def _kept(
    terms: Terms, names: Mapping[str, str], types: Mapping[str, DataType], sample: Sample
) -> tuple[float | None, int]:
    """The share of the rows for which the terms are true, and how many of them are unknown."""
    if sample.table is None or not set(names.values()) <= set(sample.table.column_names) - sample.cut_short:
        return None, len(terms.terms)
    arrays = {emitted: typed(sample.table.column(name), types[name]) for emitted, name in names.items()}
    sampled = sample.table.num_rows
    return share_kept(terms.terms, arrays, sampled, is_whole=sampled >= sample.rows)


def _sample(
    table: TableInput, columns: set[str], optional: set[str], ranged: frozenset[str], check: Callable[[], None]
) -> Sample:
    ordered = [name for name in table.schema.names if name in columns]
    if table.source.format is TableFormat.PARQUET:
        return sample_parquet(table.files.files, table.files.bytes, ordered, optional, ranged, check)
    return sample_text(table.source, table.files.files, table.files.bytes, table.schema.names, ordered, check)


def _size(alias: str, table: TableInput, known: KnownTable, *, cached: bool) -> TableSize:
    is_text = table.source.format is not TableFormat.PARQUET
    files = table.files
    return TableSize(alias, len(files.files), files.bytes, known.rows, known.rows_are_exact, cached, is_text)


def _sketch(key: SketchKey, types: Mapping[str, DataType], sample: Sample) -> KeySketch | None:
    """The sketch of columns under their names in the files, and with no alias yet."""
    columns = tuple(name for name, _ in key)
    if sample.table is None or not sample.table.num_rows or not set(columns) <= set(sample.table.column_names):
        return None
    try:
        groups = _groups(sample.table, columns, [types[column] for column in columns])
    except (pa.ArrowException, ValueError, TypeError) as error:
        _log.warning("no sketch of %s: %s", ", ".join(columns), error)
        return None
    sampled = sample.table.num_rows
    counts = groups.column("count_all")
    frequencies = {entry["values"].as_py(): entry["counts"].as_py() for entry in pc.value_counts(counts)}
    hot = _hot_keys(groups, [types[column] for column in columns], sampled, sample.rows)
    return KeySketch(
        alias="",
        columns=columns,
        sampled_rows=sampled,
        distinct_in_sample=groups.num_rows,
        distinct_keys=estimate_distinct(frequencies, max(sample.rows, sampled)),
        null_share=_null_share(groups, columns, sampled),
        hot_keys=tuple(key for key, _ in hot),
        representative=sample.cut_short.isdisjoint(columns),
        literals=tuple(literals for _, literals in hot),
    )


def _groups(table: pa.Table, columns: Key, types: Sequence[DataType]) -> pa.Table:
    """The distinct keys of the sample, each with its number of rows in `count_all`; a column may occur twice."""
    names = [f"k{index}" for index in range(len(columns))]
    arrays = [_normalized(table.column(column), type_) for column, type_ in zip(columns, types, strict=True)]
    return pa.table(arrays, names=names).group_by(names).aggregate([([], "count_all")])


def _normalized(values: pa.ChunkedArray, type_: DataType) -> pa.ChunkedArray:
    if type_.is_fractional and pa.types.is_string(values.type):
        # One number has many texts: 0, 0.0 and -0.0.
        values = typed(values, type_)
    if not pa.types.is_floating(values.type):
        return values
    # Spark groups -0.0 with 0.0, and every NaN with every other; Arrow does not.
    told = pc.if_else(pc.is_nan(values), pa.scalar(math.nan, values.type), values)
    return pc.add(told, pa.scalar(0.0, values.type))


def _null_share(groups: pa.Table, columns: Key, sampled: int) -> float:
    is_null = pc.is_null(groups.column("k0"))
    for index in range(1, len(columns)):
        is_null = pc.or_(is_null, pc.is_null(groups.column(f"k{index}")))
    nulls = pc.sum(groups.filter(is_null).column("count_all")).as_py() or 0
    return float(nulls / sampled)


_Hot = tuple[HotKey, tuple[Scalar, ...] | None]


def _hot_keys(groups: pa.Table, types: Sequence[DataType], sampled: int, rows: int) -> tuple[_Hot, ...]:
    """Each with its literals, where it has them."""
    least = max(MIN_OCCURRENCES, sampled * MIN_SHARE)
    frequent = groups.filter(pc.greater_equal(groups.column("count_all"), pa.scalar(least)))
    entries = [(row["count_all"], [row[f"k{index}"] for index in range(len(types))]) for row in frequent.to_pylist()]
    hot = [(_hot_key(key, count / sampled, rows), _literals(key, types)) for count, key in entries]
    # By value where counts are equal: Arrow's order of groups depends on its threads.
    return tuple(sorted(hot, key=lambda pair: (-pair[0].share, pair[0].value, pair[0].is_null))[:HOT_KEYS])


def _hot_key(key: Sequence[object], share: float, rows: int) -> HotKey:
    return HotKey(
        value=", ".join(_text(part) for part in key),
        share=share,
        estimated_rows=round(share * rows),
        is_null=None in key,
    )


def _literals(key: Sequence[object], types: Sequence[DataType]) -> tuple[Scalar, ...] | None:
    found = [literal(part, type_) for part, type_ in zip(key, types, strict=True)]
    known = tuple(one for one in found if one is not None)
    return known if len(known) == len(found) else None


def _text(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = value.hex() if isinstance(value, bytes) else str(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else text[: _MAX_VALUE_LENGTH - 1] + "…"
