"""Runs the SQL cases of `tests/sql/cases/*.test`, text files in the manner of sqllogictest.

Empty lines separate the blocks of a file. Lines that begin with `#` say what a block is about. Blocks are:

    tables NAME                         the tables of tests/sql/tables/NAME.test, for the blocks below

    table NAME                          a table: its columns as a job declares them,
    id BIGINT, name STRING
    ----                                and its rows, as tests/sql/values.py describes
    1 | 'one'

    set NAME = VALUE                    alone: a setting, `mode`, `output_mode`, `sink` or `parameters` of the jobs
                                        below, in YAML; above a case, of this one; above a table, what the job says of
                                        it. `fires`: the rules that rewrite the query under the settings that are
                                        forced; `in_spark`: the SQL that plain Spark runs instead, as it fails on this

    query [ordered]                     the SQL has these column types and rows, in any order unless it is `ordered`
    SELECT name FROM t                  (more than 20 rows: their number and a hash), by Spark itself and by each plan
    ----                                that the engine makes of it, those that the settings force included
    string
    'one'

    fails CONDITION                     the SQL is accepted and ends with this error, by Spark and by each plan

    refused CODE [LINE:COLUMN] [at POINTER], …    these are all the issues of the refusal; POINTER is `/sql` unless
    SELECT nme FROM t                   it says otherwise
    ----
    Did you mean name?                  texts that the details contain, where they name the construct or the way out

    accepted                            the job is accepted

    bound                               the SQL is bound to this query (see tests/sql/bound_text.py)

    rendered                            the SQL is an expression, and this its canonical text

The job of a case is a batch job unless `mode` says otherwise. Jobs of streams are also checked against the planner of
streams: it has a plan for those that are accepted, and none for those that are refused for their SQL.

`pytest tests/sql --write -m ''` (without `-n`) writes into the files what cases give: rows by Spark itself. Give a new
`refused` no code, and let it be written; then read the difference.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.sql.case_files import IN_SPARK, CaseFileError, all_cases, cases_of, rewritten
from tests.sql.checks import outcome, streaming_faults
from tests.sql.values import MOST_ROWS, columns_of, rows_written, values_of

if TYPE_CHECKING:
    from tests.sql.case_files import Case
    from tests.sql.conftest import Recorder
    from tests.sql.spark_checks import SqlInSpark

CASES = all_cases()
RUN = [case for case in CASES if case.kind in IN_SPARK]
COMPILED = [case for case in CASES if case.kind not in IN_SPARK]


@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_the_front_end_gives_what_the_file_says(recorder: Recorder, case: Case) -> None:
    recorder.check(case, outcome(case))
    assert list(streaming_faults(case)) == []


@pytest.mark.sampled(2)
@pytest.mark.spark
@pytest.mark.parametrize("case", RUN, ids=str)
def test_every_plan_gives_what_the_file_says(recorder: Recorder, sql_in_spark: SqlInSpark, case: Case) -> None:
    if not recorder.writes:
        for name, got in sql_in_spark.by_engine(case):
            recorder.check(case, got, name)


# The version of Spark, which decides the rows, is pinned.
@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("case", RUN, ids=str)
def test_spark_gives_what_the_file_says(recorder: Recorder, sql_in_spark: SqlInSpark, case: Case) -> None:
    recorder.check(case, sql_in_spark.by_spark(case))


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        ("quary\nSELECT 1", 1, "'quary' begins no block"),
        ("query\nSELECT 1", 1, "`tables` or `table` has to come before it"),
        ("# rows\n\nquery\n----\n1", 3, "the SQL is missing"),
        ("tables nowhere", 1, "there is no tests/sql/tables/nowhere.test"),
        ("table t\nid MONEY\n----\n1", 2, "MONEY"),
        ("table t\nid INT\n----\n1\nx", 5, "x is no INT, which id is"),
        ("table t\nid INT\n----\n1 | 2", 4, "2 values, and the table 1 columns"),
        ("table t\nid INT\n\nquery orderd\nSELECT 1", 4, "'orderd' says nothing after `query`"),
        ("table t\nid INT\n\nset fires = [x]\naccepted\nSELECT 1", 5, "which makes no plan"),
        ("set mode batch", 1, "write `set name = value`"),
        ("set mode = [", 1, "the value is not YAML"),
    ],
)
def test_a_file_that_cannot_be_read_says_where(tmp_path: Path, text: str, line: int, why: str) -> None:
    path = tmp_path / "x.test"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CaseFileError) as caught:
        cases_of(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert why in str(caught.value)


def test_rows_are_written_as_they_are_read() -> None:
    schema = columns_of(
        "a INT, b STRING, c STRING, d DOUBLE, e DECIMAL(10,2), f BOOLEAN, g DATE, h TIMESTAMP, i FLOAT, j ARRAY<INT>"
    )
    row = "-1 | 'it''s | a' | '' | NaN | 1.50 | true | 2013-01-02 | 2013-01-02 03:04:05+00:00 | 0.5 | NULL"
    assert rows_written([values_of(row, schema)], ordered=True) == (row,)


def test_many_rows_are_a_number_and_a_hash_of_them() -> None:
    rows = [(number,) for number in range(MOST_ROWS + 1)]
    unordered = rows_written(rows, ordered=False)
    assert unordered == rows_written(rows[::-1], ordered=False)
    assert unordered[0].startswith("21 rows hashing to ")
    assert len({unordered, rows_written(rows, ordered=True), rows_written([*rows[1:], (99,)], ordered=False)}) == 3


def test_what_cases_give_is_written_into_their_file(tmp_path: Path) -> None:
    path = tmp_path / "x.test"
    text = "table t\nid INT\n\n# one\nquery\nSELECT id\nFROM t\n----\nint\n1\n\nrefused\nSELECT\n\naccepted\nSELECT 1\n"
    path.write_text(text, encoding="utf-8")
    query, refused, _ = cases_of(path)
    assert (query.line, query.about, query.expected, refused.line) == (5, "one", ("int", "1"), 12)
    assert rewritten(path, {5: ("", ("int", "1", "2")), 12: ("sql_syntax 1:1", ())}) == (
        text.replace("int\n1\n", "int\n1\n2\n").replace("refused", "refused sql_syntax 1:1")
    )
