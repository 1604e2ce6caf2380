"""TPC-DS: the generator's tables, and the texts of its 99 queries (`tpcds/specified`) with all edits.

The texts are those of DuckDB's extension `tpcds` 1.5.5 (`tpcds_queries()`, MIT license), with other line breaks. They
are the specification's templates with fixed parameters. DuckDB's edits of the templates are: `LIMIT 100` for the row
limit; `NULLS FIRST` in some ORDER BY; dates that the templates compute are written out; `concat` for `||`; other names
for aliases that are keywords, such as `returns_`, and names for derived tables. DuckDB and the engine run the same
text. `EDITS` are the edits of this project.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_TEXTS = Path(__file__).parent / "tpcds" / "specified"

QUERIES = [f"q{number:02}" for number in range(1, 100)]

NULL_ORDER = "SET default_null_order = 'nulls_first_on_asc_last_on_desc'"
"""The setting of DuckDB with which it sorts NULLs as Spark does where a query does not say."""

_CLASS_REVENUE = "sum(sum(ws_ext_sales_price)) OVER (PARTITION BY i_class)"

EDITS: dict[str, tuple[tuple[str, str], ...]] = {
    "q12": (
        (
            "/sum(sum(ws_ext_sales_price)) OVER (PARTITION BY i_class)",
            "/nullif(sum(sum(ws_ext_sales_price)) OVER (PARTITION BY i_class), 0)",
        ),
    ),
}
"""Replacements by query. Query 12 divides by a sum that is 0 at small scale factors: an error in Spark, NULL in
DuckDB.
"""


def generate(directory: Path, scale: str) -> Path:
    """Writes the 24 tables at this scale factor as Parquet files below `directory`, and returns it."""
    generator = Path(sys.executable).with_name("tpcgen-cli")
    command = [str(generator), "tpcds", "parquet", "--scale-factor", scale, "--output-dir", str(directory)]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return directory


def specified(query: str) -> str:
    """Returns the text of a query, with its edits."""
    text = (_TEXTS / f"{query}.sql").read_text()
    for old, new in EDITS.get(query, ()):
        if old not in text:
            raise ValueError(f"{query} does not contain {old}")
        text = text.replace(old, new)
    return text
