"""From text to Scalar."""

from __future__ import annotations

from service.sql.expressions.compile_expression import TableScope, compile_expression
from service.sql.types.data_types import BIGINT, BOOLEAN, DATE, STRING, DataType, Field, Schema, TypeName

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


def test_a_nested_column_can_be_passed_on_and_tested_for_null() -> None:
    assert str(compile_expression("tags", SCOPE, "/x").type) == "ARRAY<STRING>"
    assert compile_expression("tags IS NULL", SCOPE, "/x").type == BOOLEAN
    assert compile_expression("isnotnull(tags)", SCOPE, "/x").type == BOOLEAN


def test_no_environment_reaches_the_text() -> None:
    assert "${" not in compile_expression("name = '${env:HOME}'", SCOPE, "/x").sql
