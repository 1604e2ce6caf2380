"""Tables of the error codes, with what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from docs.markdown import anchor, code, sentence, table
from service.contract.errors import (
    ConflictError,
    InternalError,
    NotFoundError,
    QuotaError,
    RequestError,
    ServiceError,
    UnavailableError,
)
from service.contract.job_errors import GROUPS, ErrorCode

REFUSALS: dict[str, tuple[type[ServiceError], ...]] = {
    "requests": (RequestError,),
    "missing resources": (NotFoundError,),
    "conflicts": (ConflictError,),
    "tenant limits": (QuotaError,),
    "failures of the service": (InternalError, UnavailableError),
}
"""The classes of the errors of the API, by the table that has their codes."""

_HEADER = ("Code and title", "Status", "What is wrong", "What to do")


def refusals(errors: tuple[type[ServiceError], ...]) -> str:
    """Returns the table of the codes of some errors of the API."""
    coded = (one for error in errors for one in error.with_codes())
    return table(_HEADER, [_row(one.code, one.status, one.title, sentence(one.meaning()), one.remedy) for one in coded])


def job_errors(group: tuple[ErrorCode, ...]) -> str:
    """Returns the table of a group of codes of errors in jobs and rows."""
    of_requests = {one.code for one in ServiceError.with_codes()}
    rows = [
        _row(one.code, one.status, one.title, one.meaning, one.remedy, is_target=one.code not in of_requests)
        for one in group
    ]
    return table(_HEADER, rows)


def _row(name: str, status: int, title: str, meaning: str, remedy: str, *, is_target: bool = True) -> tuple[str, ...]:
    return (f"{anchor(name) if is_target else ''}{code(name)}<br>{title}", str(status), meaning, remedy)


TABLES: dict[str, Callable[[], str]] = {
    **{f"errors of {name}": partial(refusals, errors) for name, errors in REFUSALS.items()},
    **{f"errors of {name}": partial(job_errors, group) for name, group in GROUPS.items()},
}
"""The tables of this module, by name."""
