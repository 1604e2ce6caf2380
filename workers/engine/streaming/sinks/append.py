"""A sink that adds files to a directory, for results whose rows never change, and for change logs.

A mini-batch is a directory `part-g<generation>-b<number>`. One rename publishes it as a whole and fails if it exists,
so each mini-batch is published once. Readers read all files below the path and skip `_evenkeel`, which records
the job that owns the directory, the fencing tokens and, last, a manifest of each mini-batch with its files and rows.

Fencing: a new attempt writes its token first, then renames away the unpublished directories of older attempts. An older
attempt that resumes after hanging loses that race, or finds the newer token before its next rename.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from service.results.json_values import json_rows
from workers.engine.streaming.sinks.base import (
    FenceLostError,
    Sink,
    SinkError,
    SinkTarget,
    Staged,
    link_or_copy,
    staged_rows,
    staged_schema,
)

# Compatibility with attempts of an earlier version, which may run while workers are upgraded: they read tokens in
# `_evenkeel` only, and remove names there that begin with a dot, but not `making`. They remove this attempt's token
# before they list the mini-batches, so if the token still exists after a rename, they have listed the new mini-batch.
# One gap is left: a newer generation of that version that has published nothing does not see a mini-batch that is
# published after its listing. This mini-batch stays until the next attempt begins.
_METADATA = "_evenkeel"
_ROWS_PER_BATCH = 1 << 16
_PART = re.compile(r"part-g(\d+)-b(\d+)")
_FENCE = re.compile(r"fence-(\d+)")
_MANIFEST = re.compile(r"part-g(\d+)-b\d+\.json")
_FENCES = "fences"
"""A separate directory, since it is listed at every mini-batch: `_evenkeel` has one file for each past mini-batch."""
_UNPUBLISHED = "making"
_UNPUBLISHED_NAME = re.compile(r"\.(?:(\d+)-)?[0-9a-f]{32}")


class FileFormat(StrEnum):
    """The format of the files, by the name of the sink in a job."""

    PARQUET = "parquet"
    JSON = "json"
    """A JSON object in each line. Decimals are texts, and so are numbers that JSON does not have."""


class AppendingSink(Sink):
    """See the module. The sink creates the directory; an existing one must be empty or belong to this job.

    A newer generation of the job replaces the files of older ones, since it reads their input again.
    """

    def __init__(self, path: Path, target: SinkTarget, file_format: FileFormat = FileFormat.PARQUET) -> None:
        self._path = path
        self._format = file_format
        self._metadata = path / _METADATA
        self._unpublished = self._metadata / _UNPUBLISHED
        self._target = target
        self._tokens = [
            directory / f"fence-{target.fence:012}" for directory in (self._metadata, self._metadata / _FENCES)
        ]
        """Each token is a file of its own, so that concurrent attempts cannot lower it. Earlier versions read the first
        file only.
        """
        job, _, generation = target.app.rpartition("/")
        self._job = job
        self._generation = int(generation)
        self._last: int | None = None

    def prepare(self) -> None:
        """See `Sink`."""
        if self._target.keys is not None or self._target.final is not None:
            raise SinkError(
                "A file sink only appends rows, but rows of this result change. Set 'change_log', use sink 'managed', "
                "'delta' or 'postgres', or windows with output 'append'."
            )
        staged_schema(self._target.columns)
        self._claim_directory()
        for token in self._tokens:
            token.parent.mkdir(exist_ok=True)
            self._check_fences(token.parent)
        for token in self._tokens:
            token.touch()
        for token in self._tokens:
            self._check_fences(token.parent)
        self._remove_older()
        numbers = [number for generation, number in self._parts() if generation == self._generation]
        self._last = max(numbers, default=None)
        for number in numbers:
            self._write_manifest(number)

    def committed(self) -> int | None:
        """See `Sink`."""
        return self._last

    def commit(self, batch_id: int, staged: Staged) -> None:
        """See `Sink`; returns no version. A mini-batch without rows writes nothing and is not recorded."""
        self._check_token()
        if staged.rows == 0 or (self._last is not None and self._last >= batch_id):
            return
        unpublished = self._unpublished_path()
        unpublished.mkdir()
        try:
            self._fill(unpublished, staged)
            self._check_token()
            unpublished.rename(self._part(batch_id))
        except OSError:
            # An attempt whose outcome was lost may have published it. The rows are the same: the number identifies
            # them.
            if not self._part(batch_id).is_dir():
                self._check_token()
                raise
        finally:
            shutil.rmtree(unpublished, ignore_errors=True)
        self._check_published(batch_id)
        self._write_manifest(batch_id)
        self._last = batch_id

    def _claim_directory(self) -> None:
        owner = self._metadata / "owner.json"
        if not self._metadata.is_dir():
            self._path.mkdir(parents=True, exist_ok=True)
            foreign = [path.name for path in self._path.iterdir() if path.name != _METADATA]
            if foreign:
                raise SinkError(
                    f"{self._path} has files that this job did not write, such as {min(foreign)}. "
                    "Choose an empty directory."
                )
            self._metadata.mkdir(exist_ok=True)
        self._unpublished.mkdir(exist_ok=True)
        self._write_once(owner, {"job": self._job})
        held = json.loads(owner.read_text(encoding="utf-8"))["job"]
        if held != self._job:
            raise SinkError(f"{self._path} contains the result of another job, {held}. Choose another directory.")

    def _check_fences(self, directory: Path) -> None:
        fences = [int(found[1]) for path in directory.iterdir() if (found := _FENCE.fullmatch(path.name))]
        if max(fences, default=0) > self._target.fence:
            raise FenceLostError(
                f"Attempt {max(fences)} now writes to {self._path}. Attempt {self._target.fence} ends."
            )

    def _check_token(self) -> None:
        """Raises FenceLostError if a newer attempt writes. Called for each mini-batch: does not list them."""
        first, second = self._tokens
        self._check_fences(second.parent)
        if not first.exists():
            self._check_fences(first.parent)
            raise FenceLostError(
                f"Another attempt removed the fencing token of attempt {self._target.fence} from {self._path}. "
                "This attempt ends."
            )

    def _check_published(self, batch_id: int) -> None:
        """Called after a rename. A mini-batch that was published too late is still right, unless a newer generation
        writes: then it is removed.
        """
        try:
            self._check_token()
        except FenceLostError:
            if any(generation > self._generation for generation, _ in self._parts()):
                self._remove_atomically(self._part(batch_id))
            raise

    def _unpublished_path(self) -> Path:
        """A new name for an unpublished directory; it contains the attempt's token."""
        return self._unpublished / f".{self._target.fence:012}-{uuid.uuid4().hex}"

    def _remove_older(self) -> None:
        """Removes tokens and unpublished directories of older attempts, and all mini-batches of older generations."""
        for path in (*self._metadata.iterdir(), *(self._metadata / _FENCES).iterdir(), *self._unpublished.iterdir()):
            found = _FENCE.fullmatch(path.name)
            if found and int(found[1]) < self._target.fence:
                path.unlink(missing_ok=True)
            unpublished = _UNPUBLISHED_NAME.fullmatch(path.name)
            if unpublished and int(unpublished[1] or 0) <= self._target.fence:
                self._remove_atomically(path)
        for generation, number in self._parts():
            if generation < self._generation:
                shutil.rmtree(self._path / _name(generation, number), ignore_errors=True)
        # Found by their own names: an attempt that hung may have written the manifest of a removed mini-batch.
        for path in self._metadata.iterdir():
            manifest = _MANIFEST.fullmatch(path.name)
            if manifest and int(manifest[1]) < self._generation:
                path.unlink(missing_ok=True)

    def _remove_atomically(self, path: Path) -> None:
        """Removes a directory that another attempt may be publishing: all of it, or nothing if that attempt was first.
        A directory that cannot be moved stays: otherwise the attempt could not begin.
        """
        removed = self._unpublished_path()
        with suppress(OSError):
            path.rename(removed)
        shutil.rmtree(removed, ignore_errors=True)

    def _parts(self) -> list[tuple[int, int]]:
        """Generation and number of each published mini-batch."""
        found = (_PART.fullmatch(path.name) for path in self._path.iterdir())
        return [(int(match[1]), int(match[2])) for match in found if match]

    def _part(self, batch_id: int) -> Path:
        return self._path / _name(self._generation, batch_id)

    def _fill(self, directory: Path, staged: Staged) -> None:
        if self._format is FileFormat.JSON:
            schema = staged_schema(self._target.output)
            with (directory / f"{0:05}.json").open("w", encoding="utf-8") as lines:
                for batch in staged_rows(staged, schema, _ROWS_PER_BATCH):
                    lines.writelines(_json_lines(batch))
            return
        if self._target.output != self._target.columns:
            self._rewrite(directory / f"{0:05}.parquet", staged)
            return
        for number, file in enumerate(staged.files):
            link_or_copy(file, directory / f"{number:05}.parquet")

    def _rewrite(self, path: Path, staged: Staged) -> None:
        schema = staged_schema(self._target.output)
        with pq.ParquetWriter(path, schema) as writer:
            for batch in staged_rows(staged, schema, _ROWS_PER_BATCH):
                writer.write_batch(batch)

    def _write_manifest(self, batch_id: int) -> None:
        manifest = self._metadata / f"{_name(self._generation, batch_id)}.json"
        if manifest.exists():
            return
        files = sorted(self._part(batch_id).glob(f"*.{self._format}"))
        if not files:
            # A newer attempt removed it with its generation while this one hung.
            return
        rows = sum(map(_rows_of, files))
        self._write_once(manifest, {"files": [str(file.relative_to(self._path)) for file in files], "rows": rows})

    def _write_once(self, path: Path, content: dict[str, Any]) -> None:
        """Creates a file atomically, unless it exists."""
        unpublished = self._unpublished_path()
        unpublished.mkdir()
        try:
            (unpublished / path.name).write_text(json.dumps(content), encoding="utf-8")
            os.link(unpublished / path.name, path)
        except FileExistsError:
            return
        finally:
            shutil.rmtree(unpublished, ignore_errors=True)


def _json_lines(rows: pa.RecordBatch) -> Iterator[str]:
    names = rows.schema.names
    for row in json_rows(pa.Table.from_batches([rows])):
        yield f"{json.dumps(dict(zip(names, row, strict=True)), ensure_ascii=False)}\n"


def _rows_of(file: Path) -> int:
    if file.suffix == f".{FileFormat.PARQUET}":
        return int(pq.read_metadata(file).num_rows)
    with file.open("rb") as lines:
        return sum(1 for _ in lines)


def _name(generation: int, batch_id: int) -> str:
    return f"part-g{generation}-b{batch_id:012}"
