"""Types claimed are Spark's types, and what is refused Spark refuses too."""

from __future__ import annotations

import re
from itertools import product

import pytest

from service.contract.problems import SpecError
from service.sql.expressions.compile_expression import TableScope, compile_expression
from tests.service.sql.conftest import COLUMNS, TypesInSpark

pytestmark = pytest.mark.spark

TEMPLATES = [
    "-{}",
    "~{}",
    "NOT {}",
    "{} AND true",
    "{} OR s",
    "{} IS NULL",
    "{} IS NOT TRUE",
    "{} LIKE 'a%'",
    "{} RLIKE 'a'",
    "{} IN (1, 2)",
    "{} IN ('a', NULL)",
    "{} IN (DATE'2020-01-01')",
    "{} BETWEEN 1 AND 2.5",
    "{} + INTERVAL '1' DAY",
    "{} - INTERVAL '2' MONTH",
    "{} + INTERVAL '1' HOUR",
    "{} + INTERVAL '1.5' SECOND",
    "{} + INTERVAL '1' WEEK",
    "{} + 1",
    "{} * 2.50",
    "{} / 3",
    "{} % 7",
    "1 - {}",
    "{} + NULL",
    "{} - 10L",
    "{} * -5",
    "{} = NULL",
    "{} || 'x'",
    "CASE WHEN bo THEN {} END",
    "CASE {} WHEN 1 THEN 'a' ELSE 'b' END",
    "CASE WHEN bo THEN {} ELSE 1.5 END",
    "CASE WHEN {} THEN 1 ELSE 2 END",
    "EXTRACT(YEAR FROM {})",
    "EXTRACT(SECOND FROM {})",
]
LITERALS = [
    "1",
    "2147483647",
    "2147483648",
    "-2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "99999999999999999999999999999999999999",
    "1.5",
    ".5",
    "5.",
    "0.00",
    "0.00001",
    "100.0",
    "007",
    "00.10",
    "1e3",
    "1.5E-3",
    "10L",
    "10S",
    "10Y",
    "-128Y",
    "-32768S",
    "-9223372036854775808L",
    "1.5F",
    "1.5D",
    "1.50BD",
    "1e3BD",
    "12BD",
    "'a'",
    "X'1A'",
    "NULL",
    "TRUE",
    "DATE'2020-01-01'",
    "TIMESTAMP'2020-01-01 00:00:00'",
    "TIMESTAMP_NTZ'2020-01-01 00:00:00'",
    "-NULL",
    "1 + 1.5",
    "1.5 * 2",
    "10 / 4",
    "7 DIV 2",
    "2 * dc",
    "dc * 100",
    "dc / 3",
    "dc / 3L",
    "dc / CAST(3 AS BIGINT)",
    "dc / 3::BIGINT",
    "dc + 0",
    "dw * dw",
    "dw / dc",
    "dw + dc",
    "dw % dc",
    "COALESCE(NULL, 1)",
    "COALESCE(dc, 0)",
    "COALESCE(dc, l, i)",
    "COALESCE(s, i, d)",
    "COALESCE(i, s, dt)",
    "IF(bo, i, 'a')",
    "NULLIF(i, l)",
    "NULLIF(1, 2L)",
]


@pytest.mark.parametrize(
    "operator", ["+", "-", "*", "/", "%", "DIV", "||", "&", "|", "^", "<<", ">>>", "=", "<", "<=>"]
)
def test_every_pair_of_types_under(operator: str, every_type: TableScope, types_in_spark: TypesInSpark) -> None:
    check([f"{a} {operator} {b}" for a, b in product(COLUMNS, COLUMNS)], every_type, types_in_spark)


@pytest.mark.parametrize("template", TEMPLATES)
def test_every_type_in(template: str, every_type: TableScope, types_in_spark: TypesInSpark) -> None:
    check([template.format(name) for name in COLUMNS], every_type, types_in_spark)


def test_literals_and_what_is_made_of_them(every_type: TableScope, types_in_spark: TypesInSpark) -> None:
    check(LITERALS, every_type, types_in_spark)


def test_every_cast(every_type: TableScope, types_in_spark: TypesInSpark) -> None:
    check(
        [f"CAST({name} AS {type_})" for name, type_ in product(COLUMNS, COLUMNS.values())], every_type, types_in_spark
    )
    check([f"TRY_CAST(s AS {type_})" for type_ in COLUMNS.values()], every_type, types_in_spark)


def check(texts: list[str], scope: TableScope, types_in_spark: TypesInSpark) -> None:
    """Every claim about `texts` holds in Spark: the type, or the refusal."""
    claimed: dict[str, tuple[str, str]] = {}
    refused: dict[str, str] = {}
    for text in texts:
        try:
            scalar = compile_expression(text, scope, "/x")
        except SpecError as error:
            if error.code != "type_mismatch":
                raise
            refused[text] = _qualified(text)
            continue
        if scalar.type is not None:
            claimed[text] = (scalar.sql, str(scalar.type))
    found = types_in_spark([sql for sql, _ in claimed.values()], True) if claimed else []
    wrong = {
        text: (sql, type_, in_spark)
        for (text, (sql, type_)), in_spark in zip(claimed.items(), found, strict=True)
        if in_spark != type_
    }
    accepted = dict(zip(refused, types_in_spark(list(refused.values()), False), strict=True))
    needlessly = {text: type_ for text, type_ in accepted.items() if type_ is not None}
    assert (wrong, needlessly) == ({}, {}), "\n".join(map(str, [*wrong.items(), *needlessly.items()]))


def _qualified(text: str) -> str:
    """`text` with its bare columns written as the frame has them; what was refused has no canonical form."""
    return re.sub(rf"(?<![\w'.])({'|'.join(COLUMNS)})(?![\w'])", r"`t.\1`", text)
