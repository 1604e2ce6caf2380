"""What a spreadsheet would run is marked as text; all else stays as it is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from service.results.files import name_without_formula, without_formulas


@pytest.mark.withstands(
    "formulas in results",
    kind="attack",
    how="texts that a spreadsheet would evaluate, in rows and column names",
    times=13,
    guaranteed="the spreadsheet shows them as text",
)
@pytest.mark.parametrize(
    "text",
    ["=1+1", "=cmd|' /C calc'!A0", "+A1", "-A1+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "-", "+", "=", "-1-1", "+1\n"],
)
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_a_formula_is_marked(text: str, kind: pa.DataType) -> None:
    assert without_formulas(pa.array([text, "plain", None], kind)).to_pylist() == ["'" + text, "plain", None]
    assert name_without_formula(text) == "'" + text


@pytest.mark.parametrize("text", ["", "a=b", "-5", "+49", "-1.5", "-1,000.50", "1e5", "-1e-5", "'=1", "ü", "a\n=1"])
def test_anything_else_stays(text: str) -> None:
    assert without_formulas(pa.array([text])).to_pylist() == [text]
    assert name_without_formula(text) == text


def test_a_column_of_gaps() -> None:
    assert without_formulas(pa.array([None, None], pa.string())).to_pylist() == [None, None]
    assert without_formulas(pa.array([], pa.string())).to_pylist() == []
