"""Results: pages of JSON, or the whole result as CSV, Arrow or Parquet."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.api.results import SSE
from service.jobs.views import encode_cursor
from service.results.purge import Limits, purge_with_pauses
from tests.support import lifecycle
from tests.support.api import Api, refused

NUMBERS = pa.table({"n": pa.array(range(20), pa.int64())})
KINDS = pa.table(
    {
        "big": pa.array([2**63 - 1, None], pa.int64()),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
        "tiny": pa.array([Decimal("1E-10"), None], pa.decimal128(20, 10)),
        "ratio": pa.array([float("nan"), float("-inf")], pa.float64()),
        "flag": pa.array([True, None], pa.bool_()),
        "text": pa.array(['a "quoted", one\n', ""], pa.string()),
        "day": pa.array([date(2013, 1, 31), None], pa.date32()),
        "at": pa.array([datetime(2013, 1, 31, 5, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "local": pa.array([datetime(2013, 1, 31, 5), None], pa.timestamp("us")),  # noqa: DTZ001
        "raw": pa.array([b"\xff\x00", None], pa.binary()),
        "list": pa.array([[1.5, None], None], pa.list_(pa.float64())),
    }
)


def finished(api: Api, table: pa.Table, files: int = 1) -> str:
    """Returns the path of the result of a job that returned this table."""
    job_id = lifecycle.insert(api.database)
    lifecycle.run_whole(api.database, job_id, api.settings.results_dir, table, files)
    return f"/v1/jobs/{job_id}/result"


def test_pages_contain_every_row_once_and_in_order(api: Api, subtests: pytest.Subtests) -> None:
    for files in (1, 3, 7):
        for page_size in (1, 3, 7, 20, 1_000_000):
            with subtests.test(files=files, page_size=page_size):
                path = finished(api, NUMBERS, files)
                rows: list[list[int]] = []
                cursor = ""
                while True:
                    page = api.client.get(path, params={"page_size": page_size, "cursor": cursor}).json()
                    assert len(page["rows"]) <= page_size
                    rows += page["rows"]
                    cursor = page["next_cursor"]
                    if not cursor:
                        break
                assert rows == [[n] for n in range(20)]
                assert page["total_rows"] == 20
                assert page["columns"] == [{"name": "n", "type": "BIGINT"}]


def test_json_values_of_every_type(api: Api) -> None:
    page = api.client.get(finished(api, KINDS)).json()
    assert [column["type"] for column in page["columns"]] == [
        "BIGINT",
        "DECIMAL(10,2)",
        "DECIMAL(20,10)",
        "DOUBLE",
        "BOOLEAN",
        "STRING",
        "DATE",
        "TIMESTAMP",
        "TIMESTAMP_NTZ",
        "BINARY",
        "OTHER",
    ]
    assert page["rows"] == [
        [
            2**63 - 1,
            "1.50",
            "0.0000000001",
            "NaN",
            True,
            'a "quoted", one\n',
            "2013-01-31",
            "2013-01-31T05:00:00.000000Z",
            "2013-01-31T05:00:00.000000",
            "/wA=",
            [1.5, None],
        ],
        [None, None, None, "-Infinity", None, "", None, None, None, None, None],
    ]


def test_an_empty_result_is_one_page(api: Api) -> None:
    page = api.client.get(finished(api, NUMBERS.slice(0, 0))).json()
    assert page == {"columns": [{"name": "n", "type": "BIGINT"}], "rows": [], "total_rows": 0, "next_cursor": ""}


def test_csv(api: Api) -> None:
    answer = api.client.get(finished(api, KINDS), headers={"Accept": "text/csv"})
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"].endswith('.csv"')
    rows: list[list[str]] = list(csv.reader(io.StringIO(answer.text)))
    assert rows[0] == KINDS.column_names
    assert rows[1][:3] == ["9223372036854775807", "1.50", "0.0000000001"]
    assert rows[1][5] == 'a "quoted", one\n'
    assert rows[1][9:] == ["/wA=", "[1.5, null]"]
    assert rows[2][:3] == ["", "", ""]


def test_arrow(api: Api, subtests: pytest.Subtests) -> None:
    for files in (1, 3):
        with subtests.test(files=files):
            answer = api.client.get(
                finished(api, NUMBERS, files), headers={"Accept": "application/vnd.apache.arrow.stream"}
            )
            with pa.ipc.open_stream(answer.content) as reader:
                assert reader.read_all().equals(NUMBERS)


def test_parquet(api: Api, subtests: pytest.Subtests) -> None:
    cases: list[pa.Table] = [NUMBERS, NUMBERS.slice(0, 0), KINDS]
    for table in cases:
        with subtests.test(table=table):
            answer = api.client.get(finished(api, table), headers={"Accept": "application/vnd.apache.parquet"})
            assert answer.headers["vary"] == "Accept"
            assert str(pq.read_table(io.BytesIO(answer.content)).to_pylist()) == str(table.to_pylist())


def test_the_preferred_format_is_chosen(api: Api, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("*/*", "application/json"),
        ("application/*", "application/json"),
        ("text/*", "text/csv"),
        ("text/csv;q=0.5, application/json;q=0.4", "text/csv"),
        ("text/html, */*;q=0.1", "application/json"),
    ]
    for accept, given in cases:
        with subtests.test(accept=accept, given=given):
            answer = api.client.get(finished(api, NUMBERS), headers={"Accept": accept})
            assert answer.headers["content-type"].split(";")[0] == given


def test_other_formats_are_not_acceptable(api: Api, subtests: pytest.Subtests) -> None:
    cases: list[str] = ["text/html", "application/json;q=0", SSE]
    for accept in cases:
        with subtests.test(accept=accept):
            answer = api.client.get(finished(api, NUMBERS), headers={"Accept": accept})
            refused(answer, 406, "not_acceptable")


def test_an_unfinished_job_has_no_result(api: Api) -> None:
    answer = api.client.get(f"/v1/jobs/{lifecycle.insert(api.database)}/result")
    refused(answer, 409, "result_not_ready")


def test_a_failed_job_has_no_result(api: Api) -> None:
    job_id = lifecycle.insert(api.database)
    lifecycle.fail(api.database, lifecycle.claim(api.database, job_id))
    assert api.client.get(f"/v1/jobs/{job_id}/result").json()["code"] == "result_not_ready"


def test_missing_files_are_reported(api: Api, subtests: pytest.Subtests) -> None:
    for accept in ("application/json", "text/csv"):
        with subtests.test(accept=accept):
            path = finished(api, NUMBERS)
            for file in api.settings.results_dir.rglob("*.parquet"):
                file.unlink()
            answer = api.client.get(path, headers={"Accept": accept})
            refused(answer, 410, "result_missing")


def test_damaged_files_are_reported(api: Api, subtests: pytest.Subtests) -> None:
    keep_cases: list[int] = [0, 40, -1]
    for keep in keep_cases:
        for accept in ("application/json", "text/csv", "application/vnd.apache.parquet"):
            with subtests.test(keep=keep, accept=accept):
                path = finished(api, NUMBERS)
                for file in api.settings.results_dir.rglob("*.parquet"):
                    whole = file.read_bytes()
                    # Cut short, or with its pages overwritten and its footer whole.
                    file.write_bytes(whole[:keep] if keep >= 0 else whole[:4] + b"\xff" * 100 + whole[104:])
                answer = api.client.get(path, headers={"Accept": accept})
                refused(answer, 410, "result_missing")


def test_a_forged_cursor_is_refused(api: Api) -> None:
    path = finished(api, NUMBERS)
    job_id = path.split("/")[3]
    forged: list[tuple[list[int | str], int]] = [
        ([10**30, ""], 400),
        ([2**63 - 1, ""], 200),
        ([-5, ""], 200),
        ([0, "1.2"], 200),
        ([0], 400),
    ]
    for position, status in forged:
        answer = api.client.get(path, params={"cursor": encode_cursor(position, f"result|{job_id}")})
        assert answer.status_code == status, position


def test_a_cursor_of_another_result_is_refused(api: Api) -> None:
    cursor = api.client.get(finished(api, NUMBERS), params={"page_size": 2}).json()["next_cursor"]
    answer: Any = api.client.get(finished(api, NUMBERS), params={"page_size": 2, "cursor": cursor})
    assert answer.json()["code"] == "invalid_cursor"


def test_a_result_is_deleted_after_its_retention(api: Api) -> None:
    path = finished(api, NUMBERS)
    purge_with_pauses(
        api.database, api.settings.results_dir, api.settings.streams_dir, Limits(jobs_ms=None, results_ms=-1000)
    )
    for accept in ("application/json", "text/csv"):
        answer = api.client.get(path, headers={"Accept": accept})
        refused(answer, 410, "result_missing")
        assert "has been removed because" in answer.json()["detail"]
    job = api.client.get(path.removesuffix("/result")).json()
    assert (job["status"], job["result"]["rows"]) == ("SUCCEEDED", 20), "the job still tells of it"


@pytest.mark.withstands(
    "HTML in results",
    kind="attack",
    how="column names and values that are HTML pages, in every result format, in events and in error messages",
    times=7,
    guaranteed="no browser shows a response as a page: each has its media type, sniffing is disabled, and downloads "
    "are attachments",
)
def test_browsers_never_render_html_of_a_result(api: Api) -> None:
    page = "<html><script>alert(1)</script>"
    path = finished(api, pa.table({page: pa.array([page])}))
    for kind in (
        "application/json",
        "text/csv",
        "application/vnd.apache.arrow.stream",
        "application/vnd.apache.parquet",
    ):
        answer = api.client.get(path, headers={"Accept": kind})
        assert answer.status_code == 200, answer.text
        assert page.encode() in answer.content
        assert_not_rendered(answer)
        assert kind == "application/json" or answer.headers["content-disposition"].startswith("attachment;")
    for other, headers in (
        (path.removesuffix("result") + "events", {}),
        (f"/v1/jobs/{page}", {}),
        (path, {"Accept": page}),
    ):
        assert_not_rendered(api.client.get(other, headers=headers))


def assert_not_rendered(answer: httpx.Response) -> None:
    assert answer.headers["content-type"].partition(";")[0] not in {"text/html", "text/plain"}
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"


def test_rows_are_looked_up_by_values(api: Api, subtests: pytest.Subtests) -> None:
    path = finished(api, KINDS)
    first = api.client.get(path).json()
    names = [column["name"] for column in first["columns"]]
    for row in first["rows"]:
        for name, value in zip(names, row, strict=True):
            with subtests.test(column=name, value=value):
                if name == "list" and value is not None:
                    continue
                found = api.client.get(path, params={"key": json.dumps({name: value})})
                assert found.status_code == 200, found.text
                assert (found.json()["rows"], found.json()["total_rows"]) == ([row], 1)
    both = {"flag": True, "text": ""}
    assert api.client.get(path, params={"key": json.dumps(both)}).json()["rows"] == []


def test_looked_up_rows_of_a_large_result_are_limited(api: Api) -> None:
    table = pa.table({"k": pa.array([7] * 50 + [8], pa.int32()), "n": pa.array(range(51), pa.int64())})
    path = finished(api, table, 3)
    page = api.client.get(path, params={"key": '{"k": 7}', "page_size": 4}).json()
    assert ([row[0] for row in page["rows"]], page["total_rows"], page["next_cursor"]) == ([7] * 4, 4, "")
    assert api.client.get(path, params={"key": '{"k": 8}'}).json()["rows"] == [[8, 50]]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("n", "is a JSON object"),
        ("[1]", "is a JSON object"),
        ("{}", "is a JSON object"),
        ('{"none": 1}', "no column none"),
        ('{"n": "x"}', "'x' is no value of the column n"),
        ('{"n": true}', "no value of the column n"),
        ('{"n": 1e400}', "no value of the column n"),
        ('{"n": {"a": 1}}', "no value of the column n"),
        ('{"n": 9223372036854775808}', "no value of the column n"),
        ('{"n": "\\ud800"}', r"'\ud800' is no value of the column n"),
        ('{"\\ud800": 1}', r"no column \ud800"),
        ("[" * 4_000, "is a JSON object"),
        (f'{{"n": {"1" * 4_000}}}', "is no value of the column n"),
    ],
)
def test_keys_that_do_not_fit_the_result_are_refused(api: Api, key: str, text: str) -> None:
    answer = api.client.get(finished(api, NUMBERS), params={"key": key})
    assert (answer.status_code, answer.json()["code"]) == (422, "invalid_lookup")
    assert text in answer.json()["detail"]


def test_looked_up_rows_are_json(api: Api) -> None:
    answer = api.client.get(finished(api, NUMBERS), params={"key": '{"n": 1}'}, headers={"Accept": "text/csv"})
    assert (answer.status_code, answer.json()["code"]) == (406, "not_acceptable")
