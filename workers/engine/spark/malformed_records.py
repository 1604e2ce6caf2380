"""Finds the column whose value does not have its type, in a record of a CSV file that failed a job.

Spark's error has the record as it was read, with NULL for each value that it could not convert, and no name
of a column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from service.sql.types.data_types import STRING, Field
from workers.engine.plan.nodes import Node
from workers.engine.spark.sources import TableInput, scans_of

_NULL = "null"


def columns_of_records(plan: Node, tables: Mapping[str, TableInput]) -> tuple[tuple[Field, ...], ...]:
    """Returns the columns that Spark reads of each text table of the plan, in the order of the files."""
    found = []
    for scan in scans_of(plan):
        table = tables[scan.table]
        if table.source.kind.is_text:
            wanted = {name for _, name in scan.columns}
            found.append(tuple(field for field in table.schema.fields if field.name in wanted))
    return tuple(dict.fromkeys(found))


def fault_of_record(record: str, columns: Sequence[tuple[Field, ...]]) -> str:
    """Returns which column of `record`, such as `[Bob,null]`, does not have its type; empty if that is not certain.

    >>> from service.sql.types.data_types import INT
    >>> fault_of_record("[Bob,null]", [(Field("name", STRING), Field("age", INT))])
    'the value of the column age is not of the type INT'
    """
    values = record.removeprefix("[").removesuffix("]").split(",")
    readings = [fields for fields in columns if len(fields) == len(values)]
    if len(readings) != 1:
        return ""
    # Each value can be read as a STRING.
    failed = [
        field for field, value in zip(readings[0], values, strict=True) if value == _NULL and field.type != STRING
    ]
    if len(failed) == 1:
        return f"the value of the column {failed[0].name} is not of the type {failed[0].type}"
    names = ", ".join(field.name for field in failed)
    return f"the value of one of the columns {names} is not of its type" if failed else ""
