"""The limits of the columns that a file declares in its header or footer."""

from __future__ import annotations

from service.sql.ddl import MAX_COLUMNS

MAX_NAME = 4096
"""In characters."""


class ColumnLimitError(Exception):
    """A column cannot be read. The message continues a sentence that begins with the file's name."""


def is_valid_name(name: str) -> bool:
    """Whether Spark, the store of jobs and UTF-8 can have this name of a column."""
    # JSON may have surrogates without a partner, which UTF-8 cannot encode.
    return len(name) <= MAX_NAME and "\0" not in name and not any("\ud800" <= one <= "\udfff" for one in name)


def check_name(name: str) -> str:
    """Returns the name of a column, which may be nested. Raises ColumnLimitError."""
    if not is_valid_name(name):
        raise ColumnLimitError(
            f"has a column whose name has the character U+0000, is not UTF-8, or has more than {MAX_NAME} characters. "
            "Rename it"
        )
    return name


def too_many_columns() -> ColumnLimitError:
    """Returns the error for a file with more than MAX_COLUMNS columns, including the nested ones."""
    return ColumnLimitError(f"has more than {MAX_COLUMNS} columns. Write the table with fewer columns")
