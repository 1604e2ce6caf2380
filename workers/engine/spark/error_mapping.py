"""Spark's errors as problems: its condition and message, never its stack.

problem_of_spark_error
    arithmetic_overflow    ANSI: a number does not fit its type
    divide_by_zero         ANSI: division by zero
    invalid_cast           ANSI: a value is not of the type it is cast to
    corrupt_file           a file that is not what its format says, or a text row that does not fit the schema
    schema_mismatch        columns of a file differ from the table's schema, or a CSV header from the declared names
    path_not_found         a file that was there at submission is gone
    unreadable_file        a file that Spark may not read, or not with the credentials that it has
    unsupported_filesystem Spark lacks the jar for the scheme of a data root
    storage_unavailable    the store behind a data root does not answer Spark, or lacks the bucket
    duplicate_column       two columns whose names differ in case alone
    out_of_memory          the JVM's heap or Spark's memory did not suffice
    query_too_complex      the JVM's stack did not suffice to plan the query
    disk_full              the disk of results, or that of Spark's own files, took no more
    engine_error           any other error of Spark's
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from py4j.java_gateway import JavaObject, is_instance_of
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors.exceptions.captured import CapturedException

from service.contract.problems import Problem

_MAX_DETAIL = 1000
_MAX_CAUSES = 16
_OURS = frozenset({"out_of_memory", "disk_full", "unsupported_filesystem", "storage_unavailable"})
"""Codes of errors that no change of the job can solve."""

_CODES: tuple[tuple[str, str], ...] = (
    ("DIVIDE_BY_ZERO", "divide_by_zero"),
    ("REMAINDER_BY_ZERO", "divide_by_zero"),
    ("ARITHMETIC_OVERFLOW", "arithmetic_overflow"),
    ("BINARY_ARITHMETIC_OVERFLOW", "arithmetic_overflow"),
    ("NUMERIC_VALUE_OUT_OF_RANGE", "arithmetic_overflow"),
    ("NUMERIC_OUT_OF_SUPPORTED_RANGE", "arithmetic_overflow"),
    ("CAST_OVERFLOW", "arithmetic_overflow"),
    ("INTERVAL_ARITHMETIC_OVERFLOW", "arithmetic_overflow"),
    ("DATETIME_OVERFLOW", "arithmetic_overflow"),
    ("CAST_INVALID_INPUT", "invalid_cast"),
    ("CANNOT_PARSE_TIMESTAMP", "invalid_cast"),
    ("FAILED_READ_FILE.PARQUET_COLUMN_DATA_TYPE_MISMATCH", "schema_mismatch"),
    ("_LEGACY_ERROR_TEMP_3241", "schema_mismatch"),  # the header of a CSV file
    ("_LEGACY_ERROR_TEMP_2093", "duplicate_column"),
    ("COLUMN_ALREADY_EXISTS", "duplicate_column"),
    ("MALFORMED_RECORD_IN_PARSING", "corrupt_file"),
    ("FAILED_READ_FILE.FILE_NOT_EXIST", "path_not_found"),
    ("PATH_NOT_FOUND", "path_not_found"),
    ("FAILED_READ_FILE", "corrupt_file"),
    ("UNABLE_TO_ACQUIRE_MEMORY", "out_of_memory"),
    ("AGGREGATE_OUT_OF_MEMORY", "out_of_memory"),
    ("POINTER_ARRAY_OUT_OF_MEMORY", "out_of_memory"),
    ("_LEGACY_ERROR_TEMP_2105", "out_of_memory"),  # a hash map that cannot grow
    ("_LEGACY_ERROR_TEMP_2107", "out_of_memory"),  # a hash map that cannot be built
    ("_LEGACY_ERROR_TEMP_2108", "out_of_memory"),  # a hash table's row of more than 256 MB
    ("_LEGACY_ERROR_TEMP_2109", "out_of_memory"),  # a hash table of too many keys
    ("_LEGACY_ERROR_TEMP_2110", "out_of_memory"),  # a hash table of more than 8 GB
    ("_LEGACY_ERROR_TEMP_2248", "out_of_memory"),  # a table of too many rows to broadcast
    ("_LEGACY_ERROR_TEMP_2249", "out_of_memory"),  # a table of too many bytes to broadcast
    ("_LEGACY_ERROR_TEMP_2250", "out_of_memory"),  # a table too large to broadcast
)
"""The first entry of which some condition of the chain of causes is, or is a kind of, gives the code."""

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
"""What Hadoop's file systems raise; told before the condition that Spark wraps it in."""

_UNREACHABLE = frozenset(
    {
        *("java.net.ConnectException", "java.net.UnknownHostException", "java.net.NoRouteToHostException"),
        *("java.net.SocketException", "java.net.SocketTimeoutException"),
        "org.apache.hadoop.net.ConnectTimeoutException",
    }
)
"""A store's fault only where a file was to be read: executors that lose each other raise the same."""

_ADVICE = {
    "query_too_complex": "The query is too large for Spark's planner: put long lists of values into a file and "
    "join it, or split the query into several jobs.",
    "disk_full": "The service operator must free disk space for results (EVENKEEL_DATA_RESULTS) and for Spark's "
    "own files (EVENKEEL_STATE_DIR). Then submit the job again.",
    "unsupported_filesystem": "The service operator must name the jars, for s3a those of hadoop-aws, in the file of "
    "EVENKEEL_SPARK_PROPERTIES_FILE (spark.jars.packages or spark.jars).",
    "storage_unavailable": "The service operator must check the store and Spark's settings for it.",
}

_WRITING = "TASK_WRITE_FAILED"
"""Says no more than where in the service's own directory the rows were put that could not be made."""

_OUT_OF_MEMORY = "java.lang.OutOfMemoryError"
_STACK_OVERFLOW = "java.lang.StackOverflowError"
_TOO_COMPLEX = "FAILED_TO_PARSE_TOO_COMPLEX"
"""Spark's parser raises it where the stack did not suffice."""
_DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large")
"""What the kernel says when a disk, a user's share of it or a process may hold no more (ENOSPC, EDQUOT, EFBIG)."""
_BROADCAST_TIMEOUT = "_LEGACY_ERROR_TEMP_2097"
_BROADCASTING = frozenset({_BROADCAST_TIMEOUT, *(f"_LEGACY_ERROR_TEMP_{number}" for number in (2248, 2249, 2250))})
_GATHERED = "spark.driver.maxResultSize"
_TOLD_IN_PASSING = ("SparkOutOfMemoryError", _GATHERED, "(exit code 52)", "(exit code 137)")
"""What a message that aborts a job says of memory in its first line: of a task, of what the driver gathers for a
broadcast, and of executors that ended for a lack of memory (52: Spark's own code, 137: killed)."""

# Advice that a job cannot follow: it names options of Spark that no setting reaches.
_UNREACHABLE_ADVICE = re.compile(
    r"\s*(If necessary set \"?spark\.\S+ to \S+ to bypass this error\."
    r"|Parse Mode: FAILFAST\. To process malformed records.*?'PERMISSIVE'\.)"
)
_SQL_STATE = re.compile(r"\s*SQLSTATE: \w{5}\.?")


@dataclass(frozen=True)
class _Cause:
    """One Java exception of a chain. `condition` is None where it is none of Spark's own."""

    java_class: str
    condition: str | None
    message: str


def problem_of_spark_error(error: Exception, told: Callable[[str], str | None] = str) -> Problem | None:
    """The problem that tells a client why Spark gave up; None for what is not an error of Spark's, and where `told`,
    which makes of Spark's whole text what a client may see, gives None.

    A JVM that no longer answers is no error of Spark's either: it is for the caller to notice. `status` is 422 where
    data or query are at fault, and 500 where memory or Spark are.
    """
    causes = _causes(error)
    if not causes:
        return None
    code = _code(causes)
    detail = told(_told(causes))
    if detail is None:
        return None
    return Problem(
        type=f"/problems/{code}",
        title=code.replace("_", " ").capitalize(),
        status=500 if code in _OURS or (code == "engine_error" and _is_sparks_fault(causes)) else 422,
        detail=_shortened(detail, _ADVICE.get(code, "")),
        code=code,
    )


def is_lack_of_memory(error: Exception) -> bool:
    """Whether a smaller hash table, or none, could mend it: memory ran out, a broadcast was too large or too slow."""
    causes = _causes(error)
    return bool(causes) and (
        _code(causes) == "out_of_memory"
        or is_lack_of_broadcasting(error)
        or any(told in _first_line(cause.message) for cause in causes for told in _TOLD_IN_PASSING)
    )


def is_lack_of_broadcasting(error: Exception) -> bool:
    """Whether what could not be done was to broadcast: for its size, the time that it took, or the driver's memory."""
    return any(cause.condition in _BROADCASTING or _GATHERED in _first_line(cause.message) for cause in _causes(error))


def _causes(error: Exception) -> tuple[_Cause, ...]:
    """The chain of a Java error; empty for any other, and where the JVM no longer answers."""
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
    """The exception and its causes, outermost first."""
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
        # Without the text of the query and the plan, which the exception's own message goes on with.
        parameters = gateway.jvm.PythonErrorUtils.getMessageParameters(java)
        message = str(gateway.jvm.org.apache.spark.SparkThrowableHelper.getMessage(condition, parameters))
    return _Cause(name, condition, message)


def _code(causes: tuple[_Cause, ...]) -> str:
    if any(cause.java_class == _STACK_OVERFLOW or cause.condition == _TOO_COMPLEX for cause in causes):
        return "query_too_complex"
    # Where a task died, its error is but a name in the first line of the message that aborts the job.
    if any(_OUT_OF_MEMORY in (cause.java_class, *_first_line(cause.message).split(": ")) for cause in causes):
        return "out_of_memory"
    # Of Java's own errors alone: what a query raises ends with any words, and has a condition.
    if any(_first_line(cause.message).endswith(_DISK_FULL) for cause in causes if cause.condition is None):
        return "disk_full"
    of_file_system = _code_of_file_system(causes)
    if of_file_system is not None:
        return of_file_system
    conditions = [cause.condition for cause in causes if cause.condition is not None]
    for kind, code in _CODES:
        if any(condition == kind or condition.startswith(f"{kind}.") for condition in conditions):
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
    conditions = [cause.condition for cause in causes if cause.condition is not None]
    return not conditions or any(condition.startswith("INTERNAL_ERROR") for condition in conditions)


def _told(causes: tuple[_Cause, ...]) -> str:
    """From Spark's first condition to the innermost cause; the innermost cause alone where there is no condition."""
    named = next((index for index, cause in enumerate(causes) if cause.condition is not None), len(causes) - 1)
    texts = dict.fromkeys(
        text for cause in causes[named:] if cause.condition != _WRITING or cause is causes[-1] if (text := _text(cause))
    )
    return " ".join(texts) or causes[-1].java_class


def _shortened(detail: str, advice: str) -> str:
    most = _MAX_DETAIL - len(advice) - 2
    shortened = detail if len(detail) <= most else detail[: most - 1] + "…"
    return f"{shortened.rstrip('.')}. {advice}" if advice else shortened


def _text(cause: _Cause) -> str:
    if cause.condition is None:
        return f"{cause.java_class.rpartition('.')[2]}: {_first_line(cause.message)}"
    return re.sub(r"\s+", " ", _SQL_STATE.sub("", _UNREACHABLE_ADVICE.sub("", cause.message))).strip()


def _first_line(message: str) -> str:
    return message.split("\n", 1)[0].strip()
