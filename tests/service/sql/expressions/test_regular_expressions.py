"""Regular expressions that explode are refused, and those that are taken leave Spark alive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from service.sql.expressions.regular_expressions import MAX_LENGTH, PatternError, check_regular_expression

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXPLODING = (
    r"(a+)+$",
    r"(a*)*",
    r"(a|a)*b",
    r"(a|aa)+$",
    r"^(a|b)*$",
    r"(.*a){20}",
    r"(a?){40}a{40}",
    "a?" * 40 + "a" * 40,
    ".*" * 13,
    r"((a{1,9}){1,9}){1,9}",
    r"(?:x+x+)+y",
    r"(?i)(?:x+)+y",
    r"(?i:(x+))*y",
    r"(?<n>a+)+",
    r"(?>a+)+",
    r"((?=a+)b?)*",
    r"(a|b)*?c",
    r"(a|b){2,}",
    r"(a|b){0,999999999}",
    r"(a*){999999999}",
    r"(\w+\s?)*$",
    r"(a)\1*(\1\1)*(\1{2})*",
    r"(\Qa\E+)+",
    r"([+*]+)+",
    r"(\[+)+",
    r"(\p{L}+)+",
    r"(\x{61}+)+",
    r"(\R)*",
    r"([\w.]*)*/?$",
    r"(?x)( a + ) +",
    r"(?ix:a # ) \n )",
    r"[[a]&&[b]]",
    r"[a&&b]",
    r"[]a]",
    r"(?#x)",
    r"(a",
    r"a)",
    r"[a",
    r"a{5,3}",
    "(" * 17 + "a" + ")" * 17,
    "a" * (MAX_LENGTH + 1),
    # To Java, what follows \\c belongs to it.
    r"\c[?(a+)+$]?",
    r"\c[?(a|b)+]?",
    r"[\c\](a+)+$]",
    r"(a+|\c()+$\c)?",
    r"\x[(a+)+]",
    r"\u00[(a+)+]",
    r"\p[(a+)+]",
    r"\E",
    r"\y",
    r"(?:(?:){999999999}){999999999}",
    r"(?:){999999999}{999999999}{999999999}",
    r"(?:(?:\b){9999}){9999}x",
    r"(?:(?:a?){200}){200}",
    r"(?:(?:(?=a)){100}+){200}+",
    r"(?:^{999}$){999}",
    r"(?:\Q\E{999}){999}",
    # To Java, what an empty quotation parts stands together.
    r"(a|b)\Q\E*c",
    r"(a|aa)\Q\E*\1c",
    r"(\Q\E?x)(a|b) *c",
    r"(a|b)\Q",
    # Java reads counts of more digits, and no others than ASCII's.
    r"(a|b){0000000000,}c",
    r"(a?){2000000000}",
    "(?:a|b){\u0663}",
    r"a{",
    r"(a|b[^](])*[^])]",
    # Characters of one or two places.
    r"^(..)*$",
    r"(.)*",
    r"\S{1,99999}",
    r"(?:.a)*",
    r"(?:[^,],)*",
    r"(?:\p{L}a){2,}",
    r"([a\W])+",
    r"(?:[a\x{1f600}])*",
    "(?:[a\U0001f600])*",
    r"(?U)(\w)*",
    r"(?:a.{1001})",
)

REPEATED = (
    r"^(ab)*$",
    r"^([ab][ab])*$",
    r"^(..)*+$",
    r"^.{2,}$",
    r"^((a)(b))*$",
    r"^(\Qab\E)*$",
    r"^((?=a)ab)*$",
    r"^((?<!x)ab)*$",
    r"^(a{1}(b{1}){1})*$",
    r"^(ab){0,999999}$",
    r"^(a|b)*+$",
    r"^(?:\p{L}++)*+$",
    r"^[ab]*$",
    r"^(?i)(ab)*?$",
)
"""Of a text of `ab` over and over, each matches all."""

SOUND = (
    r"",
    r"^\d{4}-\d{2}-\d{2}$",
    r"^([0-9]{1,3}\.){3}[0-9]{1,3}$",
    r"^[\w.+-]+@[\w-]+\.[\w.-]+$",
    r"https?://([^/]+)(/.*)?",
    r"(?i)error|warning|fatal",
    r"(?:[^,]*,){3}([^,]*)",
    *REPEATED,
    r"\(+\)+\[+\]+",
    r"[(+*|)]+",
    r"^\+?1?\s*\(?\d{3}\)?[-. ]?\d{3}[-. ]?\d{4}$",
    r"(foo|bar){2}",
    r"^.{0,1000}",
    r"^(?:[^,],){0,1000}",
    r"^\S+",
    r"^[^b]*+",
    r"^.*?,",
    "^\U0001f600*",
)


@pytest.mark.withstands(
    "regular expressions with exponential backtracking",
    kind="attack",
    how="`(a+)+`, `(a|b)*` and others, hidden behind flags, names, escapes, quotes and counts",
    times=77,
    guaranteed="422 `unsupported_construct`, before anything runs",
)
@pytest.mark.parametrize("pattern", EXPLODING)
def test_what_could_explode_is_refused(pattern: str) -> None:
    with pytest.raises(PatternError) as caught:
        check_regular_expression(pattern)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("pattern", SOUND)
def test_what_people_write_is_taken(pattern: str) -> None:
    check_regular_expression(pattern)


@pytest.mark.spark
@pytest.mark.withstands(
    "regular expressions that exhaust the stack",
    kind="attack",
    how="every accepted kind of repetition, over texts of 300,000 characters of one and of two code units, in Spark",
    times=24,
    guaranteed="the driver survives",
)
def test_what_is_taken_leaves_spark_alive(spark: SparkSession) -> None:
    """Such a text and `(a|b)*`, which is refused, end the JVM of this test."""
    # Two rows, so that Spark does not compute it as a constant.
    texts = spark.range(2).selectExpr(
        "repeat('ab', 150000 + CAST(id AS INT)) AS text",
        # Characters of one place and of two by turns.
        "repeat('x\U0001f600a', 100000 + CAST(id AS INT)) AS uneven",
    )
    anchored = [pattern for pattern in SOUND if pattern.startswith("^")]
    assert len(anchored) == 24
    written = [pattern.replace("\\", "\\\\") for pattern in anchored]
    for row in texts.selectExpr(*(f"text RLIKE '{pattern}'" for pattern in written)).collect():
        assert [found for found, pattern in zip(row, anchored, strict=True) if pattern in REPEATED] == [True] * len(
            REPEATED
        )
    uneven = texts.selectExpr(*(f"uneven RLIKE '{pattern}'" for pattern in written)).collect()
    assert [row[anchored.index(r"^\S+")] for row in uneven] == [True, True]
