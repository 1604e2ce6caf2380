"""TPC-H: the generator's tables, and the texts of its 22 queries.

DuckDB runs the specification's texts (`tpch/specified`; the dates of their intervals worked out). The engine runs the
same text, or, where it has a subquery that is refused, the one of `tpch/joined`, which joins instead.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_TEXTS = Path(__file__).parent / "tpch"

QUERIES = [f"q{number:02}" for number in range(1, 23)]


def generate(directory: Path, scale: str) -> Path:
    """Writes the eight tables at that scale factor, a Parquet file each, below `directory`, which it gives back."""
    generator = Path(sys.executable).with_name("tpchgen-cli")
    command = [str(generator), "parquet", "--scale-factor", scale, "--output-dir", str(directory)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return directory


def specified(query: str) -> str:
    """The specification's text."""
    return (_TEXTS / "specified" / f"{query}.sql").read_text()


def accepted(query: str) -> str:
    """The text that the engine runs."""
    joined = _TEXTS / "joined" / f"{query}.sql"
    return joined.read_text() if joined.is_file() else specified(query)
