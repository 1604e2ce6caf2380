"""The sentences of problems of Spark that are not about an expression: what is wrong, in which file, and what to do.

Spark's own text follows only where the operator, or the author of the query, needs it to find the cause.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from urllib.parse import unquote

from service.contract.query import MAX_LEVELS
from service.sql.types.data_types import Field
from workers.engine.spark.malformed_records import fault_of_record

_READING = re.compile(r"while reading file (\S.*?)\.(?:\s|$)", re.DOTALL)
_MISSING = re.compile(r"(?:while reading file|does not exist:|[Pp]ath does not exist:) (\S+?)\.?(?:\s|$)")
_NUMBER = re.compile(r"For input string: \"(.*?)\"(?:\s|$|\.)", re.DOTALL)
_JSON_FIELD = re.compile(
    r"[Cc]annot parse the field name (\S+) and the value (.+?) of the JSON token type \S+ to target Spark data type "
    r"(.+?)\.?\s*(?:SQLSTATE|$)",
    re.DOTALL,
)
_CSV_ROW = re.compile(r"Malformed CSV record: (.+?)(?:\s*SQLSTATE|$)", re.DOTALL)
_RECORD = re.compile(r"detected in record parsing: (.+?)\.?(?:\s*\n|\s*Parse Mode|$)", re.DOTALL)
_PARQUET_TYPES = re.compile(
    r"reading Parquet column \[?(.+?)\]?\. Expected Spark type (\S+?), actual Parquet type (\S+?)\.?(?:\s|$)"
)
_MODULE = re.compile(r"(?:ModuleNotFoundError|ImportError): (.+?)(?:\n|$)")
_PYTHON = ("Cannot run program", "Python worker failed to connect back", "PYTHON_VERSION_MISMATCH")

_RAISED = re.compile(r"\[USER_RAISED_EXCEPTION\] (.+?)\s*(?:SQLSTATE|$)", re.DOTALL)

_LEVELS = re.compile(r"Recursion level limit (\d+) reached")

_MALFORMED = "MALFORMED_RECORD_IN_PARSING"
_MALFORMED_ADVICE = (
    "Set the types of columns with 'columns' or 'schema', or set the option 'mode' to permissive or dropmalformed."
)

SENTENCES = {
    "schema_mismatch": "The columns of a file differ from the table's schema. Correct the file, or the schema.",
    "duplicate_column": "A file has two columns whose names differ in case only. Rename one of them.",
    "unreadable_file": "Spark is not permitted to read a file. The service operator must give it the permission or "
    "the credentials.",
    "unsupported_filesystem": "Spark cannot read the data root, because it has no jar for its scheme. The service "
    "operator must name the jars, for s3a those of hadoop-aws, in the file of EVENKEEL_SPARK_PROPERTIES_FILE "
    "(spark.jars.packages or spark.jars).",
    "storage_unavailable": "Spark cannot read from the store of a data root. The service operator must check the "
    "store and Spark's settings for it.",
    "out_of_memory": "Spark ran out of memory. Reduce what the query keeps for a group or joins at once, or ask the "
    "service operator for more memory (EVENKEEL_SPARK_DRIVER_MEMORY).",
    "query_too_complex": "The query is too large for Spark's planner. Put long lists of values into a file and join "
    "it, or split the query into several jobs.",
    "disk_full": "The disk is full. The service operator must free disk space for results (EVENKEEL_DATA_RESULTS), "
    "streams (EVENKEEL_DATA_STREAMS) and Spark's own files (EVENKEEL_STATE_DIR). Then start the job again.",
    "engine_error": "Spark could not run the query.",
}

_WITHOUT_SPARKS_TEXT = frozenset({"query_too_complex"})


def explained(code: str, text: str, messages: Sequence[str], columns: Sequence[tuple[Field, ...]] = ()) -> str:
    """Returns the detail of a problem with `code`. `text` is Spark's whole text, `messages` are those of its causes.

    `columns` are those that the job reads of each of its text tables.
    """
    whole = "\n".join(messages)
    if is_of_python(whole):
        return _of_python(whole)
    if "Cannot broadcast" in text:
        return f"A table was too large to broadcast. Spark says: {text}"
    known: Mapping[str, Callable[[str], str | None]] = {
        "raised_error": _raised,
        "recursion_limit": _endless,
        "corrupt_file": partial(_corrupt_file, columns=columns),
        "path_not_found": _missing_file,
        "schema_mismatch": _other_columns,
    }
    own = known[code](whole) if code in known else None
    if own is not None:
        return own
    sentence = SENTENCES.get(code, "A file cannot be read.")
    return sentence if code in _WITHOUT_SPARKS_TEXT else f"{sentence} Spark says: {text}"


def is_of_python(message: str) -> bool:
    """Whether an executor could not start Python, or its Python lacks a package."""
    return any(word in message for word in _PYTHON) or ("Traceback" in message and _MODULE.search(message) is not None)


def shortened(text: str, most: int) -> str:
    """Returns at most `most` characters of `text`."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _of_python(whole: str) -> str:
    module = _MODULE.search(whole)
    why = module[1].strip() if module is not None else "Python did not start"
    return (
        f"An executor of Spark could not run the Python that reads Avro files: {why}. The service operator must set "
        "EVENKEEL_SPARK_PYTHON to a Python on the executors that has Evenkeel's packages."
    )


def _file(whole: str) -> str | None:
    """Returns the quoted path of the file that could not be read: its name, or the path that replaced the real one,
    with the note in parentheses after it.
    """
    found = _READING.search(whole)
    if found is None:
        return None
    path, note, rest = unquote(found[1]).partition(" (")
    is_absolute = path.startswith("/") or ":" in path
    return f"'{path.rpartition('/')[2] if is_absolute else path}'{note}{rest}"


def _corrupt_file(whole: str, columns: Sequence[tuple[Field, ...]]) -> str | None:
    file = _file(whole)
    if file is None:
        return None
    if _MALFORMED not in whole:
        return (
            f"The file {file} is damaged, or not of the table's format. Write it again, or name its own format with "
            f"'format'."
        )
    record = _record(whole, columns)
    return f"The file {file} has a record that does not match the table's schema{record}. {_MALFORMED_ADVICE}"


def _record(whole: str, columns: Sequence[tuple[Field, ...]]) -> str:
    field = _JSON_FIELD.search(whole)
    if field is not None:
        name, value, type_ = (part.strip("`\"' ") for part in field.groups())
        return f": the field {name} has the value {_short(value)}, which is not of the type {type_}"
    number = _NUMBER.search(whole)
    record = _RECORD.search(whole)
    read = f", in the record that was read as {_short(record[1])}" if record is not None else ""
    fault = fault_of_record(record[1], columns) if record is not None else ""
    if number is not None:
        return f': "{_short(number[1])}" is not a number{read}{f"; {fault}" if fault else ""}'
    row = _CSV_ROW.search(whole)
    if row is not None:
        return f": the row {_short(row[1])} has another number of columns"
    if fault:
        return f": {fault}{read}"
    return f": it was read as {_short(record[1])}" if record is not None else ""


def _raised(whole: str) -> str | None:
    found = _RAISED.search(whole)
    return None if found is None else f"The query raised an error: {shortened(found[1], 300)}"


def _endless(whole: str) -> str:
    levels = _LEVELS.search(whole)
    if levels is None:
        return (
            "A recursive query has more than 1,000,000 rows. Write a condition in the WHERE of its second query that "
            "ends it earlier, or LIMIT in a query that only reads the recursive one."
        )
    return (
        f"A recursive query was not complete after {levels[1]} steps. Write a condition in the WHERE of its second "
        f"query that ends it, or more steps, up to {MAX_LEVELS}: WITH RECURSIVE r MAX RECURSION LEVEL 500 AS (…)."
    )


def _missing_file(whole: str) -> str:
    found = _MISSING.search(whole)
    file = f"The file '{unquote(found[1]).rpartition('/')[2]}'" if found is not None else "A file"
    return f"{file} does not exist any more: it was removed after the job had been checked. Submit the job again."


def _other_columns(whole: str) -> str | None:
    found, file = _PARQUET_TYPES.search(whole), _file(whole)
    if found is None or file is None:
        return None
    return (
        f"The column {found[1]} of the file {file} is {found[3]}, but the table's schema has {found[2]}. Write the "
        "files of a table with the same types."
    )


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 120 else f"{text[:119]}…"
