"""How much one batch may become: a small body can spell a large table."""

from __future__ import annotations

from service.ingest.faults import invalid_rows

MAX_ROWS = 1_000_000
MAX_CELLS = 16_000_000
"""Rows times columns of the stream: what a body leaves out is NULL, and takes room all the same."""


def check_cells(rows: int, columns: int) -> None:
    """Refuses a batch of too many rows. Raises InvalidRowsError."""
    if rows > MAX_ROWS or rows * columns > MAX_CELLS:
        raise invalid_rows(
            "too_many_rows",
            f"A batch has at most {min(MAX_ROWS, MAX_CELLS // columns)} rows of {columns} columns: post several.",
        )
