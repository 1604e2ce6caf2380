"""RFC 9457 problem details: the one shape of every error, whether answered to a request or stored as a job's end."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from service.spec.errors import Issue, SpecError


class Problem(BaseModel):
    """What went wrong, for people and for programs."""

    model_config = ConfigDict(frozen=True)

    type: str = Field(description="Relative URI of this kind of problem.", examples=["/problems/unknown_column"])
    title: str = Field(description="The kind of problem, in a few words.")
    status: int = Field(
        description="HTTP status; 422 for a job that failed by its own fault, 500 for one that did not."
    )
    detail: str = Field(description="What happened this time and what to do about it.")
    code: str = Field(description="Stable code, the last part of `type`.")
    instance: str | None = Field(default=None, description="The path that was asked for.")
    request_id: str | None = Field(
        default=None, description="The `X-Request-Id` of the request that it answers, for the logs."
    )
    errors: tuple[Issue, ...] = Field(default=(), description="Every single place that is wrong.")


def problem_of_spec_error(error: SpecError) -> Problem:
    """The problem that tells a caller what is wrong with a job."""
    return Problem(
        type=f"/problems/{error.code}",
        title=error.code.replace("_", " ").capitalize(),
        status=422,
        detail=str(error),
        code=error.code,
        errors=error.issues,
    )
