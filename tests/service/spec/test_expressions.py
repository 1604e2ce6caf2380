"""From text to Scalar."""

from __future__ import annotations

import pytest

from service.spec.errors import SpecError
from service.spec.expressions import compile_expression
from service.spec.scope import TableScope
from service.spec.types import BIGINT, BOOLEAN, DATE, STRING, DataType, Field, Schema, TypeName

SCOPE = TableScope(
    {
        "o": Schema(
            (
                Field("uid", BIGINT),
                Field("name", STRING),
                Field("ok", BOOLEAN),
                Field("day", DATE),
                Field("tags", DataType(TypeName.OTHER, text="ARRAY<STRING>")),
            )
        )
    }
)


def test_a_scalar_has_canonical_text_columns_and_type() -> None:
    scalar = compile_expression("Upper( NAME ) || o.uid||name", SCOPE, "/x")
    assert scalar.sql == "upper(`o.name`) || `o.uid` || `o.name`"
    assert scalar.columns == ("o.name", "o.uid")
    assert scalar.type == STRING
    assert scalar.column is None
    assert compile_expression("(uid)", SCOPE, "/x").column == "o.uid"


@pytest.mark.parametrize(
    "text",
    [
        "ok + 1",
        "day * 2",
        "name + name",
        "uid = ok",
        "day > 5",
        "ok AND uid",
        "NOT uid",
        "-ok",
        "year(uid)",
        "sqrt(ok)",
        "CASE WHEN uid THEN 1 END",
        "CASE WHEN ok THEN 1 ELSE day END",
        "if(uid, 1, 2)",
        "coalesce(uid, day)",
        "greatest(uid, name)",
        "CAST(day AS INT)",
        "uid BETWEEN DATE'2020-01-01' AND 5",
        "uid IN (1, TRUE)",
        "uid IS TRUE",
        "tags = tags",
        "upper(tags)",
        "tags || 'x'",
        "lpad(name, 1000000000, 'x')",
        "lpad(name, uid, 'x')",
        "EXTRACT(YEAR FROM uid)",
        "uid + INTERVAL '1' DAY",
    ],
)
def test_type_mismatches_are_told(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        compile_expression(text, SCOPE, "/query/where")
    assert caught.value.code == "type_mismatch"
    assert caught.value.issues[0].line == 1


def test_a_nested_column_can_be_passed_on_and_tested_for_null() -> None:
    assert str(compile_expression("tags", SCOPE, "/x").type) == "ARRAY<STRING>"
    assert compile_expression("tags IS NULL", SCOPE, "/x").type == BOOLEAN
    assert compile_expression("isnotnull(tags)", SCOPE, "/x").type == BOOLEAN


def test_no_environment_reaches_the_text() -> None:
    assert "${" not in compile_expression("name = '${env:HOME}'", SCOPE, "/x").sql
