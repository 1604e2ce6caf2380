"""The headers of responses, each declared once; the OpenAPI document has them in `components.headers`."""

from __future__ import annotations

from typing import Any


def _declared(description: str, example: str) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string"}, "example": example}


HEADERS = {
    "ETag": _declared("Strong entity tag of this representation.", '"3-5f1d0c7b9a3e2d41"'),
    "IdempotencyReplayed": _declared("`true` if an earlier request with this Idempotency-Key created the job.", "true"),
    "Location": _declared("Path of the job.", "/v1/jobs/0b9f6c1e-6a44-4b7e-9d0e-0f6d5a3c2b1a"),
    "NextPoll": _declared("Seconds to wait before the next poll; absent if the job has finished or is STOPPED.", "1"),
    "PreferenceApplied": _declared("The wait that the service applied.", "wait=10"),
    "RetryAfter": _declared("Seconds after which the same request may succeed.", "5"),
    "WWWAuthenticate": _declared("How to authenticate.", 'Bearer realm="evenkeel"'),
}
"""The OpenAPI declaration of each header, by its name in `components.headers`."""


def _shared(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/headers/{name}"}


ETAG = {"ETag": _shared("ETag")}
OF_A_JOB = {**ETAG, "Retry-After": _shared("NextPoll")}
OF_A_READ_JOB = {**OF_A_JOB, "Preference-Applied": _shared("PreferenceApplied")}
OF_A_SUBMITTED_JOB = {
    "Location": _shared("Location"),
    "Idempotency-Replayed": _shared("IdempotencyReplayed"),
    **OF_A_JOB,
}
RETRY_AFTER = {"Retry-After": _shared("RetryAfter")}
CHALLENGE = {"WWW-Authenticate": _shared("WWWAuthenticate")}
