"""Provokes each problem that needs no worker, with the generated Python client."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from typing import Any

from evenkeel_openapi import AuthenticatedClient
from evenkeel_openapi.api.jobs import cancel_job, delete_job, get_job, list_jobs, resume_job, stop_job, submit_job
from evenkeel_openapi.api.keys import get_me, list_keys, revoke_key
from evenkeel_openapi.api.operations import get_readiness
from evenkeel_openapi.api.reports import explain_job, get_metrics, get_plan
from evenkeel_openapi.api.results import get_result
from evenkeel_openapi.api.streams import append_rows, declare_stream, delete_stream, get_stream
from evenkeel_openapi.api.workers import drain_worker, get_worker
from evenkeel_openapi.models import Job, JobSpec, KeyPage, Problem, Resumption, StreamDeclaration
from evenkeel_openapi.types import UNSET, File, Unset

from tests.clients.python.journey import client_of
from tests.clients.python.situations import CLICKS, ORDERS, SCHEMA, Situation, provokes

JSON = "application/json"
UNKNOWN = "00000000-0000-4000-8000-000000000000"


def submitted(
    client: AuthenticatedClient, spec: dict[str, Any], key: str | Unset = UNSET, **changed: Any
) -> Job | Problem | None:
    return submit_job.sync(client=client, body=JobSpec.from_dict({**spec, **changed}), idempotency_key=key)


def queued(client: AuthenticatedClient, spec: dict[str, Any]) -> str:
    job = submitted(client, spec)
    assert isinstance(job, Job), job
    return str(job.id)


def posted(client: AuthenticatedClient, rows: str, batch_id: str = "1") -> object:
    return append_rows.sync("clicks", client=client, batch_id=batch_id, body=File(BytesIO(rows.encode())))


def with_clicks(situation: Situation) -> AuthenticatedClient:
    client = situation.newcomer()
    declare_stream.sync("clicks", client=client, body=StreamDeclaration(schema=SCHEMA))
    return client


def sent(situation: Situation, content: str, media_type: str = JSON) -> object:
    """Returns the client's parsed response to a body that it would not send itself."""
    client = situation.newcomer()
    http = client.get_httpx_client()
    answer = http.post("/v1/jobs", content=content, headers={"Content-Type": media_type})
    return submit_job._build_response(client=client, response=answer).parsed


@provokes("not_ready")
def _(situation: Situation) -> object:
    return get_readiness.sync(client=situation.admin)


@provokes("unauthenticated")
def _(situation: Situation) -> object:
    return get_me.sync(client=client_of(situation.acts.address, "ek_unheard_of"))


@provokes("missing_scope")
def _(situation: Situation) -> object:
    reader = client_of(situation.acts.address, situation.acts.reader())
    return submitted(reader, ORDERS)


@provokes("origin_not_allowed")
def _(situation: Situation) -> object:
    return cancel_job.sync(UNKNOWN, client=situation.newcomer(Origin="https://elsewhere.example"))


@provokes("host_not_allowed")
def _(situation: Situation) -> object:
    return get_me.sync(client=situation.newcomer(Host="elsewhere.example"))


@provokes("invalid_request")
def _(situation: Situation) -> object:
    return list_jobs.sync(client=situation.newcomer(), page_size=0)


@provokes("malformed_json")
def _(situation: Situation) -> object:
    return sent(situation, '{"sql": ')


@provokes("duplicate_key")
def _(situation: Situation) -> object:
    return sent(situation, '{"name": "a", "name": "b"}')


@provokes("nesting_too_deep")
def _(situation: Situation) -> object:
    return sent(situation, '{"a":' * 200 + "1" + "}" * 200)


@provokes("unsupported_media_type")
def _(situation: Situation) -> object:
    return sent(situation, "sql=SELECT", "application/x-www-form-urlencoded")


@provokes("body_too_large")
def _(situation: Situation) -> object:
    return submitted(situation.newcomer(), ORDERS, sql=f"SELECT '{'x' * 50_000}' AS n FROM o")


@provokes("unknown_column")
def _(situation: Situation) -> object:
    return submitted(situation.newcomer(), ORDERS, sql="SELECT COUNT(DISTINCT o.categry) AS n FROM o")


@provokes("idempotency_key_reused")
def _(situation: Situation) -> object:
    client = situation.newcomer()
    submitted(client, ORDERS, "nightly-2026-01-31")
    return submitted(client, ORDERS, "nightly-2026-01-31", name="another")


@provokes("too_many_jobs")
def _(situation: Situation) -> object:
    client = situation.newcomer()
    while isinstance(answer := submitted(client, ORDERS), Job):
        pass
    return answer


@provokes("internal_error")
def _(situation: Situation) -> object:
    client = situation.newcomer()
    job_id = queued(client, ORDERS)
    situation.acts.spoil(job_id)
    return get_job.sync(job_id, client=client)


@provokes("storage_unavailable")
def _(situation: Situation) -> object:
    away = {"o": {"format": "parquet", "path": "s3a://flights/2013/"}}
    return submitted(situation.newcomer(), ORDERS, tables=away)


@provokes("database_unavailable")
def _(situation: Situation) -> object:
    client = situation.newcomer()
    with situation.acts.stuck():
        return submitted(client, ORDERS)


@provokes("invalid_cursor")
def _(situation: Situation) -> object:
    return list_jobs.sync(client=situation.newcomer(), cursor="of another list")


@provokes("invalid_lookup")
def _(situation: Situation) -> object:
    return get_result.sync(UNKNOWN, client=situation.newcomer(), key="all")


@provokes("job_not_found")
def _(situation: Situation) -> object:
    return get_job.sync(UNKNOWN, client=situation.newcomer())


@provokes("job_not_finished")
def _(situation: Situation) -> object:
    client = situation.newcomer()
    return delete_job.sync(queued(client, ORDERS), client=client)


@provokes("job_state_unknown")
def _(situation: Situation) -> object:
    client = situation.newcomer()
    job_id = queued(client, ORDERS)
    situation.acts.move_on(job_id)
    return delete_job.sync(job_id, client=client)


@provokes("not_a_stream")
def _(situation: Situation) -> object:
    client = situation.newcomer()
    return stop_job.sync(queued(client, ORDERS), client=client)


@provokes("not_stopped")
def _(situation: Situation) -> object:
    client = with_clicks(situation)
    return resume_job.sync(queued(client, CLICKS), client=client, body=Resumption())


@provokes("result_not_ready")
def _(situation: Situation) -> object:
    client = situation.newcomer()
    return get_result.sync(queued(client, ORDERS), client=client)


@provokes("not_acceptable")
def _(situation: Situation) -> object:
    return get_result.sync(UNKNOWN, client=situation.newcomer(Accept="application/vnd.ms-excel"))


@provokes("plan_not_ready")
def _(situation: Situation) -> object:
    client = situation.newcomer()
    return get_plan.sync(queued(client, ORDERS), client=client)


@provokes("metrics_not_ready")
def _(situation: Situation) -> object:
    client = situation.newcomer()
    return get_metrics.sync(queued(client, ORDERS), client=client)


def _explained_twice_at_once(situation: Situation, code: str) -> object:
    """Requests two concurrent explanations with a limit of one and without a worker."""
    client = situation.newcomer()
    client.get_httpx_client()
    with ThreadPoolExecutor(2) as pool:
        asked = [pool.submit(explain_job.sync, client=client, body=JobSpec.from_dict(ORDERS)) for _ in range(2)]
    answers = [each.result() for each in asked]
    (found,) = (answer for answer in answers if isinstance(answer, Problem) and answer.code == code)
    return found


@provokes("worker_unavailable")
def _(situation: Situation) -> object:
    return _explained_twice_at_once(situation, "worker_unavailable")


@provokes("too_many_explanations")
def _(situation: Situation) -> object:
    return _explained_twice_at_once(situation, "too_many_explanations")


@provokes("stream_not_found")
def _(situation: Situation) -> object:
    return get_stream.sync("clicks", client=situation.newcomer())


@provokes("stream_differs")
def _(situation: Situation) -> object:
    declaration = StreamDeclaration(schema="uid STRING, page STRING")
    return declare_stream.sync("clicks", client=with_clicks(situation), body=declaration)


@provokes("stream_in_use")
def _(situation: Situation) -> object:
    client = with_clicks(situation)
    queued(client, CLICKS)
    return delete_stream.sync("clicks", client=client)


@provokes("too_many_streams")
def _(situation: Situation) -> object:
    client = with_clicks(situation)
    declaration = StreamDeclaration(schema=SCHEMA)
    declare_stream.sync("views", client=client, body=declaration)
    return declare_stream.sync("orders", client=client, body=declaration)


@provokes("invalid_rows")
def _(situation: Situation) -> object:
    return posted(with_clicks(situation), '{"uid": 1, "page": "/"}\n{"uid": "two", "page": "/cart"}\n')


@provokes("batch_id_reused")
def _(situation: Situation) -> object:
    client = with_clicks(situation)
    posted(client, '{"uid": 1, "page": "/"}\n')
    return posted(client, '{"uid": 2, "page": "/"}\n')


@provokes("too_many_posted_bytes")
def _(situation: Situation) -> object:
    client = with_clicks(situation)
    rows = "".join(f'{{"uid": {uid}, "page": "/{uid * uid}"}}\n' for uid in range(1000))
    posted(client, rows)
    return posted(client, rows, "2")


@provokes("unknown_worker")
def _(situation: Situation) -> object:
    return get_worker.sync("node-9-1-000000", client=situation.newcomer())


@provokes("key_not_found")
def _(situation: Situation) -> object:
    return revoke_key.sync("a" * 16, client=situation.admin)


@provokes("last_admin_key")
def _(situation: Situation) -> object:
    me = get_me.sync(client=situation.admin)
    assert me is not None
    assert not isinstance(me, Problem)
    keys = list_keys.sync(client=situation.admin)
    assert isinstance(keys, KeyPage)
    for other in keys.keys:
        if other.active and other.id != me.key_id:
            revoke_key.sync(other.id, client=situation.admin)
    return revoke_key.sync(str(me.key_id), client=situation.admin)


@provokes("worker_silent")
def _(situation: Situation) -> object:
    return drain_worker.sync(situation.acts.silent_worker(), client=situation.admin)


@provokes("stopping")
def _(situation: Situation) -> object:
    client = situation.newcomer()
    # Requests that wait for a job get a response then; this one has none.
    return situation.stopped(lambda: explain_job.sync(client=client, body=JobSpec.from_dict(ORDERS)))
