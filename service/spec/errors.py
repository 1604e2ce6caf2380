"""What can be wrong with a job, told the same way wherever it is found out.

SpecError                  the caller's job cannot be accepted or run as it is
    code        stable, machine-readable, snake_case (`unknown_column`)
    issues      one or more places, each with what to do

A `SpecError` knows no HTTP status: the service answers 422 with it, a worker stores it as the job's error.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from pydantic import BaseModel, ConfigDict, Field


class Issue(BaseModel):
    """One thing that is wrong, and where."""

    model_config = ConfigDict(frozen=True)

    code: str = Field(description="Stable code of this issue, for example `unknown_column`.")
    detail: str = Field(description="What is wrong and what to do about it.")
    pointer: str | None = Field(
        default=None, description="JSON pointer into the request body, for example `/sql` or `/query/where`."
    )
    line: int | None = Field(default=None, description="Line in the SQL text, or in posted rows, from 1.")
    column: int | None = Field(default=None, description="Column in the SQL text, from 1.")
    suggestions: tuple[str, ...] = Field(default=(), description="The nearest names that do exist.")


class SpecError(Exception):
    """A job that cannot be accepted or run as it is written.

    `issues[0]` gives the code of the whole; further issues may have other codes.
    """

    def __init__(self, issues: Sequence[Issue]) -> None:
        if not issues:
            raise ValueError("a SpecError needs at least one issue")
        self.issues: tuple[Issue, ...] = tuple(issues)
        super().__init__("; ".join(issue.detail for issue in issues))

    @property
    def code(self) -> str:
        """The stable code of the first issue."""
        return self.issues[0].code

    @classmethod
    def of(
        cls,
        code: str,
        detail: str,
        *,
        pointer: str | None = None,
        line: int | None = None,
        column: int | None = None,
        suggestions: Sequence[str] = (),
    ) -> SpecError:
        """A `SpecError` with a single issue."""
        return cls(
            [
                Issue(
                    code=code,
                    detail=detail,
                    pointer=pointer,
                    line=line,
                    column=column,
                    suggestions=tuple(suggestions),
                )
            ]
        )


def nearest_names(name: str, candidates: Sequence[str], limit: int = 3, *, alike: float = 0.5) -> tuple[str, ...]:
    """The candidates that read most like `name`, best first; compared without regard to case.

    `alike` is the least share of letters that two names have in common, from 0 to 1.
    """
    by_folded: dict[str, str] = {}
    for candidate in candidates:
        by_folded.setdefault(candidate.casefold(), candidate)
    close = get_close_matches(name.casefold(), list(by_folded), n=limit, cutoff=alike)
    return tuple(by_folded[folded] for folded in close)


def did_you_mean(suggestions: Sequence[str]) -> str:
    """` Did you mean a, b?`, or nothing where there is no suggestion; to be appended to a sentence."""
    return f" Did you mean {', '.join(suggestions)}?" if suggestions else ""
