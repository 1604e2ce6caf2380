"""The errors that the API answers, each with its HTTP status, code and title.

    ServiceError                            status  code
    ├── RequestError                                        the request itself is wrong
    │   ├── MalformedJsonError              400     malformed_json
    │   ├── InvalidCursorError              400     invalid_cursor
    │   ├── UnauthenticatedError            401     unauthenticated
    │   ├── OriginNotAllowedError           403     origin_not_allowed
    │   ├── MissingScopeError               403     missing_scope
    │   ├── NotAcceptableError              406     not_acceptable
    │   ├── BodyTooLargeError               413     body_too_large
    │   ├── UnsupportedMediaTypeError       415     unsupported_media_type
    │   ├── HostNotAllowedError             421     host_not_allowed
    │   ├── NestingTooDeepError             422     nesting_too_deep
    │   ├── DuplicateKeyError               422     duplicate_key
    │   ├── InvalidRequestError             422     invalid_request
    │   ├── IdempotencyKeyReusedError       422     idempotency_key_reused
    │   ├── InvalidLookupError              422     invalid_lookup
    │   ├── InvalidRowsError                422     invalid_rows
    │   └── BatchIdReusedError              422     batch_id_reused
    ├── NotFoundError                                       the resource does not exist (yet)
    │   ├── RouteNotFoundError              404     not_found
    │   ├── JobNotFoundError                404     job_not_found
    │   ├── PlanNotReadyError               404     plan_not_ready
    │   ├── MetricsNotReadyError            404     metrics_not_ready
    │   ├── WorkerNotFoundError             404     unknown_worker
    │   ├── StreamNotFoundError             404     stream_not_found
    │   ├── KeyNotFoundError                404     key_not_found
    │   └── ResultMissingError              410     result_missing
    ├── ConflictError                                       not possible in the current state
    │   ├── JobNotFinishedError             409     job_not_finished
    │   ├── JobAlreadyFinishedError         409     job_already_finished
    │   ├── JobStateUnknownError            409     job_state_unknown
    │   ├── ResultNotReadyError             409     result_not_ready
    │   ├── NotAStreamError                 409     not_a_stream
    │   ├── NotStoppedError                 409     not_stopped
    │   ├── StateNotCompatibleError         409     state_not_compatible
    │   ├── WorkerSilentError               409     worker_silent
    │   ├── StreamDiffersError              409     stream_differs
    │   ├── StreamInUseError                409     stream_in_use
    │   └── LastAdminKeyError               409     last_admin_key
    ├── QuotaError                                          the tenant has reached a limit
    │   ├── TooManyJobsError                429     too_many_jobs
    │   ├── TooManyExplanationsError        429     too_many_explanations
    │   ├── TooManyStreamsError             429     too_many_streams
    │   └── TooManyPostedBytesError         429     too_many_posted_bytes
    ├── InternalError                       500     internal_error
    └── UnavailableError                                    try again later
        ├── DatabaseUnavailableError        503     database_unavailable
        ├── StoppingError                   503     stopping
        ├── StorageUnavailableError         503     storage_unavailable
        ├── NotReadyError                   503     not_ready
        └── WorkerUnavailableError          503     worker_unavailable

An error in a job itself is a `service.contract.problems.SpecError`, answered with 422. Only `service.api.problems`
renders both as HTTP responses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from .problems import Issue


class ServiceError(Exception):
    """A request that was refused. The class has the HTTP status, stable code and title; the message says what to do.

    For the documentation, the docstring of each class with a code says what is wrong, and `remedy` what to do.
    """

    status: ClassVar[int]
    code: ClassVar[str]
    title: ClassVar[str]
    remedy: ClassVar[str]

    def __init_subclass__(
        cls,
        *,
        status: int | None = None,
        code: str | None = None,
        title: str | None = None,
        remedy: str | None = None,
    ) -> None:
        for name, value in (("status", status), ("code", code), ("title", title), ("remedy", remedy)):
            if value is not None:
                setattr(cls, name, value)

    def __init__(self, detail: str, *, issues: Sequence[Issue] = (), headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.issues = tuple(issues)
        self.headers = dict(headers or {})

    @classmethod
    def meaning(cls) -> str:
        """Returns what is wrong, for the documentation: the first paragraph of the docstring, in one line."""
        return " ".join((cls.__doc__ or "").partition("\n\n")[0].split())

    @classmethod
    def with_codes(cls) -> Iterator[type[ServiceError]]:
        """Yields this class and its subclasses, as far as they have a code of their own."""
        if "code" in vars(cls):
            yield cls
        for subclass in cls.__subclasses__():
            yield from subclass.with_codes()


class RequestError(ServiceError):
    """The request itself is wrong: the same request always fails."""


class MalformedJsonError(
    RequestError,
    status=400,
    code="malformed_json",
    title="The body is not JSON",
    remedy="Send one JSON document as UTF-8. The detail has the place of the first error.",
):
    """The body is not JSON."""


class InvalidCursorError(
    RequestError,
    status=400,
    code="invalid_cursor",
    title="The cursor does not belong to this list",
    remedy="Read the list again from its first page, and send the `next_cursor` of the previous page unchanged.",
):
    """The cursor was not issued by this service, or was issued for another list."""


class UnauthenticatedError(
    RequestError,
    status=401,
    code="unauthenticated",
    title="A valid API key is required",
    remedy="Send `Authorization: Bearer KEY` with a valid key. `evenkeel keys create` creates one.",
):
    """The request has no API key, or the key is unknown, expired or revoked."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, headers={"WWW-Authenticate": 'Bearer realm="evenkeel"'})


class OriginNotAllowedError(
    RequestError,
    status=403,
    code="origin_not_allowed",
    title="Origin not allowed",
    remedy="Send the request from a page of this service, or add the site to `EVENKEEL_API_ALLOWED_ORIGINS`.",
):
    """A browser sent the request from a page of another site."""


class MissingScopeError(
    RequestError,
    status=403,
    code="missing_scope",
    title="The API key does not have the required scope",
    remedy="Use a key with the scope that the detail names.",
):
    """The caller's API key does not have the scope that the request needs."""


class NotAcceptableError(
    RequestError,
    status=406,
    code="not_acceptable",
    title="No acceptable representation",
    remedy="Name one of the media types of the detail in `Accept`, or leave the header out.",
):
    """The service cannot produce any of the media types of the Accept header."""


class BodyTooLargeError(
    RequestError,
    status=413,
    code="body_too_large",
    title="The body is too large",
    remedy="Post rows in several batches. For a job, store long lists of values in a file and join it.",
):
    """The body exceeds the limit."""


class UnsupportedMediaTypeError(
    RequestError,
    status=415,
    code="unsupported_media_type",
    title="Unsupported media type",
    remedy="Set `Content-Type` to a media type that the endpoint reads; the detail lists them.",
):
    """The Content-Type is not one that the endpoint reads: JSON, or a format of rows where rows are posted."""


class HostNotAllowedError(
    RequestError,
    status=421,
    code="host_not_allowed",
    title="Host not allowed",
    remedy="Use a host name of the list, or add the name to `EVENKEEL_API_ALLOWED_HOSTS`.",
):
    """The Host header names a host that is not in `EVENKEEL_API_ALLOWED_HOSTS`."""


class NestingTooDeepError(
    RequestError,
    status=422,
    code="nesting_too_deep",
    title="The body is nested too deeply",
    remedy="Nest fewer levels. In a query, use derived tables or common table expressions.",
):
    """The body nests arrays or objects too deeply."""


class DuplicateKeyError(
    RequestError,
    status=422,
    code="duplicate_key",
    title="The body has a duplicate key",
    remedy="Remove all members of the name except one.",
):
    """A JSON object has two members of one name."""


class InvalidRequestError(
    RequestError,
    status=422,
    code="invalid_request",
    title="The request is not valid",
    remedy="Correct the fields that `errors` names.",
):
    """Parameters or body are invalid; `errors` has each error."""


class IdempotencyKeyReusedError(
    RequestError,
    status=422,
    code="idempotency_key_reused",
    title="The idempotency key was used with another body",
    remedy="Use a new key for a new job, and the same body to repeat a submission.",
):
    """The idempotency key was used before, with another body."""


class InvalidLookupError(
    RequestError,
    status=422,
    code="invalid_lookup",
    title="The key does not fit the result",
    remedy="Send a JSON object with columns of the result; for a streaming job, with all columns of its keys.",
):
    """The `key` is no JSON object, or names columns or values that the result cannot have."""


class InvalidRowsError(
    RequestError,
    status=422,
    code="invalid_rows",
    title="The rows are not valid",
    remedy="Correct the row and post the batch again under the same id: none of its rows was stored.",
):
    """Posted rows are not valid; the one issue has the line and column."""


class BatchIdReusedError(
    RequestError,
    status=422,
    code="batch_id_reused",
    title="The batch id was used with other rows",
    remedy="Use a new id for new rows, and the same rows to repeat a post.",
):
    """The batch id was used before, with other rows."""


class NotFoundError(ServiceError, status=404):
    """The resource does not exist, or not yet."""


class RouteNotFoundError(
    NotFoundError, code="not_found", title="Not found", remedy="Correct the path; `/openapi.json` lists all endpoints."
):
    """No endpoint has this path."""


class JobNotFoundError(
    NotFoundError, code="job_not_found", title="Job not found", remedy="Check the id and the tenant of the API key."
):
    """The job does not exist, or was deleted."""


class PlanNotReadyError(
    NotFoundError,
    code="plan_not_ready",
    title="The job does not have a plan yet",
    remedy="Read it again once the job is RUNNING. If the job has ended, its `error` has the reason.",
):
    """The job does not have a plan yet, or ended without one."""


class MetricsNotReadyError(
    NotFoundError,
    code="metrics_not_ready",
    title="The job does not have metrics yet",
    remedy="Read them again when the job has ended.",
):
    """The job does not have metrics yet, or ended without them."""


class WorkerNotFoundError(
    NotFoundError, code="unknown_worker", title="Worker not found", remedy="List the workers with `GET /v1/workers`."
):
    """The worker does not exist, has stopped, or last sent a heartbeat long ago."""


class StreamNotFoundError(
    NotFoundError,
    code="stream_not_found",
    title="Stream not found",
    remedy="Declare the stream with `PUT /v1/streams/{name}`.",
):
    """The input stream was not declared."""


class KeyNotFoundError(
    NotFoundError, code="key_not_found", title="API key not found", remedy="List the keys with `GET /v1/keys`."
):
    """The API key does not exist."""


class ResultMissingError(
    NotFoundError,
    status=410,
    code="result_missing",
    title="The files of the result were removed",
    remedy="Submit the job again. Exclude the results directory from other programs that remove old files.",
):
    """The job succeeded, but the files of its result were removed from the results directory afterwards."""


class ConflictError(ServiceError, status=409):
    """The request is not possible in the current state of the job, worker or stream."""


class JobNotFinishedError(
    ConflictError,
    code="job_not_finished",
    title="The job has not finished",
    remedy="Cancel or stop the job and wait for its end.",
):
    """Only a finished job can be deleted."""


class JobAlreadyFinishedError(
    ConflictError, code="job_already_finished", title="The job has already finished", remedy="Nothing has to be done."
):
    """A finished job cannot be cancelled."""


class JobStateUnknownError(
    ConflictError,
    code="job_state_unknown",
    title="The job's state is unknown to this version",
    remedy="Upgrade this API process to the version of the others.",
):
    """Only a newer version of the service defines the job's state or fields."""


class ResultNotReadyError(
    ConflictError,
    code="result_not_ready",
    title="The job does not have a result",
    remedy="Wait for the job to end, for example with `Prefer: wait=45`. If it failed, its `error` has the reason.",
):
    """Only a job that SUCCEEDED has a result."""


class NotAStreamError(
    ConflictError, code="not_a_stream", title="The job is not a streaming job", remedy="To end a batch job, cancel it."
):
    """Only streaming jobs can be stopped or resumed, and have mini-batches."""


class NotStoppedError(
    ConflictError,
    code="not_stopped",
    title="The job is not stopped",
    remedy="Stop the job, and wait until it is STOPPED.",
):
    """Only a STOPPED job can be resumed or changed."""


class StateNotCompatibleError(
    ConflictError,
    code="state_not_compatible",
    title="The stream's state is not compatible with these settings",
    remedy='Restore the previous values, or resume with `{"from": "scratch"}`, which builds a new state.',
):
    """The stream's state was created with other settings; `errors` has each setting that differs."""


class WorkerSilentError(
    ConflictError,
    code="worker_silent",
    title="The worker is not responding",
    remedy="Check its process and its connection to the database. Another worker queues its jobs again.",
):
    """The worker sends no heartbeats, so it cannot process the request."""


class StreamDiffersError(
    ConflictError,
    code="stream_differs",
    title="The stream has another schema",
    remedy="Declare the new schema under another name, or delete the stream first.",
):
    """The stream was declared with another schema; `errors` has each difference."""


class StreamInUseError(
    ConflictError, code="stream_in_use", title="The stream is in use", remedy="Cancel or delete these jobs first."
):
    """Jobs that have not finished read the stream."""


class LastAdminKeyError(
    ConflictError,
    code="last_admin_key",
    title="This is the last key with the scope admin",
    remedy="Create another key with the scope `admin` first, or revoke this one with `evenkeel keys revoke`.",
):
    """Without this key, nobody could create another key over HTTP."""


class QuotaError(ServiceError, status=429):
    """The tenant has reached a limit. The response has a Retry-After header."""

    def __init__(self, detail: str, *, retry_after_seconds: int) -> None:
        super().__init__(detail, headers={"Retry-After": str(retry_after_seconds)})


class TooManyJobsError(
    QuotaError,
    code="too_many_jobs",
    title="Too many queued jobs",
    remedy="Submit again when jobs of the tenant have started. An operator can raise `EVENKEEL_LIMITS_QUEUED_JOBS`.",
):
    """The tenant has reached the limit of queued jobs."""


class TooManyExplanationsError(
    QuotaError,
    code="too_many_explanations",
    title="Too many explanations at once",
    remedy="Repeat the request after `Retry-After`. An operator can raise `EVENKEEL_LIMITS_EXPLANATIONS`.",
):
    """The tenant has reached the limit of explanations that wait or run at the same time."""


class TooManyStreamsError(
    QuotaError,
    code="too_many_streams",
    title="Too many streams",
    remedy="Delete streams that are not used. An operator can raise `EVENKEEL_LIMITS_STREAMS`.",
):
    """The tenant has reached the limit of input streams."""


class TooManyPostedBytesError(
    QuotaError,
    code="too_many_posted_bytes",
    title="Too many bytes of posted rows",
    remedy="Delete streams that are not used. An operator can raise `EVENKEEL_LIMITS_POSTED_BYTES`.",
):
    """The posted rows of the tenant have reached the limit of their total size."""


class InternalError(
    ServiceError,
    status=500,
    code="internal_error",
    title="Internal error",
    remedy="Report it with the `request_id`, under which the log of the service has the details.",
):
    """An unexpected error: a defect of the service."""


class UnavailableError(ServiceError, status=503):
    """The same request may succeed later. The response has a Retry-After header."""

    def __init__(self, detail: str, *, issues: Sequence[Issue] = (), retry_after_seconds: int = 5) -> None:
        super().__init__(detail, issues=issues, headers={"Retry-After": str(retry_after_seconds)})


class DatabaseUnavailableError(
    UnavailableError,
    code="database_unavailable",
    title="The database is not available",
    remedy="Repeat the request after `Retry-After`. If the change may have been stored, the detail says so: check.",
):
    """The database did not answer in time."""


class StoppingError(
    UnavailableError,
    code="stopping",
    title="The service is stopping",
    remedy="Repeat the request: another process answers it, or this one after its restart.",
):
    """This API process is shutting down."""


class StorageUnavailableError(
    UnavailableError,
    code="storage_unavailable",
    title="The data store is not available",
    remedy="Repeat the request later. An operator checks the store and its credentials (`EVENKEEL_DATA_S3_…`).",
):
    """The store of a data root does not answer, or refuses the service's credentials."""


class NotReadyError(
    UnavailableError,
    code="not_ready",
    title="The service is not ready",
    remedy="Repair the component that the issue names; `evenkeel doctor` checks all of them.",
):
    """A component that jobs need is not available; `errors` has each."""


class WorkerUnavailableError(
    UnavailableError,
    code="worker_unavailable",
    title="No worker answered in time",
    remedy="Repeat the request. If it fails again, start a worker or check that one is READY with `evenkeel workers`.",
):
    """No worker answered in time."""
