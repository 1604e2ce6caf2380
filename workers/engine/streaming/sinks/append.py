"""A sink that adds Parquet files to a directory, for results whose rows never change.

A mini-batch is a directory `part-g<generation>-b<number>`, put there whole by one rename, which fails where it is
already: that is what makes it come once. Who reads all Parquet files below the path reads all mini-batches.
`_evenkeel`, which such readers skip, says whose the directory is, holds the newest fencing token, and tells for each
mini-batch its files and rows, written last. Files are never in sight in parts.

An attempt may hang anywhere and wake up when another one has the job. What it has in the making, the newer one takes
from it by a rename, too: of the two renames one wins. What it makes after that, it makes in vain: it looks for newer
tokens before it renames, and those are raised before anything is taken from older attempts.

Attempts of an earlier version (while workers are exchanged) know tokens in `_evenkeel` alone, and remove what begins
with a dot there: hence `making`, which they leave alone. They remove this attempt's token before they look which
mini-batches there are: where it is still there after a rename, they have seen what that brought. What remains: a newer
generation of theirs that has brought nothing yet does not see a mini-batch that comes behind its look, and that stays
until the next attempt begins.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from workers.engine.streaming.sinks.base import (
    FenceLostError,
    SinkError,
    SinkTarget,
    Staged,
    staged_rows,
    staged_schema,
)

_OURS = "_evenkeel"
_ROWS_AT_ONCE = 1 << 16
_PART = re.compile(r"part-g(\d+)-b(\d+)")
_FENCE = re.compile(r"fence-(\d+)")
_TOLD = re.compile(r"part-g(\d+)-b\d+\.json")
_FENCES = "fences"
"""A directory of their own, which is listed at every mini-batch: beside it there is a file for each one there was."""
_IN_MAKING = "making"
_MAKING = re.compile(r"\.(?:(\d+)-)?[0-9a-f]{32}")


class AppendingSink:
    """See the module. The directory is made where there is none; one that is there is empty, or this job's.

    A newer generation of the job replaces what older ones wrote: it reads their input again.
    """

    def __init__(self, path: Path, target: SinkTarget) -> None:
        self._path = path
        self._ours = path / _OURS
        self._making = self._ours / _IN_MAKING
        self._target = target
        self._tokens = [directory / f"fence-{target.fence:012}" for directory in (self._ours, self._ours / _FENCES)]
        """One name a token: of two that raise it at once, neither can lower it. Earlier versions know the first."""
        job, _, generation = target.app.rpartition("/")
        self._job = job
        self._generation = int(generation)
        self._last: int | None = None

    def prepare(self) -> None:
        """See `Sink`."""
        if self._target.keys is not None or self._target.final is not None:
            raise SinkError(
                "Files are only added, and this result changes. Use sink 'managed', 'delta' or 'postgres', or windows "
                "with output 'append'."
            )
        staged_schema(self._target.columns)
        self._own()
        for token in self._tokens:
            token.parent.mkdir(exist_ok=True)
            self._check_fences(token.parent)
        for token in self._tokens:
            token.touch()
        for token in self._tokens:
            self._check_fences(token.parent)
        self._sweep()
        numbers = [number for generation, number in self._parts() if generation == self._generation]
        self._last = max(numbers, default=None)
        for number in numbers:
            self._tell(number)

    def committed(self) -> int | None:
        """See `Sink`."""
        return self._last

    def commit(self, batch_id: int, staged: Staged) -> None:
        """See `Sink`; gives no version. A mini-batch without rows leaves nothing, and is not remembered."""
        self._check_token()
        if staged.rows == 0 or (self._last is not None and self._last >= batch_id):
            return
        making = self._hidden()
        making.mkdir()
        try:
            self._fill(making, staged)
            self._check_token()
            making.rename(self._part(batch_id))
        except OSError:
            # There already, by an attempt whose end nobody saw: of the same rows, since a number stands for them.
            if not self._part(batch_id).is_dir():
                self._check_token()
                raise
        finally:
            shutil.rmtree(making, ignore_errors=True)
        self._check_brought(batch_id)
        self._tell(batch_id)
        self._last = batch_id

    def tidy(self) -> None:
        """Nothing is due."""

    def close(self) -> None:
        """Nothing is held open."""

    def _own(self) -> None:
        owner = self._ours / "owner.json"
        if not self._ours.is_dir():
            self._path.mkdir(parents=True, exist_ok=True)
            strange = [path.name for path in self._path.iterdir() if path.name != _OURS]
            if strange:
                raise SinkError(f"{self._path} has files of others, such as {min(strange)}. Name an empty directory.")
            self._ours.mkdir(exist_ok=True)
        self._making.mkdir(exist_ok=True)
        self._write_once(owner, {"job": self._job})
        held = json.loads(owner.read_text(encoding="utf-8"))["job"]
        if held != self._job:
            raise SinkError(f"{self._path} has the result of another job, {held}. Name a directory of its own.")

    def _check_fences(self, directory: Path) -> None:
        fences = [int(found[1]) for path in directory.iterdir() if (found := _FENCE.fullmatch(path.name))]
        if max(fences, default=0) > self._target.fence:
            raise FenceLostError(
                f"Attempt {max(fences)} writes to {self._path}, and this is attempt {self._target.fence}: it ends here."
            )

    def _check_token(self) -> None:
        """Before each mini-batch: without a list of those that there are."""
        first, second = self._tokens
        self._check_fences(second.parent)
        if not first.exists():
            self._check_fences(first.parent)
            raise FenceLostError(f"Attempt {self._target.fence} writes to {self._path} no more: its token is gone.")

    def _check_brought(self, batch_id: int) -> None:
        """Behind a rename. What came too late is right all the same, except below a newer generation."""
        try:
            self._check_token()
        except FenceLostError:
            if any(generation > self._generation for generation, _ in self._parts()):
                self._take_away(self._part(batch_id))
            raise

    def _hidden(self) -> Path:
        """A name for what is in the making, which tells by whom."""
        return self._making / f".{self._target.fence:012}-{uuid.uuid4().hex}"

    def _sweep(self) -> None:
        """Removes what older attempts left in the making, and older generations altogether."""
        for path in (*self._ours.iterdir(), *(self._ours / _FENCES).iterdir(), *self._making.iterdir()):
            found = _FENCE.fullmatch(path.name)
            if found and int(found[1]) < self._target.fence:
                path.unlink(missing_ok=True)
            made = _MAKING.fullmatch(path.name)
            if made and int(made[1] or 0) <= self._target.fence:
                self._take_away(path)
        for generation, number in self._parts():
            if generation < self._generation:
                shutil.rmtree(self._path / _name(generation, number), ignore_errors=True)
        # By their own names: one that hung may have told of a mini-batch that was gone already.
        for path in self._ours.iterdir():
            told = _TOLD.fullmatch(path.name)
            if told and int(told[1]) < self._generation:
                path.unlink(missing_ok=True)

    def _take_away(self, path: Path) -> None:
        """Removes what somebody may be about to put into sight: all of it, or nothing where that was first. What may
        not be moved stays: an attempt that could not begin for it would be worse.
        """
        taken = self._hidden()
        with suppress(OSError):
            path.rename(taken)
        shutil.rmtree(taken, ignore_errors=True)

    def _parts(self) -> list[tuple[int, int]]:
        """Generation and number of each mini-batch that is there."""
        found = (_PART.fullmatch(path.name) for path in self._path.iterdir())
        return [(int(match[1]), int(match[2])) for match in found if match]

    def _part(self, batch_id: int) -> Path:
        return self._path / _name(self._generation, batch_id)

    def _fill(self, directory: Path, staged: Staged) -> None:
        if self._target.output != self._target.columns:
            self._rewrite(directory / f"{0:05}.parquet", staged)
            return
        for number, file in enumerate(staged.files):
            path = directory / f"{number:05}.parquet"
            try:
                os.link(file, path)
            except OSError:
                # Another file system, or one without links.
                shutil.copyfile(file, path)

    def _rewrite(self, path: Path, staged: Staged) -> None:
        schema = staged_schema(self._target.output)
        with pq.ParquetWriter(path, schema) as writer:
            for batch in staged_rows(staged, schema, _ROWS_AT_ONCE):
                writer.write_batch(batch)

    def _tell(self, batch_id: int) -> None:
        manifest = self._ours / f"{_name(self._generation, batch_id)}.json"
        if manifest.exists():
            return
        files = sorted(self._part(batch_id).glob("*.parquet"))
        if not files:
            # Gone, with its generation, while this attempt hung.
            return
        rows = sum(pq.read_metadata(file).num_rows for file in files)
        self._write_once(manifest, {"files": [str(file.relative_to(self._path)) for file in files], "rows": rows})

    def _write_once(self, path: Path, content: dict[str, Any]) -> None:
        """Puts a file there whole, unless there is one."""
        making = self._hidden()
        making.mkdir()
        try:
            (making / path.name).write_text(json.dumps(content), encoding="utf-8")
            os.link(making / path.name, path)
        except FileExistsError:
            return
        finally:
            shutil.rmtree(making, ignore_errors=True)


def _name(generation: int, batch_id: int) -> str:
    return f"part-g{generation}-b{batch_id:012}"
