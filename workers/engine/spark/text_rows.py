"""Sampled lines of text as Arrow tables, all of whose values are texts."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.csv as pa_csv

from service.spec.job import ReadOptions


def csv_table(lines: list[bytes], options: ReadOptions, names: Sequence[str], columns: Sequence[str]) -> pa.Table:
    """The `columns` of these lines of CSV, as text; `names` are all declared columns, in order.

    Raises ArrowException for what is no CSV.
    """
    # By position, since names may repeat in another case.
    positions = {name: str(index) for index, name in enumerate(names)}
    wanted = [positions[column] for column in columns]
    table = pa_csv.read_csv(
        pa.BufferReader(b"\n".join(lines) + b"\n"),
        read_options=pa_csv.ReadOptions(column_names=list(positions.values())),
        parse_options=pa_csv.ParseOptions(
            delimiter=options.delimiter,
            quote_char=options.quote,
            invalid_row_handler=lambda _row: "skip",
        ),
        convert_options=pa_csv.ConvertOptions(
            include_columns=wanted,
            column_types=dict.fromkeys(wanted, pa.string()),
            strings_can_be_null=True,
            null_values=[options.null_value],
        ),
    )
    return table.rename_columns(list(columns))


def json_table(lines: list[bytes], columns: Sequence[str]) -> pa.Table:
    """The `columns` of these lines of JSON, as text. Raises ValueError for what is no JSON."""
    documents = [document for line in lines if isinstance(document := json.loads(line), dict)]
    return pa.table(
        {
            column: pa.array(
                [None if (value := document.get(column)) is None else _json_text(value) for document in documents],
                pa.string(),
            )
            for column in columns
        }
    )


def _json_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
