"""What the service answers when it does not do what was asked.

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
    ├── NotFoundError                                       there is no such thing (yet)
    │   ├── RouteNotFoundError              404     not_found
    │   ├── JobNotFoundError                404     job_not_found
    │   ├── PlanNotReadyError               404     plan_not_ready
    │   ├── MetricsNotReadyError            404     metrics_not_ready
    │   ├── WorkerNotFoundError             404     unknown_worker
    │   ├── StreamNotFoundError             404     stream_not_found
    │   ├── KeyNotFoundError                404     key_not_found
    │   └── ResultMissingError              410     result_missing
    ├── ConflictError                                       not in the state that job, worker or stream is in
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
    ├── QuotaError                                          the tenant has as much as it may
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

Those about keys and quotas are in `service.contract.errors`. What is wrong with a job itself is a
`service.contract.problems.SpecError`, answered with 422. `service.api.problems` renders both; nothing else does.

Refusals for the sake of who asks: keys, scopes, quotas. They stand in the tree of `service.contract.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from service.contract.problems import Issue


class ServiceError(Exception):
    """A refusal. The class carries HTTP status, stable code and title; the message says what to do about it."""

    status: ClassVar[int]
    code: ClassVar[str]
    title: ClassVar[str]

    def __init__(self, detail: str, *, issues: Sequence[Issue] = (), headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.issues = tuple(issues)
        self.headers = dict(headers or {})


class RequestError(ServiceError):
    """The request itself is wrong: sent again, it fails again."""


class MalformedJsonError(RequestError):
    """The body is not JSON."""

    status = 400
    code = "malformed_json"
    title = "The body is not JSON"


class InvalidCursorError(RequestError):
    """A cursor that this service did not make, or made for another list."""

    status = 400
    code = "invalid_cursor"
    title = "The cursor does not belong to this list"


class OriginNotAllowedError(RequestError):
    """A browser sent the request for a page of another site."""

    status = 403
    code = "origin_not_allowed"
    title = "Requests from this origin are refused"


class NotAcceptableError(RequestError):
    """No offered representation is acceptable."""

    status = 406
    code = "not_acceptable"
    title = "No acceptable representation"


class BodyTooLargeError(RequestError):
    """The body exceeds the limit."""

    status = 413
    code = "body_too_large"
    title = "The body is too large"


class UnsupportedMediaTypeError(RequestError):
    """The body is not declared as what is read here: JSON, or rows where rows are posted."""

    status = 415
    code = "unsupported_media_type"
    title = "The body is of another type than is read here"


class HostNotAllowedError(RequestError):
    """The request names a host that this service is not."""

    status = 421
    code = "host_not_allowed"
    title = "This host is not served here"


class NestingTooDeepError(RequestError):
    """The body nests arrays or objects without end."""

    status = 422
    code = "nesting_too_deep"
    title = "The body is nested too deeply"


class DuplicateKeyError(RequestError):
    """An object of the body has two members of one name."""

    status = 422
    code = "duplicate_key"
    title = "The body gives a key twice"


class InvalidRequestError(RequestError):
    """Parameters or body do not have the required shape; `issues` names every place."""

    status = 422
    code = "invalid_request"
    title = "The request is not valid"


class IdempotencyKeyReusedError(RequestError):
    """The key was given before, with another body."""

    status = 422
    code = "idempotency_key_reused"
    title = "The idempotency key belongs to another submission"


class InvalidRowsError(RequestError):
    """Posted rows cannot be taken; the one issue names line and column."""

    status = 422
    code = "invalid_rows"
    title = "The rows cannot be taken"


class BatchIdReusedError(RequestError):
    """The batch id was given before, with other rows."""

    status = 422
    code = "batch_id_reused"
    title = "The batch id belongs to other rows"


class NotFoundError(ServiceError):
    """There is no such thing, or not yet."""


class RouteNotFoundError(NotFoundError):
    """No such path."""

    status = 404
    code = "not_found"
    title = "There is nothing here"


class JobNotFoundError(NotFoundError):
    """No such job, or no longer."""

    status = 404
    code = "job_not_found"
    title = "There is no such job"


class PlanNotReadyError(NotFoundError):
    """The job has no plan (yet)."""

    status = 404
    code = "plan_not_ready"
    title = "The job has no plan yet"


class MetricsNotReadyError(NotFoundError):
    """The job has no metrics (yet)."""

    status = 404
    code = "metrics_not_ready"
    title = "The job has no metrics yet"


class WorkerNotFoundError(NotFoundError):
    """No such worker, or it has stopped, or fell silent long ago."""

    status = 404
    code = "unknown_worker"
    title = "There is no such worker"


class StreamNotFoundError(NotFoundError):
    """No such stream was declared."""

    status = 404
    code = "stream_not_found"
    title = "There is no such stream"


class ResultMissingError(NotFoundError):
    """The job succeeded and its files have since been removed from the results directory."""

    status = 410
    code = "result_missing"
    title = "The result's files are gone"


class ConflictError(ServiceError):
    """Not possible in the state that the job, worker or stream is in."""


class JobNotFinishedError(ConflictError):
    """Only finished jobs are deleted."""

    status = 409
    code = "job_not_finished"
    title = "The job has not finished"


class JobAlreadyFinishedError(ConflictError):
    """A finished job cannot be cancelled."""

    status = 409
    code = "job_already_finished"
    title = "The job has already finished"


class JobStateUnknownError(ConflictError):
    """The job is in a state that only a newer version of the service knows."""

    status = 409
    code = "job_state_unknown"
    title = "This version does not know the job's state"


class ResultNotReadyError(ConflictError):
    """Only a job that SUCCEEDED has a result."""

    status = 409
    code = "result_not_ready"
    title = "The job has no result"


class NotAStreamError(ConflictError):
    """Only jobs of the streaming modes stop, go on and have mini-batches."""

    status = 409
    code = "not_a_stream"
    title = "The job is not a stream"


class NotStoppedError(ConflictError):
    """Only a job that rests can be resumed or changed."""

    status = 409
    code = "not_stopped"
    title = "The job is not stopped"


class StateNotCompatibleError(ConflictError):
    """The state of the stream was made with other settings; `issues` names each."""

    status = 409
    code = "state_not_compatible"
    title = "The state does not go with these settings"


class WorkerSilentError(ConflictError):
    """A worker that gives no sign of life cannot be asked for anything."""

    status = 409
    code = "worker_silent"
    title = "The worker gives no sign of life"


class StreamDiffersError(ConflictError):
    """The stream was declared with another schema; `issues` names each difference."""

    status = 409
    code = "stream_differs"
    title = "The stream has another schema"


class StreamInUseError(ConflictError):
    """Jobs that have not finished read the stream."""

    status = 409
    code = "stream_in_use"
    title = "Jobs read the stream"


class UnavailableError(ServiceError):
    """Not now: the same request may succeed later. Carries Retry-After."""

    def __init__(self, detail: str, *, issues: Sequence[Issue] = (), retry_after_seconds: int = 5) -> None:
        super().__init__(detail, issues=issues, headers={"Retry-After": str(retry_after_seconds)})


class DatabaseUnavailableError(UnavailableError):
    """The database does not answer, or not in time."""

    status = 503
    code = "database_unavailable"
    title = "The database does not answer"


class InternalError(ServiceError):
    """The service failed in a way that it does not know."""

    status = 500
    code = "internal_error"
    title = "Internal error"


class StoppingError(UnavailableError):
    """This process of the API is about to end, and has no more time for the request."""

    status = 503
    code = "stopping"
    title = "The service is stopping"


class StorageUnavailableError(UnavailableError):
    """The object store or HDFS behind a data root does not answer, or refuses the service's credentials."""

    status = 503
    code = "storage_unavailable"
    title = "The store of the data cannot be used"


class NotReadyError(UnavailableError):
    """A part that jobs need is missing; `issues` names each."""

    status = 503
    code = "not_ready"
    title = "The service is not ready"


class WorkerUnavailableError(UnavailableError):
    """No worker answered in time."""

    status = 503
    code = "worker_unavailable"
    title = "No worker answered in time"


class UnauthenticatedError(RequestError):
    """The caller shows no API key, or none that holds."""

    status = 401
    code = "unauthenticated"
    title = "An API key is needed"

    def __init__(self, detail: str) -> None:
        super().__init__(detail, headers={"WWW-Authenticate": 'Bearer realm="evenkeel"'})


class MissingScopeError(RequestError):
    """The caller's API key is for other things."""

    status = 403
    code = "missing_scope"
    title = "The API key may not do that"


class KeyNotFoundError(NotFoundError):
    """No such API key."""

    status = 404
    code = "key_not_found"
    title = "There is no such API key"


class LastAdminKeyError(ConflictError):
    """Without this key, nobody could make another over HTTP."""

    status = 409
    code = "last_admin_key"
    title = "This is the last key with the scope admin"


class QuotaError(ServiceError):
    """The tenant has as much as it may. Carries Retry-After."""

    def __init__(self, detail: str, *, retry_after_seconds: int) -> None:
        super().__init__(detail, headers={"Retry-After": str(retry_after_seconds)})


class TooManyJobsError(QuotaError):
    """The tenant's jobs that wait already are as many as may be."""

    status = 429
    code = "too_many_jobs"
    title = "Too many jobs are waiting"


class TooManyExplanationsError(QuotaError):
    """The tenant waits for as many explanations as it may."""

    status = 429
    code = "too_many_explanations"
    title = "Too many explanations at once"


class TooManyStreamsError(QuotaError):
    """The tenant has declared as many streams as it may."""

    status = 429
    code = "too_many_streams"
    title = "Too many streams"


class TooManyPostedBytesError(QuotaError):
    """The rows that the tenant has posted take as much room as they may."""

    status = 429
    code = "too_many_posted_bytes"
    title = "Posted rows take too much room"
