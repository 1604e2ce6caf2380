"""Parses a table's declared schema: `uid BIGINT, tags ARRAY<STRING>, price DECIMAL(10,2)`."""

from __future__ import annotations

from sqlglot.tokenizer_core import Token, TokenType

from service.contract.problems import SpecError, did_you_mean, nearest_names
from service.sql.expressions.scalar import quoted
from service.sql.parser import Text, tokens_of_schema
from service.sql.types.data_types import (
    ATOMIC,
    MAX_PRECISION,
    MAX_TYPE_DEPTH,
    DataType,
    Field,
    Schema,
    TypeName,
    array,
    decimal,
    mapping,
    struct,
)

MAX_COLUMNS = 10_000

_NAMES = {
    **{name.value: name for name in TypeName if name in ATOMIC},
    "BYTE": TypeName.TINYINT,
    "SHORT": TypeName.SMALLINT,
    "INTEGER": TypeName.INT,
    "LONG": TypeName.BIGINT,
    "REAL": TypeName.FLOAT,
    "DEC": TypeName.DECIMAL,
    "NUMERIC": TypeName.DECIMAL,
    "TIMESTAMP_LTZ": TypeName.TIMESTAMP,
}
_NESTED = frozenset({"ARRAY", "MAP", "STRUCT"})


def parse_schema(text: str, pointer: str, *, is_atomic: bool = False) -> Schema:
    """Parses Spark's DDL; `NOT NULL` and `COMMENT '…'` are accepted and ignored. `is_atomic`: no type is nested.

    Raises SpecError `invalid_schema`.
    """
    source = Text(text, pointer)
    try:
        tokens = tokens_of_schema(source)
    except SpecError as error:
        issue = error.issues[0]
        raise SpecError([issue.model_copy(update={"code": "invalid_schema"})]) from None
    return _Reader(source, tokens, is_atomic=is_atomic).schema()


def parse_type(text: str, pointer: str, *, is_atomic: bool = False) -> DataType:
    """Parses a type, such as `BIGINT` or, unless `is_atomic`, `ARRAY<STRING>`. Raises SpecError `invalid_schema`."""
    source = Text(text, pointer)
    try:
        tokens = tokens_of_schema(source)
    except SpecError as error:
        raise SpecError([error.issues[0].model_copy(update={"code": "invalid_schema"})]) from None
    return _Reader(source, tokens, is_atomic=is_atomic).only_type()


def schema_text(schema: Schema) -> str:
    """Returns the canonical DDL of a schema, from which `parse_schema` returns the same schema."""
    return ", ".join(f"{_column_name(field.name)} {field.type}" for field in schema.fields)


def _column_name(name: str) -> str:
    return name if name.isascii() and name.isidentifier() else quoted(name)


class _Reader:
    def __init__(self, source: Text, tokens: list[Token], *, is_atomic: bool) -> None:
        self._is_atomic = is_atomic
        self._source = source
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def schema(self) -> Schema:
        if not self._tokens:
            raise self._error("The schema is empty. Declare at least one column.", None)
        fields: list[Field] = []
        seen: set[str] = set()
        while True:
            start = self._peek()
            field = self._field()
            if field.name.casefold() in seen:
                raise self._error(f"The column {field.name} is declared twice (case is ignored).", start)
            seen.add(field.name.casefold())
            fields.append(field)
            if len(fields) > MAX_COLUMNS:
                raise self._error(f"The schema has too many columns. Declare at most {MAX_COLUMNS}.", start)
            if self._peek() is None:
                return Schema(tuple(fields))
            self._expect(TokenType.COMMA, "a comma")

    def only_type(self) -> DataType:
        type_ = self._type()
        extra = self._peek()
        if extra is not None:
            raise self._error(f"'{extra.text}' is not expected after the type.", extra)
        return type_

    def _nested(self, spelled: str, token: Token) -> DataType:
        """Reads what follows ARRAY, MAP or STRUCT."""
        self._depth += 1
        if self._depth > MAX_TYPE_DEPTH:
            raise self._error(f"The type has more than {MAX_TYPE_DEPTH} levels. Declare the column as STRING.", token)
        self._expect(TokenType.LT, "<")
        found = self._parts(spelled)
        self._expect(TokenType.GT, ">")
        self._depth -= 1
        return found

    def _parts(self, spelled: str) -> DataType:
        if spelled == "ARRAY":
            return array(self._type())
        if spelled == "MAP":
            start, key = self._peek(), self._type()
            if not key.is_groupable:
                raise self._error(f"{key} cannot be the key of a map.", start)
            self._expect(TokenType.COMMA, "a comma")
            return mapping(key, self._type())
        fields: list[Field] = []
        while not fields or self._skip(TokenType.COMMA):
            start = self._peek()
            fields.append(self._field())
            if len({field.name.casefold() for field in fields}) < len(fields):
                raise self._error(f"The field {fields[-1].name} is declared twice (case is ignored).", start)
            if len(fields) > MAX_COLUMNS:
                raise self._error(f"The structure has too many fields. Declare at most {MAX_COLUMNS}.", start)
        return struct(fields)

    def _field(self) -> Field:
        token = self._take("a column name")
        quoted = token.token_type is TokenType.IDENTIFIER
        if (
            token.token_type is TokenType.STRING
            or not token.text
            or not (quoted or token.text.replace("_", "a").isalnum())
        ):
            raise self._error(f"'{token.text}' is not a column name. Enclose it in backquotes.", token)
        self._skip(TokenType.COLON)
        type_ = self._type()
        if self._skip(TokenType.NOT):
            self._expect(TokenType.NULL, "NULL")
        if self._peek_text() == "COMMENT":
            self._next += 1
            self._expect(TokenType.STRING, "a string")
        return Field(token.text, type_)

    def _type(self) -> DataType:
        token = self._take("a type")
        spelled = token.text.upper()
        name = _NAMES.get(spelled) if token.token_type not in {TokenType.STRING, TokenType.IDENTIFIER} else None
        if name is None and spelled in _NESTED:
            if self._is_atomic:
                raise self._error(f"{spelled} is not an atomic type. Declare the column as STRING.", token)
            return self._nested(spelled, token)
        if name is None:
            suggestions = nearest_names(spelled, sorted((*_NAMES, *_NESTED)))
            raise self._error(f"{token.text} is not a type.{did_you_mean(suggestions)}", token, suggestions=suggestions)
        parameters: list[int] = []
        if self._skip(TokenType.L_PAREN):
            parameters.append(self._number())
            if self._skip(TokenType.COMMA):
                parameters.append(self._number())
            self._expect(TokenType.R_PAREN, ")")
        if name is not TypeName.DECIMAL:
            if parameters:
                raise self._error(f"{spelled} takes no parameters.", token)
            return DataType(name)
        precision, scale = [*parameters, *(10, 0)[len(parameters) :]]
        if not 1 <= precision <= MAX_PRECISION or scale > precision:
            raise self._error(
                f"DECIMAL({precision},{scale}) is not a type. The precision is from 1 to {MAX_PRECISION}, the scale at "
                "most the precision.",
                token,
            )
        return decimal(precision, scale)

    def _number(self) -> int:
        token = self._expect(TokenType.NUMBER, "a number")
        if not (token.text.isascii() and token.text.isdigit()) or len(token.text) > 3:
            raise self._error(f"'{token.text}' is not a precision or scale.", token)
        return int(token.text)

    def _peek(self) -> Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _peek_text(self) -> str:
        token = self._peek()
        return token.text.upper() if token is not None else ""

    def _skip(self, type_: TokenType) -> bool:
        token = self._peek()
        matches = token is not None and token.token_type is type_
        self._next += matches
        return matches

    def _take(self, expected: str) -> Token:
        token = self._peek()
        if token is None:
            raise self._error(f"The schema ends, but {expected} is expected.", None)
        self._next += 1
        return token

    def _expect(self, type_: TokenType, expected: str) -> Token:
        token = self._take(expected)
        if token.token_type is not type_:
            raise self._error(f"Expected {expected}, but found '{token.text}'.", token)
        return token

    def _error(self, detail: str, token: Token | None, suggestions: tuple[str, ...] = ()) -> SpecError:
        at = token.start if token is not None else None
        return self._source.error("invalid_schema", detail, at=at, suggestions=suggestions)
