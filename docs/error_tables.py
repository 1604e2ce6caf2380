"""Tables of the error codes, with what is wrong and what to do."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
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


def coded(errors: Iterable[type[ServiceError]]) -> Iterator[type[ServiceError]]:
    """Yields the classes among `errors` and their subclasses that have a code."""
    for error in errors:
        if "code" in vars(error):
            yield error
        yield from coded(error.__subclasses__())


def refusals(errors: tuple[type[ServiceError], ...]) -> str:
    """Returns the table of the codes of some errors of the API."""
    return table(_HEADER, [_row(one.code, one.status, one.title, _meaning(one), one.remedy) for one in coded(errors)])


def job_errors(group: tuple[ErrorCode, ...]) -> str:
    """Returns the table of a group of codes of errors in jobs and rows."""
    of_requests = {one.code for one in coded([ServiceError])}
    rows = [
        _row(one.code, one.status, one.title, one.meaning, one.remedy, is_target=one.code not in of_requests)
        for one in group
    ]
    return table(_HEADER, rows)


def _meaning(error: type[ServiceError]) -> str:
    first, _, _ = (inspect.getdoc(error) or "").partition("\n\n")
    return sentence(first)


def _row(name: str, status: int, title: str, meaning: str, remedy: str, *, is_target: bool = True) -> tuple[str, ...]:
    return (f"{anchor(name) if is_target else ''}{code(name)}<br>{title}", str(status), meaning, remedy)


TABLES: dict[str, Callable[[], str]] = {
    **{f"errors of {name}": partial(refusals, errors) for name, errors in REFUSALS.items()},
    **{f"errors of {name}": partial(job_errors, group) for name, group in GROUPS.items()},
}
"""The tables of this module, by name."""
