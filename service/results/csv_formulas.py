"""Texts that a spreadsheet would take for formulas, and run, are marked as texts by an apostrophe.

Whoever fills a table may not be whoever opens its CSV: see OWASP, "CSV Injection". Numbers with a sign are no formulas,
and stay as they are.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

_BEGINS_AS_FORMULA = r"\A[=+\-@\t\r\n]"
_NUMBER = r"\A[+-]?[0-9]+([.,][0-9]+)*([eE][+-]?[0-9]+)?\z"


def without_formulas(column: pa.Array) -> pa.Array:
    """A column of text, with an apostrophe before what begins as a formula."""
    begins = pc.match_substring_regex(column, _BEGINS_AS_FORMULA)
    if not pc.any(begins).as_py():
        return column
    is_formula = pc.and_not(begins, pc.match_substring_regex(column, _NUMBER))
    marked = pc.binary_join_element_wise(pa.scalar("'", column.type), column, pa.scalar("", column.type))
    return pc.if_else(is_formula, marked, column)


def name_without_formula(name: str) -> str:
    """The same for the name of a column."""
    plain: str = without_formulas(pa.array([name], pa.string()))[0].as_py()
    return plain
