"""Where the rows that clients post are kept: a directory of Parquet files a stream, which Spark reads as a stream.

    <streams>/input/<tenant>/<name>/<stream id>/<sequence>-<start of the body's sha256>.parquet
    <streams>/input/.hidden/<file id>.parquet        written, and not yet shown

A stream that is deleted and declared again has another id, hence a directory of its own: whatever is still under way
for the old one never meets the new one. Files appear whole, by a rename, and never change. One of a smaller sequence
may appear after one of a larger: Spark's file source goes by paths it has not seen, not by their order.
"""

from __future__ import annotations

from pathlib import Path

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$"
"""Names of streams: no dot and no underscore in front, which Spark passes over, and nothing with a meaning in
paths."""

_INPUT = "input"
_HIDDEN = ".hidden"
_SHOWN_OF_DIGEST = 12


def hidden_directory(streams_dir: Path) -> Path:
    """Files that nobody reads yet, of all streams: on the same file system as these, since they are renamed."""
    return streams_dir / _INPUT / _HIDDEN


def stream_directory(streams_dir: Path, tenant: str, name: str, stream_id: str) -> Path:
    """The directory of a stream's files; it is there from its declaration on, and may hold none."""
    return streams_dir / _INPUT / tenant / name / stream_id


def segment_name(sequence: int, sha256: str) -> str:
    """The name of a batch's file: plain enough for every file system and for Spark."""
    return f"{sequence:012d}-{sha256[:_SHOWN_OF_DIGEST]}.parquet"
