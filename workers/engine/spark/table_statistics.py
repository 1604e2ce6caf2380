"""Gathers the statistics of a query's tables before it runs: sizes, hot keys, selectivities, ranges and text widths.

Files are read with pyarrow, not with Spark: a sample takes milliseconds and no job. The statistics of a table are
cached for later queries over the same files. An error here is a warning and never fails the job; Spark reports files
that cannot be read. Hot keys are found by `workers.engine.statistics.hot_keys`, in the samples of `sampling` and
`parquet_sampling`.
"""

from __future__ import annotations

import hashlib
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
import pyarrow.compute as pc

from service.contract.read_options import TableFormat
from service.sql.expressions.nodes import columns_of as columns_of_expression
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import DataType, TypeName
from workers.engine.budget import no_check
from workers.engine.plan.nodes import Scan
from workers.engine.spark.parquet_sampling import decoded_widths, sample_parquet
from workers.engine.spark.partition_statistics import partition_ranges, partition_sample
from workers.engine.spark.predicate_evaluation import ranges_kept, share_kept, typed
from workers.engine.spark.row_sampling import BINARY_SAMPLERS, sample_rows
from workers.engine.spark.sampling import BYTES_PER_ROW, FileReads, Sample, sample_text
from workers.engine.spark.sources import TableInput, file_set_of, whole_fields
from workers.engine.spark.statistics_cache import (
    KnownTable,
    OrderSketchKey,
    SketchKey,
    StatisticsCache,
)
from workers.engine.statistics.cardinality import Terms, combined, terms_by_table
from workers.engine.statistics.hot_keys import Numbered, key_sketch, numbered
from workers.engine.statistics.model import (
    KeptKeys,
    KeyOrder,
    KeySketch,
    OrderedKey,
    Statistics,
    TableSize,
    ValueRange,
)
from workers.engine.statistics.orders import ordered_keys
from workers.engine.statistics.partitioning import row_bytes

MAX_CONDITION_COLUMNS = 4
"""Columns of a table that are sampled for one condition. The selectivity of a condition with more is not measured."""

Key = tuple[str, ...]
"""Emitted column names (`("o.uid",)`), all of one scan."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Texts:
    """Emitted names of text columns whose widths are to be measured, in tables with at most `most_rows` rows."""

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
    orders: Collection[KeyOrder] = (),
    cache: StatisticsCache | None = None,
    check: Callable[[], None] = no_check,
) -> Statistics:
    """Returns the sizes of the scanned tables, and what the sample has: a sketch of each key, the selectivity of each
    condition, the widths of `texts`, the ranges of the columns in `ranged` and in keys, and the order of the rows of
    hot keys for `orders`.

    `scans` has one scan per alias; `tables` is by table name; `slots` is the number of tasks that run at once. The
    sample of a table has at most 64 Ki rows of each of at most 8 files, for all its keys and aliases. What `cache` has
    for the same files is not read again. `check` is called before each file is read; it may raise.
    """
    start = time.monotonic()
    cache = StatisticsCache() if cache is None else cache
    alias_of = {field.name: scan.alias for scan in scans for field, _ in scan.columns}
    split = {condition: terms_by_table(condition, alias_of) for condition in conditions}
    terms = [of_alias for by_alias, _ in split.values() for of_alias in by_alias.items()]
    gathered = _Gathered()
    for name in dict.fromkeys(scan.table for scan in scans):
        aliases = [scan for scan in scans if scan.table == name]
        measured = texts if tables[name].source.kind.is_parquet else NO_TEXTS
        gathered.add(aliases, tables[name], _request(keys, aliases, terms, measured, ranged, orders), cache, check)
    return Statistics(
        gathered.sizes,
        gathered.sketches,
        slots,
        elapsed_ms=round((time.monotonic() - start) * 1000),
        ranges=gathered.ranges,
        selectivities={
            condition.sql: share
            for condition, (by_alias, unknown) in split.items()
            if (share := gathered.selectivity(by_alias, unknown)) is not None
        },
        widths=gathered.widths,
        table_shares={condition.sql: gathered.table_shares(by_alias) for condition, (by_alias, _) in split.items()},
        kept_keys={condition.sql: gathered.kept_keys(by_alias) for condition, (by_alias, _) in split.items()},
        warnings=tuple(gathered.warnings),
        orders=gathered.orders,
    )


def sizes_only(scans: Sequence[Scan], tables: Mapping[str, TableInput], slots: int, warning: str) -> Statistics:
    """Returns the sizes by the listing of the files, without opening one. `warning` says why nothing else is known."""
    sizes = {
        scan.alias: _size(scan, tables[scan.table], _by_bytes(tables[scan.table]), is_cached=False) for scan in scans
    }
    return Statistics(sizes, {}, slots, warnings=((None, warning),))


@dataclass(frozen=True)
class _Request:
    """The statistics that are needed of one table.

    `sketches` are keys with their scan; `terms` are terms of conditions, by alias and text, with the names of their
    columns in the files. `texts` and `ranged` are names in the files. Widths of `texts` are needed only if the table
    has at most `most_rows` rows.
    """

    sketches: Mapping[Key, tuple[Scan, SketchKey]]
    terms: Mapping[tuple[str, str], tuple[Terms, Mapping[str, str]]]
    texts: frozenset[str]
    most_rows: float
    ranged: frozenset[str]
    orders: Mapping[KeyOrder, OrderSketchKey]

    def is_met_by(self, known: KnownTable) -> bool:
        """Whether nothing more must be read."""
        return (
            all(key in known.sketches for _, key in self.sketches.values())
            and all(_terms_key(terms, names) in known.kept for terms, names in self.terms.values())
            and self.ranged <= known.columns
            and all(key in known.orders for key in self.orders.values())
            and self.texts_to_measure(known) <= known.widths.keys()
        )

    @property
    def key_columns(self) -> frozenset[str]:
        """The columns of the keys and orders, by their names in the files."""
        return _columns_of_keys((key for _, key in self.sketches.values()), self.orders.values())

    def without(self, known: KnownTable | None) -> _Request:
        """Returns what must be read in addition to `known`. With a column that is new in keys, the terms are evaluated
        again: which of its values they keep is not known.
        """
        if known is None:
            return self
        in_keys = _columns_of_keys(known.sketches, known.orders)
        sketches = {key: pair for key, pair in self.sketches.items() if pair[1] not in known.sketches}
        orders = {order: key for order, key in self.orders.items() if key not in known.orders}
        terms = {
            place: pair
            for place, pair in self.terms.items()
            if not self.key_columns <= in_keys or _terms_key(*pair) not in known.kept
        }
        texts = self.texts - known.widths.keys()
        return replace(self, sketches=sketches, orders=orders, terms=terms, texts=texts)

    def texts_to_measure(self, known: KnownTable | Sample) -> frozenset[str]:
        """Returns the columns whose widths are needed, given the number of rows."""
        return self.texts if known.rows_are_exact and known.rows <= self.most_rows else frozenset()


def _columns_of_keys(sketches: Iterable[SketchKey], orders: Iterable[OrderSketchKey]) -> frozenset[str]:
    keys = {name for key in sketches for name, _ in key}
    return frozenset(keys | {name for key, column in orders for name, _ in (*key, column)})


def _request(
    keys: Collection[Key],
    aliases: Sequence[Scan],
    conditions: Iterable[tuple[str, Terms]],
    texts: Texts,
    ranged: Collection[str],
    orders: Collection[KeyOrder],
) -> _Request:
    ordered: dict[KeyOrder, OrderSketchKey] = {}
    sketches: dict[Key, tuple[Scan, SketchKey]] = {}
    for scan in aliases:
        # Arrow cannot group by nested values, so such keys have no sketch.
        atomic = ((field, name) for field, name in scan.columns if field.type.is_atomic)
        types = {field.name: (name, str(field.type)) for field, name in atomic}
        for key in sorted(keys):
            if key and key not in sketches and all(column in types for column in key):
                sketches[key] = (scan, tuple(types[column] for column in key))
        for key, column in orders:
            if all(name in types for name in (*key, column)):
                ordered[key, column] = (tuple(types[name] for name in key), types[column])
    names = {scan.alias: {field.name: name for field, name in scan.columns} for scan in aliases}
    terms = {
        (alias, found.text): (found, {column: names[alias][column] for column in found.columns})
        for alias, found in conditions
        if alias in names and found.columns <= names[alias].keys() and len(found.columns) <= MAX_CONDITION_COLUMNS
    }

    def names_in_files(emitted: Collection[str]) -> frozenset[str]:
        return frozenset(name for scan in aliases for field, name in scan.columns if field.name in emitted)

    return _Request(sketches, terms, names_in_files(texts.columns), texts.most_rows, names_in_files(ranged), ordered)


@dataclass(frozen=True)
class _Gathered:
    """The statistics of all tables so far. `kept` is by alias and the text of the terms."""

    sizes: dict[str, TableSize] = field(default_factory=dict)
    sketches: dict[Key, KeySketch] = field(default_factory=dict)
    ranges: dict[str, ValueRange] = field(default_factory=dict)
    widths: dict[str, float] = field(default_factory=dict)
    kept: dict[tuple[str, str], tuple[float | None, int]] = field(default_factory=dict)
    warnings: list[tuple[str | None, str]] = field(default_factory=list)
    orders: dict[KeyOrder, tuple[OrderedKey, ...]] = field(default_factory=dict)
    kept_ranges: dict[tuple[str, str], dict[str, tuple[int, int]]] = field(default_factory=dict)

    def add(
        self,
        aliases: Sequence[Scan],
        table: TableInput,
        request: _Request,
        cache: StatisticsCache,
        check: Callable[[], None],
    ) -> None:
        """Adds the statistics of one table, under the names of its scans."""
        known, warnings, is_cached = _cached_or_read(table, request, cache, check)
        self.warnings.extend((table.files.table, warning) for warning in warnings)
        for scan in aliases:
            self.sizes[scan.alias] = _size(scan, table, known, is_cached=is_cached)
            for emitted, name in scan.columns:
                if name in known.ranges:
                    self.ranges[emitted.name] = known.ranges[name]
                width = known.widths.get(name)
                if width is not None:
                    self.widths[emitted.name] = width
        for key, (scan, sketch_key) in request.sketches.items():
            sketch = known.sketches.get(sketch_key)
            if sketch is not None:
                self.sketches[key] = replace(sketch, alias=scan.alias, columns=key)
        for order, order_key in request.orders.items():
            self.orders[order] = known.orders.get(order_key, ())
        for place, (terms, names) in request.terms.items():
            self.kept[place] = known.kept.get(_terms_key(terms, names), (None, len(terms.terms)))
            ranges = known.kept_ranges.get(_terms_key(terms, names), {})
            columns = [pair for scan in aliases if scan.alias == place[0] for pair in scan.columns]
            self.kept_ranges[place] = {found.name: ranges[name] for found, name in columns if name in ranges}

    def kept_keys(self, by_alias: Mapping[str, Terms]) -> tuple[KeptKeys, ...]:
        """Returns the keys that the terms on each table keep."""
        places = ((alias, terms.text) for alias, terms in by_alias.items())
        return tuple(KeptKeys(self.kept_ranges[place]) for place in places if self.kept_ranges.get(place))

    def table_shares(self, by_alias: Mapping[str, Terms]) -> dict[str, float]:
        """Returns the share of the rows of each table that the terms on it keep, by alias, where it is known."""
        found = {alias: self.kept.get((alias, terms.text), (None, 1))[0] for alias, terms in by_alias.items()}
        return {alias: share for alias, share in found.items() if share is not None}

    def selectivity(self, by_alias: Mapping[str, Terms], unknown: int) -> float | None:
        """Returns the share of rows that a condition keeps, from its terms on each table; None if none is known."""
        kept = [self.kept.get((alias, terms.text), (None, 1)) for alias, terms in by_alias.items()]
        return combined([share for share, _ in kept], unknown + sum(number for _, number in kept))


def _terms_key(terms: Terms, names: Mapping[str, str]) -> str:
    # A digest, because there may be many conditions with long texts.
    return hashlib.sha256(f"{terms.text} {sorted(names.items())}".encode(errors="surrogateescape")).hexdigest()


def _cached_or_read(
    table: TableInput, request: _Request, cache: StatisticsCache, check: Callable[[], None]
) -> tuple[KnownTable, tuple[str, ...], bool]:
    """Returns the statistics of the table, warnings, and whether all of them were in the cache."""
    try:
        file_set = file_set_of(table)
        cached = cache.get(file_set)
        if cached is not None and request.is_met_by(cached):
            return cached, (), True
        known, warnings = _read(table, request.without(cached), request.key_columns, check)
    except Exception as error:  # noqa: BLE001 - no error of the statistics may fail the job
        # Raises again if `check` ended the reading.
        check()
        _log.warning("no statistics of %s", table.files.table, exc_info=True)
        return _by_bytes(table), (f"It could not be read before the run ({type(error).__name__}).",), False
    if not warnings:
        # A file that cannot be read now may be readable soon.
        cache.put(file_set, known)
    return known if cached is None else cached.merged_with(known), warnings, False


def _by_bytes(table: TableInput) -> KnownTable:
    return KnownTable(table.files.bytes // BYTES_PER_ROW, rows_are_exact=False)


def _read(
    table: TableInput, request: _Request, all_keys: frozenset[str], check: Callable[[], None]
) -> tuple[KnownTable, tuple[str, ...]]:
    """Reads what `request` asks for. `all_keys` are the key columns of the query, of which the terms keep ranges."""
    keys = all_keys if request.terms else request.key_columns
    in_conditions = {name for _, names in request.terms.values() for name in names.values()}
    partitions = partition_sample(table)
    types = {field.name: field.type for field in table.schema.fields}
    sample = sample_columns(
        table,
        keys | in_conditions,
        check,
        optional=in_conditions - keys,
        ranged=request.ranged,
        is_enough=lambda sample: _is_enough(sample, request, partitions, types),
    )
    reads = FileReads(check)
    widths = decoded_widths(table.files.files, request.texts_to_measure(sample), reads)
    rows = _SampledRows(sample, partitions, types)
    terms = {_terms_key(terms, names): (terms, names) for terms, names in request.terms.values()}
    known = KnownTable(
        sample.rows,
        sample.rows_are_exact,
        {key: rows.sketch(key) for key in dict.fromkeys(key for _, key in request.sketches.values())},
        {**sample.ranges, **partition_ranges(partitions, table)},
        {digest: _kept(*pair, types, sample, partitions) for digest, pair in terms.items()},
        frozenset(keys | in_conditions | request.ranged),
        widths,
        {key: _order(key, types, sample) for key in request.orders.values()},
        {digest: _ranges_kept(*pair, keys, types, sample) for digest, pair in terms.items()},
    )
    return known, tuple(dict.fromkeys((*sample.warnings, *reads.warnings())))


def _is_enough(sample: Sample, request: _Request, partitions: pa.Table | None, types: Mapping[str, DataType]) -> bool:
    """Whether a larger sample would hardly change the statistics: all keys have few values, which are in all parts of
    the table or most of those in the range of their column, and all terms keep many rows.
    """
    columns = {} if sample.table is None else dict(zip(sample.table.column_names, sample.table.columns, strict=True))
    if request.orders or not all(
        _has_most_values(values, sample.ranges.get(name)) or _is_mixed(values) for name, values in columns.items()
    ):
        return False
    rows = _SampledRows(sample, partitions, types)
    sketches = [rows.sketch(key) for _, key in request.sketches.values()]
    shares = [_kept(*pair, types, sample, partitions)[0] for pair in request.terms.values()]
    return all(
        sketch is not None and sketch.representative and _ROWS_PER_VALUE * sketch.distinct_keys <= sketch.sampled_rows
        for sketch in sketches
    ) and all(share is not None and share >= _LEAST_SHARE for share in shares)


def _has_most_values(values: pa.ChunkedArray, found: ValueRange | None) -> bool:
    """Whether a column of the sample has at least a quarter of the values that it can have by the footers, of which at
    most 64 were read.
    """
    return found is not None and found.high - found.low < _VALUES_OF_RANGE * len(values.unique())


_VALUES_OF_RANGE = 4


def _is_mixed(values: pa.ChunkedArray) -> bool:
    """Whether almost all values of each half of the rows are in the other half too."""
    half = len(values) // 2
    halves = values.slice(0, half), values.slice(half)
    try:
        shares = (
            pc.mean(pc.is_in(one, other.unique()).cast(pa.int8())).as_py()
            for one, other in (halves, tuple(reversed(halves)))
        )
        return all(share is None or share >= _MIXED_SHARE for share in shares)
    except pa.ArrowException:
        return False


_MIXED_SHARE = 0.9
_ROWS_PER_VALUE = 100
_LEAST_SHARE = 0.05


def sample_columns(
    table: TableInput,
    columns: Collection[str],
    check: Callable[[], None] = no_check,
    *,
    optional: Collection[str] = (),
    ranged: Collection[str] = (),
    is_enough: Callable[[Sample], bool] | None = None,
) -> Sample:
    """Returns a sample of columns of a table's files, and the estimated number of all rows.

    `optional` and `ranged` apply to Parquet only, and are as in `sample_parquet`; `is_enough` applies to Parquet and
    ORC. `check` is as in `gather_statistics`. Raises what pyarrow raises for files that it cannot read.
    """
    names = table.data_schema.names
    ordered = [name for name in names if name in columns]
    if table.source.kind.is_parquet:
        return sample_parquet(table.files.files, table.files.bytes, ordered, optional, ranged, check, is_enough)
    if table.source.kind in BINARY_SAMPLERS:
        # Avro has no footer with the number of rows: they are counted where rows are read.
        of_few = is_enough if table.source.kind is TableFormat.ORC else None
        sampler = BINARY_SAMPLERS[table.source.kind]
        return sample_rows(sampler, table.files.files, table.files.bytes, ordered, check, of_few)
    return sample_text(table.source, table.files.files, table.files.bytes, names, ordered, check)


class _SampledRows:
    """Sketches the keys of a sample. Several keys may have the same columns, which are then numbered once."""

    def __init__(self, sample: Sample, partitions: pa.Table | None, types: Mapping[str, DataType]) -> None:
        self._sample = sample
        self._partitions = partitions
        self._types = types
        self._numbered: dict[int, tuple[pa.ChunkedArray, Numbered]] = {}
        self._values: dict[tuple[str, bool], pa.ChunkedArray] = {}

    def sketch(self, key: SketchKey) -> KeySketch | None:
        """Returns the sketch of a key; None if there can be none."""
        sample, types = self._sample, self._types
        columns = tuple(name for name, _ in key)
        of_partitions = self._partitions is not None and set(columns) <= set(self._partitions.column_names)
        if of_partitions:
            sample = Sample(sample.rows, sample.rows_are_exact, self._partitions)
        # A key of partition columns and others has none: the sample of rows has only some of the partitions.
        if sample.table is None or not sample.table.num_rows or not set(columns) <= set(sample.table.column_names):
            return None
        values = [self._values_of(column, sample.table, of_partitions) for column in columns]
        is_representative = sample.cut_short.isdisjoint(columns)
        try:
            return key_sketch(
                columns,
                values,
                [types[column] for column in columns],
                sample.rows,
                is_representative=is_representative,
                number=self._number,
            )
        except (pa.ArrowException, ValueError, TypeError) as error:
            _log.warning("no sketch of %s: %s", ", ".join(columns), error)
            return None

    def _values_of(self, column: str, table: pa.Table, of_partitions: bool) -> pa.ChunkedArray:
        place = column, of_partitions
        if place not in self._values:
            self._values[place] = _key_values(table.column(column), self._types[column])
        return self._values[place]

    def _number(self, values: pa.ChunkedArray) -> Numbered:
        # By identity, with the values, so that no other object gets their identity.
        if id(values) not in self._numbered:
            self._numbered[id(values)] = values, numbered(values)
        return self._numbered[id(values)][1]


def _order(key: OrderSketchKey, types: Mapping[str, DataType], sample: Sample) -> tuple[OrderedKey, ...]:
    *columns, column = (name for name, _ in (*key[0], key[1]))
    # The sample has no columns of partitions.
    if sample.table is None or not {*columns, column} <= set(sample.table.column_names):
        return ()
    values = [_key_values(sample.table.column(name), types[name]) for name in columns]
    try:
        order = _comparable(sample.table.column(column), types[column])
        return ordered_keys(values, [types[name] for name in columns], order, types[column])
    except (pa.ArrowException, ValueError, TypeError) as error:
        _log.warning("no order of %s: %s", column, error)
        return ()


def _comparable(values: pa.ChunkedArray, type_: DataType) -> pa.ChunkedArray:
    """Returns values that Arrow sorts as Spark does; text files have all values as strings.

    Raises ValueError for a type whose strings cannot be read exactly.
    """
    if type_.name is TypeName.STRING or not pa.types.is_string(values.type):
        return values
    if type_.name is TypeName.DECIMAL:
        return values.cast(pa.decimal128(type_.precision, type_.scale))
    if type_.is_integral or type_.name is TypeName.DATE:
        return typed(values, type_)
    raise ValueError(f"{type_} in a text file")


def _key_values(values: pa.ChunkedArray, type_: DataType) -> pa.ChunkedArray:
    # In text files, one number has several spellings: 0, 0.0 and -0.0.
    return typed(values, type_) if type_.is_fractional and pa.types.is_string(values.type) else values


def _kept(
    terms: Terms,
    names: Mapping[str, str],
    types: Mapping[str, DataType],
    sample: Sample,
    partitions: pa.Table | None,
) -> tuple[float | None, int]:
    """Returns the share of the rows for which the terms are true, and how many of them are unknown. Terms on partition
    columns are taken as independent of the others.
    """
    if partitions is None:
        return _kept_of(terms, names, types, sample)
    of_partitions = {emitted for emitted, name in names.items() if name in partitions.column_names}
    shares: list[float | None] = []
    unknown = len(terms.terms)
    for columns, rows in (
        (of_partitions, Sample(partitions.num_rows, False, partitions)),
        (names.keys() - of_partitions, sample),
    ):
        own = [term for term in terms.terms if set(columns_of_expression(term)) <= columns]
        used = frozenset(name for term in own for name in columns_of_expression(term))
        if used:
            share, missing = _kept_of(Terms(tuple(own), used), {name: names[name] for name in used}, types, rows)
            shares.append(share)
            # Terms on columns of both kinds stay unknown.
            unknown += missing - len(own)
    known = [share for share in shares if share is not None]
    return (math.prod(known) if known else None), unknown


def _ranges_kept(
    terms: Terms, names: Mapping[str, str], keys: Collection[str], types: Mapping[str, DataType], sample: Sample
) -> dict[str, tuple[int, int]]:
    """Returns the ranges of the keys, by their names in the files, among the sampled rows that the terms keep."""
    if sample.table is None:
        return {}
    known = set(sample.table.column_names) - sample.cut_short
    if not set(names.values()) <= known:
        return {}
    columns = {emitted: typed(sample.table.column(name), types[name]) for emitted, name in names.items()}
    of_keys = {name: typed(sample.table.column(name), types[name]) for name in sorted(known & set(keys))}
    return ranges_kept(terms.terms, columns, of_keys)


def _kept_of(
    terms: Terms, names: Mapping[str, str], types: Mapping[str, DataType], sample: Sample
) -> tuple[float | None, int]:
    if sample.table is None or not set(names.values()) <= set(sample.table.column_names) - sample.cut_short:
        return None, len(terms.terms)
    arrays = {emitted: typed(sample.table.column(name), types[name]) for emitted, name in names.items()}
    sampled = sample.table.num_rows
    return share_kept(terms.terms, arrays, sampled, is_whole=sampled >= sample.rows)


def _size(scan: Scan, table: TableInput, known: KnownTable, *, is_cached: bool) -> TableSize:
    files, whole = table.files, whole_fields(scan, table)
    return TableSize(
        scan.alias,
        len(files.files),
        files.bytes,
        known.rows,
        known.rows_are_exact,
        is_cached,
        table.source.kind.is_text,
        None if whole is None else row_bytes(field.type for field in whole),
    )
