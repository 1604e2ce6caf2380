"""Answers that are not the wanted one, told to people, with an exit code for scripts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus

import httpx
from pydantic import ValidationError

from service.cli.client.carets import pointed_out
from service.cli.client.safe_text import safe_line, shortened
from service.cli.errors import CliError, ExitCode
from service.spec.errors import Issue
from service.spec.problem import Problem

_MOST_ISSUES = 20
_MOST_CHARACTERS = 2000

_CODES = {
    HTTPStatus.UNAUTHORIZED: ExitCode.DENIED,
    HTTPStatus.FORBIDDEN: ExitCode.DENIED,
    HTTPStatus.PROXY_AUTHENTICATION_REQUIRED: ExitCode.DENIED,
    HTTPStatus.NOT_FOUND: ExitCode.NOT_FOUND,
    HTTPStatus.GONE: ExitCode.NOT_FOUND,
    HTTPStatus.CONFLICT: ExitCode.CONFLICT,
    HTTPStatus.REQUEST_TIMEOUT: ExitCode.UNREACHABLE,
    HTTPStatus.TOO_MANY_REQUESTS: ExitCode.UNREACHABLE,
    HTTPStatus.BAD_GATEWAY: ExitCode.UNREACHABLE,
    HTTPStatus.SERVICE_UNAVAILABLE: ExitCode.UNREACHABLE,
    HTTPStatus.GATEWAY_TIMEOUT: ExitCode.UNREACHABLE,
}


@dataclass(frozen=True)
class Source:
    """The SQL that was posted, and what its user knows it as: a file, or `--sql`."""

    sql: str
    label: str


def refusal(answer: httpx.Response, source: Source | None = None) -> CliError:
    """The failure that an answer stands for. `answer` has been read."""
    if answer.is_redirect:
        return _redirected(answer)
    code = _exit_code(answer.status_code)
    problem = _problem(answer)
    if problem is None:
        return CliError(f"the service answered {answer.status_code} {_first_line(answer)}".rstrip(), code=code)
    lines = list(problem_lines(problem, source))
    if code is ExitCode.DENIED:
        lines.append("EVENKEEL_API_KEY or --key-file has the key that is shown.")
    if code is ExitCode.CRASHED and problem.request_id:
        lines.append(f"The service's log tells more: request {safe_line(problem.request_id)}")
    return CliError(problem_head(problem), "\n  ".join(lines), code=code)


def problem_head(problem: Problem) -> str:
    """What happened, on one line, with the stable code."""
    issues = problem.errors
    told = problem.detail if len(issues) < 2 else f"{len(issues)} things are wrong"
    return f"{shortened(safe_line(told), _MOST_CHARACTERS)} [{safe_line(problem.code)}]"


def problem_lines(problem: Problem, source: Source | None) -> Iterator[str]:
    """Where it is wrong, place by place: SQL with a caret below, or the pointer into what was posted."""
    several = len(problem.errors) > 1
    for issue in problem.errors[:_MOST_ISSUES]:
        if several:
            yield f"{shortened(safe_line(issue.detail), _MOST_CHARACTERS)} [{safe_line(issue.code)}]"
        # The detail of a single one begins with its place.
        told = not several and issue.pointer is not None and issue.pointer in problem.detail
        if not told or issue.line is not None:
            yield from _place(issue, source)
    if len(problem.errors) > _MOST_ISSUES:
        yield f"… and {len(problem.errors) - _MOST_ISSUES} more"


def _place(issue: Issue, source: Source | None) -> Iterable[str]:
    if issue.line is None:
        return (f"at {safe_line(issue.pointer)}",) if issue.pointer else ()
    column = "" if issue.column is None else f":{issue.column}"
    if source is None:
        return (f"at line {issue.line}{column and f', column {issue.column}'}",)
    return (f"{safe_line(source.label)}:{issue.line}{column}", *pointed_out(source.sql, issue.line, issue.column))


def _exit_code(status: int) -> ExitCode:
    if status in _CODES:
        return _CODES[HTTPStatus(status)]
    return ExitCode.CRASHED if status >= HTTPStatus.INTERNAL_SERVER_ERROR else ExitCode.USAGE


def _problem(answer: httpx.Response) -> Problem | None:
    try:
        return Problem.model_validate(answer.json())
    except (ValidationError, ValueError):
        return None


def _first_line(answer: httpx.Response) -> str:
    """Of a text that some proxy may have written."""
    if "text/plain" not in answer.headers.get("content-type", ""):
        return safe_line(answer.reason_phrase)
    return shortened(safe_line(answer.text.strip().partition("\n")[0]), 200)


def _redirected(answer: httpx.Response) -> CliError:
    # Not followed: the key is for the service that was named, and for no other.
    target = shortened(safe_line(answer.headers.get("location", "elsewhere")), 200)
    return CliError(
        f"the service sends elsewhere, to {target}",
        "If that is where it should be asked, give its address with --url.",
        code=ExitCode.USAGE,
    )
