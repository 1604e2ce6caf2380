"""Converts errors of Spark into problems: a sentence of our own, a code, and no stack.

`failed_values` writes the sentence for an expression that failed, `error_texts` that for any other code.

Codes of `problem_of_spark_error`:
    arithmetic_overflow    ANSI: a number does not fit into its type
    divide_by_zero         ANSI: division by zero
    invalid_cast           ANSI: a value cannot be cast to the type
    invalid_index          ANSI: an array has no element at the index
    invalid_map_key        a key of a map is NULL, or is there twice
    invalid_function_argument          a function got a value that it does not accept
    recursion_limit        a recursive query had too many steps or rows
    raised_error           the query called raise_error, or a subquery that is a value returned several rows
    corrupt_file           a file does not match its format, or a text row does not match the schema
    schema_mismatch        the columns of a file differ from the table's schema, or a CSV header from the declared names
    path_not_found         a file that existed at submission does not exist any more
    unreadable_file        Spark has no permission or no credentials to read a file
    unsupported_filesystem Spark has no jar for the scheme of a data root
    storage_unavailable    the store of a data root does not answer Spark, or does not have the bucket
    duplicate_column       the names of two columns differ in case only
    out_of_memory          the JVM's heap or Spark's memory was too small
    query_too_complex      the JVM's stack was too small to plan the query
    disk_full              the disk of the results, or of Spark's own files, is full
    engine_error           any other error of Spark
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from py4j.java_gateway import JavaObject, is_instance_of
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors.exceptions.captured import CapturedException

from service.contract.problems import Issue, Problem
from service.sql.failed_expressions import QueryExpressions
from service.sql.types.data_types import Field
from workers.engine.spark.avro_source import MARK as AVRO_MARK
from workers.engine.spark.error_texts import SENTENCES, explained, is_of_python, shortened
from workers.engine.spark.failed_values import CODES as VALUE_CODES
from workers.engine.spark.failed_values import NO_XML, Failure, describe

_MAX_DETAIL = 1000
_MAX_CAUSES = 16
_OURS = frozenset({"out_of_memory", "disk_full", "unsupported_filesystem", "storage_unavailable"})
"""Codes of errors that the client cannot solve by changing the job."""

_CONDITIONS = {
    "divide_by_zero": ("DIVIDE_BY_ZERO", "REMAINDER_BY_ZERO"),
    "arithmetic_overflow": (
        "ARITHMETIC_OVERFLOW",
        "BINARY_ARITHMETIC_OVERFLOW",
        "NUMERIC_VALUE_OUT_OF_RANGE",
        "NUMERIC_OUT_OF_SUPPORTED_RANGE",
        "CAST_OVERFLOW",
        "INTERVAL_ARITHMETIC_OVERFLOW",
        "DATETIME_OVERFLOW",
    ),
    "invalid_cast": ("CAST_INVALID_INPUT", "CANNOT_PARSE_TIMESTAMP", "DATETIME_FIELD_OUT_OF_BOUNDS"),
    "raised_error": ("USER_RAISED_EXCEPTION",),
    "invalid_index": ("INVALID_ARRAY_INDEX", "INVALID_ARRAY_INDEX_IN_ELEMENT_AT", "INVALID_INDEX_OF_ZERO"),
    "invalid_map_key": ("DUPLICATED_MAP_KEY", "NULL_MAP_KEY"),
    "recursion_limit": ("RECURSION_LEVEL_LIMIT_EXCEEDED", "RECURSION_ROW_LIMIT_EXCEEDED"),
    # 3241: the header of a CSV file.
    "schema_mismatch": ("FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH", "_LEGACY_ERROR_TEMP_3241"),
    "duplicate_column": ("_LEGACY_ERROR_TEMP_2093", "COLUMN_ALREADY_EXISTS"),
    "path_not_found": ("FAILED_READ_FILE.FILE_NOT_EXIST", "PATH_NOT_FOUND"),
    "corrupt_file": ("MALFORMED_RECORD_IN_PARSING", "FAILED_READ_FILE"),
    "out_of_memory": (
        "UNABLE_TO_ACQUIRE_MEMORY",
        "AGGREGATE_OUT_OF_MEMORY",
        "POINTER_ARRAY_OUT_OF_MEMORY",
        # A hash map that cannot grow (2105) or be built (2107), a hash table with a row of more than 256 MB (2108),
        # too many keys (2109) or more than 8 GB (2110), a table with too many rows (2248) or bytes (2249, 2250) to
        # broadcast.
        *(f"_LEGACY_ERROR_TEMP_{number}" for number in (2105, 2107, 2108, 2109, 2110, 2248, 2249, 2250)),
    ),
    "invalid_function_argument": (
        "CANNOT_DECODE_URL",
        "CANNOT_PARSE_DECIMAL",
        "CONVERSION_INVALID_INPUT",
        "HLL_INVALID_INPUT_SKETCH_BUFFER",
        "HLL_INVALID_LG_K",
        "HLL_UNION_DIFFERENT_LG_K",
        "ILLEGAL_DAY_OF_WEEK",
        "INVALID_FORMAT",
        "INVALID_PARAMETER_VALUE",
        "INVALID_REGEXP_REPLACE",
        "INVALID_TIMEZONE",
        "INVALID_URL",
        "INVALID_UTF8_STRING",
        "INVALID_VECTOR_NORM_DEGREE",
        "KLL_INVALID_INPUT_SKETCH_BUFFER",
        "KLL_SKETCH_INVALID_QUANTILE_RANGE",
        "KLL_SKETCH_K_OUT_OF_RANGE",
        "MALFORMED_CHARACTER_CODING",
        "NEGATIVE_VALUES_IN_FREQUENCY_EXPRESSION",
        "SKETCH_INVALID_LG_NOM_ENTRIES",
        "THETA_INVALID_INPUT_SKETCH_BUFFER",
        "THETA_INVALID_INPUT_SKETCH_BUFFER_FAMILY",
        "VECTOR_DIMENSION_MISMATCH",
        NO_XML,
    ),
}
"""Conditions of Spark, or their prefixes, by code. The first code with a condition of the chain of causes applies."""

_FILE_SYSTEM_CODES = {
    "org.apache.hadoop.fs.UnsupportedFileSystemException": "unsupported_filesystem",
    "java.nio.file.AccessDeniedException": "unreadable_file",
    "org.apache.hadoop.security.AccessControlException": "unreadable_file",
    "org.apache.hadoop.fs.s3a.auth.NoAuthWithAWSException": "unreadable_file",
    "org.apache.hadoop.fs.s3a.UnknownStoreException": "storage_unavailable",
    "org.apache.hadoop.fs.s3a.AWSClientIOException": "storage_unavailable",
    "org.apache.hadoop.fs.s3a.AWSApiCallTimeoutException": "storage_unavailable",
    "org.apache.hadoop.fs.s3a.AWSServiceThrottledException": "storage_unavailable",
    "org.apache.hadoop.fs.s3a.AWSStatus500Exception": "storage_unavailable",
    "org.apache.hadoop.hdfs.BlockMissingException": "storage_unavailable",
    "org.apache.hadoop.ipc.StandbyException": "storage_unavailable",
}
"""By exception of Hadoop's file systems. These decide before the condition of the exception around them."""

_UNREACHABLE = frozenset(
    {
        *("java.net.ConnectException", "java.net.UnknownHostException", "java.net.NoRouteToHostException"),
        *("java.net.SocketException", "java.net.SocketTimeoutException"),
        "org.apache.hadoop.net.ConnectTimeoutException",
    }
)
"""An error of the store only if Spark was reading a file: executors that lose each other raise the same exceptions."""

_WRITING = "TASK_WRITE_FAILED"
"""Its message has only the path in the service's own directory to which the rows were written."""

_OUT_OF_MEMORY = "java.lang.OutOfMemoryError"
_STACK_OVERFLOW = "java.lang.StackOverflowError"
_TOO_COMPLEX = "FAILED_TO_PARSE_TOO_COMPLEX"
"""Spark's parser raises it if the stack was too small."""
_DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
"""Messages of the kernel if a disk, a user's quota or the file size limit is exceeded (ENOSPC, EDQUOT, EFBIG)."""
_DISK_FULL_OF_PYTHON = re.compile(rf"^OSError: \[Errno \d+\] (?:{'|'.join(_DISK_FULL)})", re.MULTILINE)
"""The same as the last line of a traceback, from a task in Python."""
_BROADCAST_TIMEOUT = "_LEGACY_ERROR_TEMP_2097"
_BROADCASTING = frozenset({_BROADCAST_TIMEOUT, *(f"_LEGACY_ERROR_TEMP_{number}" for number in (2248, 2249, 2250))})
_RESULT_LIMIT = "spark.driver.maxResultSize"
_MEMORY_WORDS = ("SparkOutOfMemoryError", _RESULT_LIMIT, "(exit code 52)", "(exit code 137)")
"""Signs of a lack of memory in the first line of the message that aborts a job: of a task, of the rows that the driver
collects for a broadcast, and of executors that ended (52: out of memory, by Spark; 137: killed)."""

# Advice of Spark that no job can follow, because no setting sets these options.
_REMOVED_ADVICE = re.compile(
    r"\s*(If necessary set \"?spark\.\S+ to \S+ to bypass this error\."
    r"|Parse Mode: FAILFAST\. To process malformed records.*?'PERMISSIVE'\.)"
)
_AVRO = re.compile(rf"{AVRO_MARK}: (.*)")
"""An error of a Python worker that reads an Avro file."""
_OF_PYTHON = "PYTHON_EXCEPTION"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_BAD_XML = "org.xml.sax.SAXParseException"
"""Only the functions of XPath raise it, without a condition."""
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w{5}\.?")


@dataclass(frozen=True)
class _Cause:
    """One Java exception of a chain. `condition` is None if it is not an exception of Spark."""

    java_class: str
    condition: str | None
    message: str
    fragment: str = ""
    """The expression that failed, as a part of the text that Spark got; empty if Spark does not name it."""


def problem_of_spark_error(
    error: Exception,
    redact: Callable[[str], str | None] = str,
    expressions: QueryExpressions | None = None,
    columns: Sequence[tuple[Field, ...]] = (),
) -> Problem | None:
    """Returns the problem that describes an error of Spark, or a full disk, to a client; None for any other error.

    `redact` gets Spark's whole text and returns what the client may see; if it returns None, there is no problem. An
    error because the JVM does not answer is not an error of Spark; the caller must detect it. `status` is 422 if the
    data or the query are the cause, and 500 if memory or Spark are. `expressions` are those of the job's query: the
    `errors` of the problem are the places of the one that failed. `columns` are those that the job reads of each of its
    text tables.
    """
    if isinstance(error, OSError) and error.errno in _FULL:
        return problem_of_full_disk()
    causes = _causes(error)
    if not causes:
        return None
    if any(cause.condition == _OF_PYTHON and _DISK_FULL_OF_PYTHON.search(cause.message) for cause in causes):
        return problem_of_full_disk()
    of_avro = next(filter(None, (_AVRO.search(cause.message) for cause in causes)), None)
    code = "corrupt_file" if of_avro is not None else _code(causes)
    text = redact(_message(causes) if of_avro is None else of_avro[1])
    if text is None:
        return None
    issues: tuple[Issue, ...] = ()
    if of_avro is not None:
        detail = text
    elif code in VALUE_CODES:
        detail, issues = describe(_failure(code, causes, redact), expressions)
    else:
        detail = explained(code, text, [redact(cause.message) or "" for cause in causes], columns)
    status = 500 if code in _OURS or (code == "engine_error" and _is_sparks_fault(causes)) else 422
    return _problem(code, status, detail, issues)


def problem_of_full_disk() -> Problem:
    """Returns the problem of a full disk, quota or file."""
    return _problem("disk_full", 500, SENTENCES["disk_full"])


def _problem(code: str, status: int, detail: str, issues: tuple[Issue, ...] = ()) -> Problem:
    return Problem(
        type=f"/problems/{code}",
        title=code.replace("_", " ").capitalize(),
        status=status,
        detail=shortened(detail, _MAX_DETAIL),
        code=code,
        errors=issues,
    )


def _failure(code: str, causes: tuple[_Cause, ...], redact: Callable[[str], str | None]) -> Failure:
    """Returns what failed, from the innermost cause with one of the conditions of `code`."""
    kinds = _CONDITIONS[code]
    named = [
        cause
        for cause in causes
        if cause.condition is not None and any(cause.condition.partition(".")[0] == kind for kind in kinds)
    ]
    cause = next((each for each in named if each.fragment), named[0])
    return Failure(code, cause.condition or "", redact(cause.fragment) or "", redact(cause.message) or "")


def is_lack_of_memory(error: Exception) -> bool:
    """Whether a plan with less hashing may succeed: memory ran out, or a broadcast was too large or too slow."""
    causes = _causes(error)
    return bool(causes) and (
        _code(causes) == "out_of_memory"
        or is_lack_of_broadcasting(error)
        or any(word in _first_line(cause.message) for cause in causes for word in _MEMORY_WORDS)
    )


def is_lack_of_broadcasting(error: Exception) -> bool:
    """Whether a broadcast failed, because of its size, its duration, or the driver's memory."""
    return any(
        cause.condition in _BROADCASTING or _RESULT_LIMIT in _first_line(cause.message) for cause in _causes(error)
    )


def _causes(error: Exception) -> tuple[_Cause, ...]:
    """Returns the chain of a Java error; empty for any other error, and if the JVM does not answer any more."""
    java = _java_exception(error)
    if java is None:
        return ()
    try:
        return _chain(java)
    except (Py4JError, OSError):
        return ()


def _java_exception(error: Exception) -> JavaObject | None:
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    return error._origin if isinstance(error, CapturedException) else None


def _chain(java: JavaObject) -> tuple[_Cause, ...]:
    """Returns the exception and its causes, outermost first."""
    causes: list[_Cause] = []
    current: JavaObject | None = java
    while current is not None and len(causes) < _MAX_CAUSES:
        causes.append(_cause(current))
        current = current.getCause()
    return tuple(causes)


def _cause(java: JavaObject) -> _Cause:
    name, message, condition = str(java.getClass().getName()), str(java.getMessage() or ""), None
    gateway = SparkContext._gateway
    if gateway is not None and is_instance_of(gateway, java, "org.apache.spark.SparkThrowable"):
        condition = gateway.jvm.PythonErrorUtils.getCondition(java)
    if gateway is not None and condition is not None:
        # The exception's own message continues with the text of the query and the plan, which are left out here.
        parameters = gateway.jvm.PythonErrorUtils.getMessageParameters(java)
        message = str(gateway.jvm.org.apache.spark.SparkThrowableHelper.getMessage(condition, parameters))
    fragment = ""
    if gateway is not None and condition is not None:
        contexts = gateway.jvm.PythonErrorUtils.getQueryContext(java)
        fragment = next((str(context.fragment()) for context in contexts if context.fragment()), "")
    if name == _BAD_XML:
        condition = NO_XML
    return _Cause(name, condition, message, fragment)


def _code(causes: tuple[_Cause, ...]) -> str:
    if any(cause.java_class == _STACK_OVERFLOW or cause.condition == _TOO_COMPLEX for cause in causes):
        return "query_too_complex"
    # If a task failed, only the name of its error is in the first line of the message that aborts the job.
    if any(_OUT_OF_MEMORY in (cause.java_class, *_first_line(cause.message).split(": ")) for cause in causes):
        return "out_of_memory"
    # Only errors of Java: an error that a query raises has a condition, and may end with the same words.
    if any(_first_line(cause.message).endswith(_DISK_FULL) for cause in causes if cause.condition is None):
        return "disk_full"
    of_file_system = _code_of_file_system(causes)
    if of_file_system is not None:
        return of_file_system
    conditions = [cause.condition for cause in causes if cause.condition is not None]
    for code, kinds in _CONDITIONS.items():
        if any(condition == kind or condition.startswith(f"{kind}.") for condition in conditions for kind in kinds):
            return code
    return "engine_error"


def _code_of_file_system(causes: tuple[_Cause, ...]) -> str | None:
    code = next(
        (_FILE_SYSTEM_CODES[cause.java_class] for cause in causes if cause.java_class in _FILE_SYSTEM_CODES), None
    )
    if code is not None:
        return code
    if any("ClassNotFound" in cause.java_class and "org.apache.hadoop.fs." in cause.message for cause in causes):
        return "unsupported_filesystem"
    is_reading = any((cause.condition or "").startswith("FAILED_READ_FILE") for cause in causes)
    in_tasks = any(cause.java_class == "org.apache.spark.SparkException" for cause in causes)
    if (is_reading or not in_tasks) and any(cause.java_class in _UNREACHABLE for cause in causes):
        return "storage_unavailable"
    return None


def _is_sparks_fault(causes: tuple[_Cause, ...]) -> bool:
    if any(is_of_python(cause.message) for cause in causes):
        return True
    conditions = [cause.condition for cause in causes if cause.condition is not None]
    return not conditions or any(condition.startswith("INTERNAL_ERROR") for condition in conditions)


def _message(causes: tuple[_Cause, ...]) -> str:
    """Returns the texts from Spark's first condition to the innermost cause, or only the latter without a condition."""
    named = next((index for index, cause in enumerate(causes) if cause.condition is not None), len(causes) - 1)
    texts = dict.fromkeys(
        text for cause in causes[named:] if cause.condition != _WRITING or cause is causes[-1] if (text := _text(cause))
    )
    return " ".join(texts) or causes[-1].java_class


def _text(cause: _Cause) -> str:
    if cause.condition is None:
        return f"{cause.java_class.rpartition('.')[2]}: {_first_line(cause.message)}"
    return re.sub(r"\s+", " ", _SQL_STATE.sub("", _REMOVED_ADVICE.sub("", cause.message))).strip()


def _first_line(message: str) -> str:
    return message.split("\n", 1)[0].strip()
