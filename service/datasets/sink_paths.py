"""Where sinks write files: below the directories that are set up for that."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from service.spec.errors import Issue
from service.spec.sinks import DeltaSink, ParquetSink, Sink


def find_sink_directory(given: str, roots: Sequence[Path]) -> Path | None:
    """Below the first root, or where an absolute path says, inside one; else None. Links are followed."""
    for root in roots:
        base = Path(os.path.realpath(root))
        path = Path(os.path.realpath(base / given))
        if path != base and path.is_relative_to(base):
            return path
    return None


def issues_of_sink(sink: Sink, roots: Sequence[Path]) -> tuple[Issue, ...]:
    """`path_outside_sink_roots`, where that is so. Without roots here nothing is known: workers may have some.

    Who has both, API and workers, is taken to have the same directories in them, and the same links.
    """
    if not isinstance(sink, DeltaSink | ParquetSink) or not roots or find_sink_directory(sink.path, roots) is not None:
        return ()
    return (Issue(code="path_outside_sink_roots", detail=outside(sink.path), pointer="/sink/path"),)


def outside(given: str) -> str:
    """What is wrong with a path that lies outside."""
    return f"'{given}' does not lie inside a directory that sinks may write to: those of EVENKEEL_DATA_SINK_ROOTS."
