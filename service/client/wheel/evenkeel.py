"""The Python client of Evenkeel: SQL in, DataFrames out.

    import evenkeel as ek

    client = ek.connect("http://localhost:8080")
    result = client.sql("SELECT COUNT(*) AS n FROM o WHERE o.day = :d", d=date(2024, 1, 31), tables={"o": "orders/"})
    frame = result.to_polars()

The documentation is in docs/how-to/python-client.md.
"""

from evenkeel.client.async_client import AsyncClient, AsyncJob, AsyncResult, connect_async
from evenkeel.client.client import Client, Job, Result, connect
from evenkeel.client.errors import (
    ArgumentError,
    ConfigurationError,
    ConflictError,
    EvenkeelError,
    JobCancelledError,
    JobFailedError,
    JobRefusedError,
    JobTimedOutError,
    MissingPackageError,
    NotFoundError,
    RequestRefusedError,
    ServiceFailedError,
    ServiceUnavailableError,
    UnauthorizedError,
    WaitTimeoutError,
)
from evenkeel.client.reports import Metrics, Plan, Skew
from evenkeel.client.version import installed_version
from evenkeel.contract.job import JobSpec
from evenkeel.contract.options import JobSettings
from evenkeel.contract.parameters import TypedValue
from evenkeel.contract.problems import Issue, Problem
from evenkeel.contract.tables import StreamTable, TableSource

__all__ = [
    "ArgumentError",
    "AsyncClient",
    "AsyncJob",
    "AsyncResult",
    "Client",
    "ConfigurationError",
    "ConflictError",
    "EvenkeelError",
    "Issue",
    "Job",
    "JobCancelledError",
    "JobFailedError",
    "JobRefusedError",
    "JobSettings",
    "JobSpec",
    "JobTimedOutError",
    "Metrics",
    "MissingPackageError",
    "NotFoundError",
    "Plan",
    "Problem",
    "RequestRefusedError",
    "Result",
    "ServiceFailedError",
    "ServiceUnavailableError",
    "Skew",
    "StreamTable",
    "TableSource",
    "TypedValue",
    "UnauthorizedError",
    "WaitTimeoutError",
    "connect",
    "connect_async",
]

__version__ = installed_version()
