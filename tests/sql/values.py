"""Values as the files of SQL cases write them: `NULL`, `1`, `1.50`, `NaN`, `true`, `'it''s'`, `2013-01-02`.

The nested values of a table are JSON in quotes; those of a result are written as `[1, 2]`, `{'a': 1}` and `(1, 'x')`.

A row is its values with ` | ` between them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from service.contract.problems import SpecError
from service.sql.ddl import parse_schema
from service.sql.types.data_types import DataType, Field, Schema, TypeName, array, mapping, struct

MOST_ROWS = 20
"""More rows than these are written as their number and a hash."""

_SEPARATOR = " | "
_CELL = re.compile(r"\s*('(?:[^']|'')*'|[^|']+?)\s*(?:\||$)")
_NESTED = re.compile(r"(ARRAY|MAP|STRUCT)<(.*)>", re.IGNORECASE)

_READ: Mapping[TypeName, Callable[[str], Any]] = {
    **dict.fromkeys((TypeName.TINYINT, TypeName.SMALLINT, TypeName.INT, TypeName.BIGINT), int),
    **dict.fromkeys((TypeName.FLOAT, TypeName.DOUBLE), float),
    TypeName.DECIMAL: Decimal,
    TypeName.DATE: date.fromisoformat,
    TypeName.TIMESTAMP: lambda text: datetime.fromisoformat(text).replace(tzinfo=UTC),
    TypeName.BOOLEAN: lambda text: {"true": True, "false": False}[text],
    TypeName.STRING: lambda text: _unquoted(text),
}


def columns_of(text: str) -> Schema:
    """The columns that `text` declares, as a job's `schema` does; arrays, maps and structures too.

    Raises ValueError.
    """
    return Schema(tuple(_field(part) for part in _split(text)))


def _field(text: str) -> Field:
    name, _, type_ = text.strip().partition(" ")
    return Field(name.strip("`"), _type(type_))


def _type(text: str) -> DataType:
    found = _NESTED.fullmatch(text.strip())
    if found is None:
        try:
            return parse_schema(f"x {text}", "/").fields[0].type
        except SpecError as error:
            raise ValueError(str(error)) from None
    kind, parts = found[1].upper(), _split(found[2])
    if kind == "ARRAY":
        return array(_type(found[2]))
    if kind == "MAP":
        return mapping(_type(parts[0]), _type(parts[1]))
    return struct(tuple(_field(part.replace(":", " ", 1)) for part in parts))


def _split(text: str) -> list[str]:
    """The parts of `text` between its commas, those inside brackets left alone."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "<(") - (character in ">)")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def values_of(row: str, schema: Schema) -> tuple[Any, ...]:
    """The values of a row of a table. Raises ValueError."""
    cells = _CELL.findall(row)
    if len(cells) != len(schema.fields):
        raise ValueError(f"the row has {len(cells)} values, and the table {len(schema.fields)} columns")
    return tuple(_value(cell, column) for cell, column in zip(cells, schema.fields, strict=True))


def _value(cell: str, column: Field) -> Any:
    if cell == "NULL":
        return None
    try:
        if column.type.is_nested:
            return _nested_value(json.loads(_unquoted(cell)), column.type)
        return _READ[column.type.name](cell)
    except (KeyError, ValueError, ArithmeticError):
        raise ValueError(f"{cell} is no {column.type}, which {column.name} is") from None


def _nested_value(value: Any, type_: DataType) -> Any:
    """A value of JSON as Python holds it in a row of Spark's."""
    if value is None:
        return None
    if type_.name is TypeName.ARRAY:
        return [_nested_value(one, type_.parts[0]) for one in value]
    if type_.name is TypeName.MAP:
        return {_nested_value(key, type_.parts[0]): _nested_value(one, type_.parts[1]) for key, one in value.items()}
    if type_.name is TypeName.STRUCT:
        return tuple(_nested_value(value.get(field.name), field.type) for field in type_.fields)
    return value if isinstance(value, str) and type_.name is TypeName.STRING else _READ[type_.name](str(value).lower())


def _unquoted(cell: str) -> str:
    if not (len(cell) > 1 and cell[0] == cell[-1] == "'"):
        raise ValueError
    return cell[1:-1].replace("''", "'")


def written(value: Any) -> str:
    """A value of Spark's. Floats have ten digits, and one zero."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        # -0.0 + 0.0 is 0.0: which of the two stands for a group depends on the order of the rows.
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(str(value), f"{value + 0.0:.10g}")
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        return value.isoformat(" ")
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{written(key)}: {written(one)}' for key, one in value.items()))}}}"
    if isinstance(value, tuple):
        return f"({', '.join(map(written, value))})"
    return str(value)


def rows_written(rows: Sequence[Sequence[Any]], *, ordered: bool) -> tuple[str, ...]:
    """The rows as lines, sorted unless they are `ordered`; many of them as their number and a hash of the lines."""
    lines = [_SEPARATOR.join(map(written, row)) for row in rows]
    if not ordered:
        lines.sort()
    if len(lines) <= MOST_ROWS:
        return tuple(lines)
    digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    return (f"{len(lines)} rows hashing to {digest[:16]}",)
