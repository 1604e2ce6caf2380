"""Records the examples of the specification from a running service with the demo's tables.

    python -m tests.clients.record_examples

Writes `service/api/examples.json`: the requests and responses of each operation, and all problems as the generated
Python client receives them. Data about the machine is replaced. Then run
`python -m service.cli openapi -o openapi.yaml`.
"""

from __future__ import annotations

import json
import socket
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from service.api.examples import FILE
from service.cli.demo_data import write_tables
from tests.clients.generated import generate_python_client
from tests.clients.provoked import LATE, idle_service, provocations, situation_of
from tests.support.production import Api, Production, running_production
from tests.support.tables import write_orders

JSON, CSV, SSE = "application/json", "text/csv", "text/event-stream"
NDJSON = "application/x-ndjson"

SQL_JOB = {
    "name": "planes per manufacturer",
    "tables": {"f": {"format": "parquet", "path": "flights/"}, "p": {"format": "parquet", "path": "planes/"}},
    "sql": "SELECT p.manufacturer, COUNT(*) AS flights, COUNT(DISTINCT f.tailnum) AS planes FROM f "
    "JOIN p ON f.tailnum = p.tailnum GROUP BY p.manufacturer ORDER BY flights DESC LIMIT 3",
    "settings": {"agg_phase": "TWO_PHASE"},
    "limits": {"timeout": "10m"},
}
QUERY_JOB = {
    "name": "planes per carrier",
    "tables": {"f": {"format": "parquet", "path": "flights/"}},
    "query": {
        "source": {"kind": "table", "table": "f", "alias": "f"},
        "group_by": [{"expression": "f.carrier", "name": "carrier"}],
        "aggregates": [
            {"function": "COUNT", "name": "flights"},
            {"function": "COUNT", "arguments": ["f.tailnum"], "distinct": True, "name": "planes"},
        ],
    },
    "settings": {"table.optimizer.agg-phase-strategy": "TWO_PHASE"},
}
PROFILE = {
    "table": {"format": "parquet", "path": "flights/"},
    "keys": [["carrier"], ["origin", "dest"]],
    "slots": 200,
}
STREAM_JOB = {
    "name": "departures per airport",
    "mode": "incremental",
    "tables": {"d": {"format": "stream", "stream": "departures"}},
    "sql": "SELECT d.origin, COUNT(*) AS flights, MAX(d.at) AS last FROM d GROUP BY d.origin",
    "settings": {"mini_batch": {"size": 100000}},
}
DECLARATION = {"schema": "tailnum STRING, origin STRING, at TIMESTAMP"}
ROWS = (
    '{"tailnum": "N14228", "origin": "EWR", "at": "2013-01-01T10:17:00Z"}\n'
    '{"tailnum": "N24211", "origin": "LGA", "at": "2013-01-01T10:33:00Z"}\n'
)
ROWS_AS_CSV = "tailnum,origin,at\nN14228,EWR,2013-01-01T10:17:00Z\nN24211,LGA,2013-01-01T10:33:00Z\n"
METRICS_SHOWN = 8

_JOBS = {
    "sql": {"summary": "SQL", "value": SQL_JOB},
    "query": {"summary": "A structured query, with a setting under its Flink key", "value": QUERY_JOB},
    "stream": {"summary": "A streaming job over posted rows", "value": STREAM_JOB},
}


class Recorder:
    """Recorded requests and responses by operation."""

    def __init__(self, api: Api, worker: str) -> None:
        self.http = api.http
        self.worker = worker
        self.recorded: dict[str, dict[str, Any]] = {}

    def ask(self, operation: str, method: str, path: str, **options: Any) -> httpx.Response:
        """Sends a request and records the body of the response by operation, status and media type."""
        answer = self.http.request(method, path, **options)
        assert answer.is_success, answer.text
        media_type = answer.headers.get("Content-Type", "").partition(";")[0]
        value = answer.json() if media_type == JSON else answer.text
        responses = self._of(operation).setdefault("responses", {})
        responses.setdefault(str(answer.status_code), {})[media_type] = value
        return answer

    def requests(self, operation: str, media_type: str, examples: Mapping[str, Any]) -> None:
        """Records examples of an operation's request body."""
        self._of(operation).setdefault("requests", {})[media_type] = dict(examples)

    def _of(self, operation: str) -> dict[str, Any]:
        return self.recorded.setdefault(operation, {})


def _one(summary: str, value: Any) -> dict[str, Any]:
    return {"example": {"summary": summary, "value": value}}


def _streams(it: Recorder) -> None:
    path = "/v1/streams/departures"
    it.requests("declare_stream", JSON, _one("Departures of planes", DECLARATION))
    it.ask("declare_stream", "PUT", path, json=DECLARATION)
    it.ask("declare_stream", "PUT", path, json=DECLARATION)
    it.requests("append_rows", NDJSON, _one("Two departures", ROWS))
    it.requests("append_rows", CSV, _one("The same as CSV", ROWS_AS_CSV))
    headers = {"Content-Type": NDJSON}
    it.ask("append_rows", "POST", f"{path}/rows", params={"batch_id": "EWR/000042"}, content=ROWS, headers=headers)
    it.ask("get_stream", "GET", path)
    it.ask("list_streams", "GET", "/v1/streams")


def _batch_jobs(it: Recorder) -> None:
    for operation in ("submit_job", "explain_job"):
        it.requests(operation, JSON, _JOBS)
    job = f"/v1/jobs/{it.ask('submit_job', 'POST', '/v1/jobs', json=SQL_JOB).json()['id']}"
    _wait(it, job, "SUCCEEDED")
    it.ask("get_job", "GET", job)
    it.ask("get_result", "GET", f"{job}/result")
    it.ask("get_result", "GET", f"{job}/result", headers={"Accept": CSV})
    it.ask("get_events", "GET", f"{job}/events", headers={"Accept": JSON})
    it.ask("get_events", "GET", f"{job}/events", headers={"Accept": SSE})
    it.ask("get_plan", "GET", f"{job}/plan")
    it.ask("get_metrics", "GET", f"{job}/metrics")
    it.ask("explain_job", "POST", "/v1/explain", json=QUERY_JOB)
    it.requests("profile_keys", JSON, _one("Two keys of a table, for 200 tasks", PROFILE))
    it.ask("profile_keys", "POST", "/v1/profiles", json=PROFILE)


def _streaming_jobs(it: Recorder) -> None:
    submitted = it.http.post("/v1/jobs", json=STREAM_JOB).json()["id"]
    job = f"/v1/jobs/{submitted}"
    _wait(it, job, "STOPPED")
    it.ask("get_job_stream", "GET", f"{job}/stream")
    it.ask("list_job_batches", "GET", f"{job}/batches")
    patch = {"mini_batch": {"size": 50000}}
    it.requests("change_job_settings", "application/merge-patch+json", _one("Smaller mini-batches", patch))
    it.ask("change_job_settings", "PATCH", f"{job}/settings", json=patch)
    again = {"from": "scratch", "settings": {"state": {"partitions": 4}}}
    it.requests("resume_job", JSON, _one("From scratch, with another number of state partitions", again))
    it.ask("resume_job", "POST", f"{job}/resume", json=again)
    _wait(it, job, "STOPPED")
    endless = {**STREAM_JOB, "mode": "continuous"}
    job = f"/v1/jobs/{it.http.post('/v1/jobs', json=endless).json()['id']}"
    _wait(it, job, "RUNNING")
    it.ask("stop_job", "POST", f"{job}/stop")
    _wait(it, job, "STOPPED")
    it.ask("cancel_job", "POST", f"{job}/cancel")
    it.ask("list_jobs", "GET", "/v1/jobs", params={"page_size": 2})


def _keys(it: Recorder) -> None:
    it.ask("get_me", "GET", "/v1/me")
    asked = {"name": "nightly loads", "tenant": "flights", "scopes": ["read", "submit"], "expires_in": "90d"}
    it.requests("create_key", JSON, _one("For loads that run at night", asked))
    made = it.ask("create_key", "POST", "/v1/keys", json=asked).json()
    it.ask("list_keys", "GET", "/v1/keys", params={"page_size": 1})
    it.ask("revoke_key", "DELETE", f"/v1/keys/{made['id']}")


def _operations(it: Recorder) -> None:
    it.ask("get_health", "GET", "/healthz")
    it.ask("get_readiness", "GET", "/readyz")
    it.ask("get_prometheus_metrics", "GET", "/metrics")
    answer = it.recorded["get_prometheus_metrics"]["responses"]["200"]
    lines = answer["text/plain"].splitlines(keepends=True)
    answer["text/plain"] = "".join(lines[:METRICS_SHOWN])
    it.ask("list_workers", "GET", "/v1/workers")
    it.ask("get_worker", "GET", f"/v1/workers/{it.worker}")
    it.ask("drain_worker", "POST", f"/v1/workers/{it.worker}/drain")


def _wait(it: Recorder, job: str, status: str) -> None:
    for _ in range(600):
        found = it.http.get(job, headers={"Prefer": "wait=0"}).json()
        if found["status"] == status:
            return
        assert not found["finished"], found
        it.http.get(job, headers={"Prefer": "wait=1", "If-None-Match": it.http.get(job).headers["ETag"]})
    raise AssertionError(f"timed out waiting for {job} to be {status}")


def record(production: Production) -> dict[str, dict[str, Any]]:
    """Returns the examples of every operation, from a service with the demo's tables."""
    (api,) = production.apis
    (worker,) = api.http.get("/v1/workers").json()["workers"]
    recorder = Recorder(api, worker["id"])
    for part in (_streams, _batch_jobs, _streaming_jobs, _keys, _operations):
        part(recorder)
    host = socket.gethostname()
    texts = {str(production.directory): "/srv/evenkeel", worker["id"]: "node-1-4711-a1b2c3", host: "node-1"}
    return {name: _without(texts, examples) for name, examples in recorder.recorded.items()}


def record_problems(idle: Production, busy: Production) -> dict[str, dict[str, Any]]:
    """Returns the recorded problems by code, without path and request id."""
    recorded: dict[str, dict[str, Any]] = {}
    provoke = provocations()
    late = {code: provoke.pop(code) for code in LATE}
    for production, codes in ((idle, provoke), (busy, late)):
        situation = situation_of(production)
        for code, function in codes.items():
            answer: Any = function(situation)
            problem = answer.to_dict()
            assert problem["code"] == code, problem
            recorded[code] = {part: problem[part] for part in ("detail", "errors") if problem.get(part)}
    return recorded


def _without(texts: Mapping[str, str], value: Any) -> Any:
    """Replaces data about this machine in all keys and texts."""
    text_of_value = json.dumps(value, ensure_ascii=False)
    for text, replacement in texts.items():
        text_of_value = text_of_value.replace(text, replacement)
    return json.loads(text_of_value)


def main() -> None:
    """Records and writes all examples."""
    settings = {"EVENKEEL_API_AUTHENTICATION": "on"}
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="evenkeel-examples-")))
        client, idle, busy = (root / name for name in ("client", "idle", "busy"))
        for directory in (client, idle, busy):
            directory.mkdir()
        sys.path.insert(0, str(generate_python_client(client)))
        service = running_production(busy, None, apis=1, workers=1, environment=settings)
        production = stack.enter_context(service)
        write_tables(production.data, reports=10_000)
        write_orders(production.data)
        problems = record_problems(stack.enter_context(idle_service(idle)), production)
        recorded = record(production)
    examples = {"operations": dict(sorted(recorded.items())), "problems": problems}
    FILE.write_text(json.dumps(examples, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
