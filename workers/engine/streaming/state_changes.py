"""How the changes of a stream's state are spread over its partitions, by the files that each mini-batch leaves.

    <checkpoint>/commits/<mini-batch>                               which of the files below are its own
    <checkpoint>/state/<operator>/_metadata/metadata                the operator's name
    <checkpoint>/state/<operator>/<partition>/[<store>/]<version>_<id>.changelog     RocksDB
    <checkpoint>/state/<operator>/<partition>/[<store>/]<version>.delta              in memory

A version is that of the mini-batch and one more. A file holds the keys that the mini-batch wrote or removed, with their
values, and is compressed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_HEADER_LINES = 1


@dataclass(frozen=True)
class StateChanges:
    """What a mini-batch changed in the state of one operator: the bytes of each partition's changes, in order."""

    operator: str
    bytes: tuple[int, ...]

    @property
    def median_bytes(self) -> float:
        """Of the partitions."""
        return median(self.bytes)

    @property
    def skew(self) -> float | None:
        """The largest partition's changes by the median one's; None where half of them have none."""
        return max(self.bytes) / self.median_bytes if self.median_bytes else None


def changes_of(checkpoint: Path, batch_id: int) -> tuple[StateChanges | None, ...]:
    """Of a committed mini-batch, by operator in the order of their numbers; None in the place of one whose files are
    gone, all or some.

    A few microseconds for each partition. Raises OSError and ValueError for a checkpoint that makes no sense.
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
    """What the checkpoint holds of each operator's changes up to a mini-batch, compressed; None where it has no file.

    In the order of the operators' numbers. RocksDB keeps a new state in memory: until it writes files of its own,
    after ten mini-batches or more, these changes are all that the state is restored from. Raises OSError.
    """
    return tuple(_bytes_until(operator, batch_id + 1) for operator in _numbered(checkpoint / "state"))


def _bytes_until(operator: Path, last: int) -> int | None:
    largest: dict[tuple[Path, int], int] = {}
    for path in operator.rglob("*.changelog"):
        version = path.name.partition(".")[0].partition("_")[0]
        if version.isdecimal() and int(version) <= last:
            # A mini-batch that was repeated may have left a file of each try: one of them counts.
            place = (path.parent, int(version))
            largest[place] = max(largest.get(place, 0), path.stat().st_size)
    return sum(largest.values()) if largest else None


def _numbered(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    return sorted((path for path in directory.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name))


def _size(partition: Path, names: list[str]) -> int | None:
    """The bytes of those of the files that are there, in the partition or a store of it; None where none is."""
    sizes = [path.stat().st_size for path in _there(partition, names)]
    return sum(sizes) if sizes else None


def _there(partition: Path, names: list[str]) -> Iterator[Path]:
    found = [path for name in names if (path := partition / name).exists()]
    # The stores of a join, each in a directory of its own.
    yield from found or (path for name in names for path in partition.glob(f"*/{name}"))


def _name(operator: Path) -> str:
    lines = (operator / "_metadata" / "metadata").read_text().splitlines()[_HEADER_LINES:]
    return str(json.loads(lines[0])["operatorInfo"]["operatorName"])
