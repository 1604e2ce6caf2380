"""TPC-H: the generator's tables and the texts of its 22 queries.

DuckDB and the engine run the specification's texts (`tpch/specified`, with computed dates of intervals).
"""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal
from pathlib import Path

_TEXTS = Path(__file__).parent / "tpch"

QUERIES = [f"q{number:02}" for number in range(1, 23)]


def generate(directory: Path, scale: str) -> Path:
    """Writes the eight tables at this scale factor as Parquet files below `directory`, and returns it."""
    generator = Path(sys.executable).with_name("tpcgen-cli")
    command = [str(generator), "tpch", "parquet", "--scale-factor", scale, "--output-dir", str(directory)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return directory


def specified(query: str, scale: str = "0.1") -> str:
    """Returns the text of the specification. The share of query 11 is 0.0001 divided by the scale factor."""
    text = (_TEXTS / "specified" / f"{query}.sql").read_text()
    return text.replace("* 0.001", f"* {Decimal('0.0001') / Decimal(scale):f}") if query == "q11" else text
