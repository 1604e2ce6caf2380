"""HEAD on paths that have GET."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tests.support import lifecycle
from tests.support.api import Api

# A stream that does not end would be waited for.
pytestmark = pytest.mark.timeout(60)


def test_a_head_is_a_get_without_the_body(api: Api, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("", "*/*"),
        ("/result", "*/*"),
        ("/result", "text/csv"),
        ("/plan", "*/*"),
        ("/metrics", "*/*"),
        ("/events", "*/*"),
        ("/nothing", "*/*"),
    ]
    for path, accept in cases:
        with subtests.test(path=path, accept=accept):
            job_id = lifecycle.insert(api.database)
            lifecycle.run_whole(api.database, job_id, api.settings.results_dir, pa.table({"n": [1]}))
            got = api.client.get(f"/v1/jobs/{job_id}{path}", headers={"Accept": accept, "X-Request-Id": "one"})
            head = api.client.head(f"/v1/jobs/{job_id}{path}", headers={"Accept": accept, "X-Request-Id": "one"})
            assert (head.status_code, head.content) == (got.status_code, b"")
            assert dict(head.headers) == dict(got.headers)


def test_head_of_other_paths(api: Api, subtests: pytest.Subtests) -> None:
    for path in ("/healthz", "/metrics", "/v1/jobs"):
        with subtests.test(path=path):
            head = api.client.head(path)
            assert (head.status_code, head.content) == (200, b"")


def test_head_of_the_events_of_an_unfinished_job_ends(api: Api) -> None:
    head = api.client.head(f"/v1/jobs/{lifecycle.insert(api.database)}/events")
    assert head.headers["content-type"].startswith("text/event-stream")


def test_a_path_without_get_has_no_head(api: Api) -> None:
    assert api.client.head("/v1/explain").status_code == 405
