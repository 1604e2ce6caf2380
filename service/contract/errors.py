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

from collections.abc import Mapping, Sequence
from typing import ClassVar

from service.contract.problems import Issue


class ServiceError(Exception):
    """A request that was refused. The class has the HTTP status, stable code and title; the message says what to do."""

    status: ClassVar[int]
    code: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, detail: str, *, issues: Sequence[Issue] = (), headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.issues = tuple(issues)
        self.headers = dict(headers or {})


class RequestError(ServiceError):
    """The request itself is wrong: the same request always fails."""


class MalformedJsonError(RequestError):
    """The body is not JSON."""

    status = 400
    code = "malformed_json"
    title = "The body is not JSON"


class InvalidCursorError(RequestError):
    """The cursor was not issued by this service, or was issued for another list."""

    status = 400
    code = "invalid_cursor"
    title = "The cursor does not belong to this list"


class OriginNotAllowedError(RequestError):
    """A browser sent the request from a page of another site."""

    status = 403
    code = "origin_not_allowed"
    title = "Origin not allowed"


class NotAcceptableError(RequestError):
    """The service cannot produce any of the media types of the Accept header."""

    status = 406
    code = "not_acceptable"
    title = "No acceptable representation"


class BodyTooLargeError(RequestError):
    """The body exceeds the limit."""

    status = 413
    code = "body_too_large"
    title = "The body is too large"


class UnsupportedMediaTypeError(RequestError):
    """The Content-Type is not one that the endpoint reads: JSON, or a format of rows where rows are posted."""

    status = 415
    code = "unsupported_media_type"
    title = "Unsupported media type"


class HostNotAllowedError(RequestError):
    """The Host header names a host that is not in `EVENKEEL_API_ALLOWED_HOSTS`."""

    status = 421
    code = "host_not_allowed"
    title = "Host not allowed"


class NestingTooDeepError(RequestError):
    """The body nests arrays or objects too deeply."""

    status = 422
    code = "nesting_too_deep"
    title = "The body is nested too deeply"


class DuplicateKeyError(RequestError):
    """A JSON object of the body has two members with the same name."""

    status = 422
    code = "duplicate_key"
    title = "The body has a duplicate key"


class InvalidRequestError(RequestError):
    """Parameters or body do not have the required form; `issues` has an entry for each error."""

    status = 422
    code = "invalid_request"
    title = "The request is not valid"


class IdempotencyKeyReusedError(RequestError):
    """The idempotency key was used before, with another body."""

    status = 422
    code = "idempotency_key_reused"
    title = "The idempotency key was used with another body"


class InvalidRowsError(RequestError):
    """Posted rows are not valid; the one issue has the line and column."""

    status = 422
    code = "invalid_rows"
    title = "The rows are not valid"


class BatchIdReusedError(RequestError):
    """The batch id was used before, with other rows."""

    status = 422
    code = "batch_id_reused"
    title = "The batch id was used with other rows"


class NotFoundError(ServiceError):
    """The resource does not exist, or not yet."""


class RouteNotFoundError(NotFoundError):
    """No endpoint has this path."""

    status = 404
    code = "not_found"
    title = "Not found"


class JobNotFoundError(NotFoundError):
    """The job does not exist, or was deleted."""

    status = 404
    code = "job_not_found"
    title = "Job not found"


class PlanNotReadyError(NotFoundError):
    """The job does not have a plan yet, or ended without one."""

    status = 404
    code = "plan_not_ready"
    title = "The job does not have a plan yet"


class MetricsNotReadyError(NotFoundError):
    """The job does not have metrics yet, or ended without them."""

    status = 404
    code = "metrics_not_ready"
    title = "The job does not have metrics yet"


class WorkerNotFoundError(NotFoundError):
    """The worker does not exist, has stopped, or last sent a heartbeat long ago."""

    status = 404
    code = "unknown_worker"
    title = "Worker not found"


class StreamNotFoundError(NotFoundError):
    """The input stream was not declared."""

    status = 404
    code = "stream_not_found"
    title = "Stream not found"


class ResultMissingError(NotFoundError):
    """The job succeeded, but the files of its result were removed from the results directory afterwards."""

    status = 410
    code = "result_missing"
    title = "The files of the result were removed"


class ConflictError(ServiceError):
    """The request is not possible in the current state of the job, worker or stream."""


class JobNotFinishedError(ConflictError):
    """Only a finished job can be deleted."""

    status = 409
    code = "job_not_finished"
    title = "The job has not finished"


class JobAlreadyFinishedError(ConflictError):
    """A finished job cannot be cancelled."""

    status = 409
    code = "job_already_finished"
    title = "The job has already finished"


class JobStateUnknownError(ConflictError):
    """The job is in a state that only a newer version of the service defines."""

    status = 409
    code = "job_state_unknown"
    title = "The job's state is unknown to this version"


class ResultNotReadyError(ConflictError):
    """Only a job that SUCCEEDED has a result."""

    status = 409
    code = "result_not_ready"
    title = "The job does not have a result"


class NotAStreamError(ConflictError):
    """Only streaming jobs can be stopped or resumed, and have mini-batches."""

    status = 409
    code = "not_a_stream"
    title = "The job is not a streaming job"


class NotStoppedError(ConflictError):
    """Only a STOPPED job can be resumed or changed."""

    status = 409
    code = "not_stopped"
    title = "The job is not stopped"


class StateNotCompatibleError(ConflictError):
    """The stream's state was created with other settings; `issues` has an entry for each setting that differs."""

    status = 409
    code = "state_not_compatible"
    title = "The stream's state is not compatible with these settings"


class WorkerSilentError(ConflictError):
    """The worker sends no heartbeats, so it cannot process the request."""

    status = 409
    code = "worker_silent"
    title = "The worker is not responding"


class StreamDiffersError(ConflictError):
    """The stream was declared with another schema; `issues` has an entry for each difference."""

    status = 409
    code = "stream_differs"
    title = "The stream has another schema"


class StreamInUseError(ConflictError):
    """Jobs that have not finished read the stream."""

    status = 409
    code = "stream_in_use"
    title = "The stream is in use"


class UnavailableError(ServiceError):
    """The same request may succeed later. The response has a Retry-After header."""

    def __init__(self, detail: str, *, issues: Sequence[Issue] = (), retry_after_seconds: int = 5) -> None:
        super().__init__(detail, issues=issues, headers={"Retry-After": str(retry_after_seconds)})


class DatabaseUnavailableError(UnavailableError):
    """The database cannot be reached, or did not answer in time."""

    status = 503
    code = "database_unavailable"
    title = "The database is not available"


class InternalError(ServiceError):
    """An unexpected error: a defect of the service."""

    status = 500
    code = "internal_error"
    title = "Internal error"


class StoppingError(UnavailableError):
    """This API process is shutting down and cannot process the request in time."""

    status = 503
    code = "stopping"
    title = "The service is stopping"


class StorageUnavailableError(UnavailableError):
    """The object store or HDFS of a data root does not answer, or refuses the service's credentials."""

    status = 503
    code = "storage_unavailable"
    title = "The data store is not available"


class NotReadyError(UnavailableError):
    """A component that jobs need is not available; `issues` has an entry for each."""

    status = 503
    code = "not_ready"
    title = "The service is not ready"


class WorkerUnavailableError(UnavailableError):
    """No worker answered in time."""

    status = 503
    code = "worker_unavailable"
    title = "No worker answered in time"


class UnauthenticatedError(RequestError):
    """The request has no API key, or the key is unknown, expired or revoked."""

    status = 401
    code = "unauthenticated"
    title = "A valid API key is required"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, headers={"WWW-Authenticate": 'Bearer realm="evenkeel"'})


class MissingScopeError(RequestError):
    """The caller's API key does not have the scope that the request needs."""

    status = 403
    code = "missing_scope"
    title = "The API key does not have the required scope"


class KeyNotFoundError(NotFoundError):
    """The API key does not exist."""

    status = 404
    code = "key_not_found"
    title = "API key not found"


class LastAdminKeyError(ConflictError):
    """Without this key, nobody could create another key over HTTP."""

    status = 409
    code = "last_admin_key"
    title = "This is the last key with the scope admin"


class QuotaError(ServiceError):
    """The tenant has reached a limit. The response has a Retry-After header."""

    def __init__(self, detail: str, *, retry_after_seconds: int) -> None:
        super().__init__(detail, headers={"Retry-After": str(retry_after_seconds)})


class TooManyJobsError(QuotaError):
    """The tenant has reached the limit of queued jobs."""

    status = 429
    code = "too_many_jobs"
    title = "Too many queued jobs"


class TooManyExplanationsError(QuotaError):
    """The tenant has reached the limit of explanations that wait or run at the same time."""

    status = 429
    code = "too_many_explanations"
    title = "Too many explanations at once"


class TooManyStreamsError(QuotaError):
    """The tenant has reached the limit of input streams."""

    status = 429
    code = "too_many_streams"
    title = "Too many streams"


class TooManyPostedBytesError(QuotaError):
    """The posted rows of the tenant have reached the limit of their total size."""

    status = 429
    code = "too_many_posted_bytes"
    title = "Too many bytes of posted rows"
