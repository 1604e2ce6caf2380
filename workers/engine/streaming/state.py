"""The state of a stream: Spark's settings for it, its layout, and the size of its changes.

`prepare_session` sets the properties of the session that starts a streaming query. The query reads them when it starts;
most of them are part of its checkpoint from then on, and later changes of the session have no effect.

`layout_of` describes the state that a plan needs. Spark only compares the number and types of a state's columns, and
two plans may store different values in columns of the same types. So the layout is stored with the job, and a job whose
layout has changed stops before it changes anything (`differences`).

`changes_of` reads how the changes of a mini-batch are distributed over the partitions of the state, from its files:

    <checkpoint>/commits/<mini-batch>                               which of the files below are its own
    <checkpoint>/state/<operator>/_metadata/metadata                the operator's name
    <checkpoint>/state/<operator>/<partition>/[<store>/]<version>_<id>.changelog     RocksDB
    <checkpoint>/state/<operator>/<partition>/[<store>/]<version>.delta              in memory

The version is the number of the mini-batch plus one. A file is compressed, and has the keys that the mini-batch wrote
or removed, with their values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from pyspark.sql import SparkSession

from service.contract.options import StateProvider
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Scan
from workers.engine.plan.traversal import walk_up
from workers.engine.streaming.changes.steps import ChangePlan
from workers.engine.streaming.stream_plan import StreamPlan

_PACKAGE = "org.apache.spark.sql.execution.streaming.state"
_PROVIDERS = {
    StateProvider.ROCKSDB: f"{_PACKAGE}.RocksDBStateStoreProvider",
    StateProvider.MEMORY: f"{_PACKAGE}.HDFSBackedStateStoreProvider",
}

_OPTIMIZER = "org.apache.spark.sql.catalyst.optimizer"
_PER_BATCH_RULES = ("PropagateEmptyRelation", "ConvertToLocalRelation")
"""Rules that change the plan of a mini-batch if a source has no new rows. Only one branch of a union is left then, and
Spark folds its constants into the aggregate: different calls become one, and rows of the state are read with other
calls than those that wrote them. Spark's own check only compares numbers and types.
"""

_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"

_EVERY_STREAM = {
    "spark.sql.optimizer.excludedRules": ",".join(f"{_OPTIMIZER}.{rule}" for rule in _PER_BATCH_RULES),
    # Other programs than Spark read the output of mini-batches; INT96 ends in the year 2262.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # A repeated mini-batch starts from the state before it, so at least two versions are needed.
    "spark.sql.streaming.minBatchesToRetain": "10",
    "spark.sql.streaming.stopTimeout": "20s",
    # Without Hadoop's native library, Spark's default starts a process (chmod) for most files that it creates or
    # renames, which takes a third of the time of a small mini-batch. Both are equally atomic on a local file system.
    "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
    # State files have checksums of their own: those of RocksDB, ZIP and LZ4.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.numRecentProgressUpdates": "100",
    "spark.sql.streaming.metricsEnabled": "false",
}

_ROCKSDB = {
    # Each mini-batch writes its changes, not the files of the store.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # To count rows, RocksDB would read each key before it writes it, which takes one and a half times as long.
    "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
    # All stores of a process share one memory limit: they are outside of the JVM's heap.
    "spark.sql.streaming.stateStore.rocksdb.boundedMemoryUsage": "true",
    # The cache of files that are read often; the default is 8 MB.
    "spark.sql.streaming.stateStore.rocksdb.blockCacheSizeMB": "128",
    # The names of state files identify the run that wrote them, and the commit log lists the valid ones: two drivers
    # that use the same checkpoint cannot mix their files.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
}

_MEMORY_LIMIT = "spark.sql.streaming.stateStore.rocksdb.maxMemoryUsageMB"

VERSION = 1
"""Increased if streams run in a way that cannot continue with a state that the same plan wrote before."""

_TEXT = 2
"""Increased if the same plan has another text."""

_WORD = re.compile(r"\w+|[^\w\s()]")

_MEANINGS = {
    "version": "the state format of this release",
    "shape": "the content of the state",
    "streams": "the streams and their columns",
    "columns": "the columns of the result",
    "keys": "the columns that identify groups",
    "plan": "the plan",
    "provider": "state.provider",
    "partitions": "state.partitions",
    "output": "output_mode",
    "statics": "the files of static tables, from which removed rows are computed again",
}

_HEADER_LINES = 1


@dataclass(frozen=True)
class StateOptions:
    """The options of a state. The first mini-batch of a checkpoint fixes `partitions`; `memory_mb` limits the memory of
    RocksDB in a process.
    """

    provider: StateProvider
    partitions: int
    memory_mb: int = 500


def prepare_session(session: SparkSession, options: StateOptions) -> None:
    """Sets the properties for the streaming queries that `session` starts, and resets those of earlier options."""
    for name in (*_ROCKSDB, _MEMORY_LIMIT):
        session.conf.unset(name)
    properties = {
        **_EVERY_STREAM,
        "spark.sql.shuffle.partitions": str(options.partitions),
        "spark.sql.streaming.stateStore.providerClass": _PROVIDERS[options.provider],
    }
    if options.provider is StateProvider.ROCKSDB:
        properties |= _ROCKSDB
        properties[_MEMORY_LIMIT] = str(options.memory_mb)
    for name, value in properties.items():
        session.conf.set(name, value)


@dataclass(frozen=True)
class Difference:
    """A property of the state that has changed since the state was created."""

    what: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.what} was {self.before} when the state was created, and is {self.after} now"


def layout_of(
    plan: StreamPlan,
    streams: frozenset[str],
    *,
    provider: str,
    partitions: int,
    output: str,
    statics: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """Returns the layout as JSON values, which are stored. `streams` are aliases. `statics` are digests of the files of
    static tables that must not change.
    """
    scans = sorted({node for node in walk_up(plan.node) if isinstance(node, Scan) and node.alias in streams}, key=str)
    return {
        "version": VERSION,
        "shape": plan.shape.value,
        "streams": [
            {"table": scan.table, "columns": [f"{name} {field.type}" for field, name in scan.columns]} for scan in scans
        ],
        "columns": [f"{field.name} {field.type}" for field in plan.columns],
        "keys": None if plan.keys is None else list(plan.keys),
        "plan": text_of(plan.node) if plan.changes is None else _text_of_steps(plan.changes),
        "text": _TEXT,
        **({} if plan.changes is None else {"form": plan.changes.form}),
        "provider": provider,
        "partitions": partitions,
        "output": output,
        **({"statics": dict(statics)} if statics else {}),
    }


def _text_of_steps(plan: ChangePlan) -> str:
    """Returns how each step computes its state, with the keys and columns."""
    lines = [f"{rows.alias}\n{text_of(rows.node)}" for rows in plan.shared]
    for step in plan.steps:
        parts = [(port.changes, port.fields, port.keys) for port in step.ports]
        parts += [] if step.second is None else [(step.second.node, step.second.fields, step.second.keys)]
        for place, (node, fields, keys) in enumerate(parts):
            columns = ", ".join(f"{field.name} {field.type}" for field in fields)
            lines.append(f"step {step.number}, part {place}, by {', '.join(map(str, keys))}: {columns}")
            lines.append(text_of(node))
    return "\n".join((*lines, text_of(plan.node)))


def differences(before: dict[str, Any], after: dict[str, Any]) -> tuple[Difference, ...]:
    """Returns the differences of two layouts, those that the caller can set last; empty if the state can be used."""
    if before.get("text") != _TEXT:
        # Earlier versions wrote other parentheses, and the names of functions in capitals.
        before, after = ({**layout, "plan": _words(str(layout.get("plan")))} for layout in (before, after))
    found = (key for key in _MEANINGS if before.get(key) != after.get(key))
    return tuple(Difference(_MEANINGS[key], _short(before.get(key)), _short(after.get(key))) for key in found)


def _words(plan: str) -> str:
    """Returns the words of each line of a plan in alphabetical order, which is the same for all versions of a text."""
    return "\n".join(" ".join(sorted(_WORD.findall(line.casefold()))) for line in plan.splitlines())


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 and "\n" not in text else "another one"


@dataclass(frozen=True)
class StateChanges:
    """The changes of a mini-batch to the state of one operator: the bytes of each partition's changes, in order."""

    operator: str
    bytes: tuple[int, ...]

    @property
    def median_bytes(self) -> float:
        """The median of the partitions."""
        return median(self.bytes)

    @property
    def skew(self) -> float | None:
        """The largest partition's changes divided by the median; None if half of the partitions have none."""
        return max(self.bytes) / self.median_bytes if self.median_bytes else None


def changes_of(checkpoint: Path, batch_id: int) -> tuple[StateChanges | None, ...]:
    """Returns the changes of a committed mini-batch, by operator in the order of their numbers; None for an operator
    some of whose files have been removed.

    Takes a few microseconds for each partition. Raises OSError and ValueError for a checkpoint that cannot be read.
    """
    lines = (checkpoint / "commits" / str(batch_id)).read_text().splitlines()[_HEADER_LINES:]
    own: dict[str, list[list[str]]] = (json.loads(lines[0]).get("stateUniqueIds") or {}) if lines else {}
    found: list[StateChanges | None] = []
    for operator in _numbered(checkpoint / "state"):
        partitions = _numbered(operator)
        ids = own.get(operator.name)
        sizes = [
            _size(partition, [f"{batch_id + 1}_{one}.changelog" for one in ids[int(partition.name)]])
            if ids is not None and int(partition.name) < len(ids)
            else _size(partition, [f"{batch_id + 1}.delta", f"{batch_id + 1}.changelog"])
            for partition in partitions
        ]
        known = [size for size in sizes if size is not None]
        is_whole = bool(known) and len(known) == len(sizes)
        found.append(StateChanges(_name(operator), tuple(known)) if is_whole else None)
    return tuple(found)


def bytes_of_changes(checkpoint: Path, batch_id: int) -> tuple[int | None, ...]:
    """Returns the compressed bytes of each operator's changes up to a mini-batch, in the order of the operators'
    numbers; None for an operator without files.

    RocksDB keeps a new state in memory. Until it writes its own files, after ten mini-batches or more, the state is
    restored from these changes only. Raises OSError.
    """
    return tuple(_bytes_until(operator, batch_id + 1) for operator in _numbered(checkpoint / "state"))


def _bytes_until(operator: Path, last: int) -> int | None:
    largest: dict[tuple[Path, int], int] = {}
    for path in operator.rglob("*.changelog"):
        version = path.name.partition(".")[0].partition("_")[0]
        if version.isdecimal() and int(version) <= last:
            # A mini-batch that was repeated may have left a file of each try, of which one counts.
            place = (path.parent, int(version))
            largest[place] = max(largest.get(place, 0), path.stat().st_size)
    return sum(largest.values()) if largest else None


def _numbered(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))


def _size(partition: Path, names: list[str]) -> int | None:
    """Returns the bytes of the files of these names in the partition or its stores; None if there are none."""
    found = [path for name in names if (path := partition / name).exists()]
    # A join has several stores, each in its own directory.
    found = found or [path for name in names for path in partition.glob(f"*/{name}")]
    return sum(path.stat().st_size for path in found) if found else None


def _name(operator: Path) -> str:
    lines = (operator / "_metadata" / "metadata").read_text().splitlines()[_HEADER_LINES:]
    return str(json.loads(lines[0])["operatorInfo"]["operatorName"])
