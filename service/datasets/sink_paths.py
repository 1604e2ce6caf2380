"""Where sinks write files: below the directories that are set up for that."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from service.spec.errors import SpecError
from service.spec.sinks import DeltaSink, ParquetSink, Sink


def find_sink_directory(given: str, roots: Sequence[Path]) -> Path | None:
    """Below the first root, or where an absolute path says, inside one; else None. Links are followed."""
    for root in roots:
        base = Path(os.path.realpath(root))
        path = Path(os.path.realpath(base / given))
        if path != base and path.is_relative_to(base):
            return path
    return None


def check_sink(sink: Sink, roots: Sequence[Path]) -> None:
    """Raises SpecError `path_outside_sink_roots`. Without roots here nothing is known: workers may have some."""
    if isinstance(sink, DeltaSink | ParquetSink) and roots and find_sink_directory(sink.path, roots) is None:
        raise SpecError.of("path_outside_sink_roots", outside(sink.path), pointer="/sink/path")


def outside(given: str) -> str:
    """What is wrong with a path that lies outside."""
    return f"'{given}' does not lie inside a directory that sinks may write to: those of EVENKEEL_DATA_SINK_ROOTS."
