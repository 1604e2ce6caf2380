"""Jobs on tables in an object store are checked against it, as the API answers them. No Spark."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient
from pyarrow import orc

from service.api.app import create_app
from service.config.settings import Settings
from service.contract.job import JobSpec
from service.contract.problems import SpecError
from service.data.roots import DirectoryRoot, Root
from service.jobs.check_job import CheckedJob, check_job
from service.sql.ddl import parse_schema
from tests.support.object_store import ObjectStore, running_object_store

pytestmark = pytest.mark.one_database

SQL = "SELECT uid, COUNT(*) AS orders FROM orders GROUP BY uid"


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


@pytest.fixture(scope="module")
def store(object_store: ObjectStore) -> ObjectStore:
    object_store.make_bucket("api")
    good = parquet(pa.table({"uid": pa.array([1, 1, 2], pa.int64())}))
    object_store.put(
        "api",
        {
            **{f"in/orders/{number}.parquet": good for number in range(20)},
            "in/mixed/a.parquet": good,
            "in/mixed/b.parquet": parquet(pa.table({"uid": ["one"]})),
            "in/bad.parquet": b"PAR1 and nothing else",
            "in/users.csv": b"uid,name\n1,a\n",
            "secret/orders.parquet": good,
        },
    )
    return object_store


@pytest.fixture
def client(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, store: ObjectStore, database_url: str
) -> Iterator[TestClient]:
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", database_url)
    with serving(monkeypatch, store.variables("s3a://api/in")) as client:
        yield client


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> Iterator[TestClient]:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = Settings()
    settings.state_dir.mkdir(exist_ok=True)
    with TestClient(create_app(settings), base_url="http://127.0.0.1:8080") as client:
        yield client


def submitted(client: TestClient, path: str, sql: str = SQL, **source: Any) -> httpx.Response:
    job = {"tables": {"orders": {"format": "parquet", "path": path, **source}}, "sql": sql}
    answer: httpx.Response = client.post("/v1/jobs", json=job)
    return answer


def test_a_job_on_a_bucket_is_accepted_with_its_schema(client: TestClient) -> None:
    for path in ("orders", "orders/0.parquet", "s3a://api/in/orders/", "s3://api/in/orders/1.parquet"):
        answer = submitted(client, path)
        assert answer.status_code == 202, answer.text
    wrong = submitted(client, "orders", "SELECT uidd FROM orders").json()
    assert (wrong["code"], wrong["errors"][0]["suggestions"]) == ("unknown_column", ["uid"])
    csv: dict[str, Any] = {"format": "csv", "schema": "uid BIGINT, name STRING", "options": {"header": True}}
    assert submitted(client, "users.csv", **csv).status_code == 202
    assert submitted(client, "users.csv", **{**csv, "schema": "id BIGINT"}).json()["code"] == "schema_mismatch"


def test_what_is_wrong_with_a_table(client: TestClient, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("s3a://api/secret/orders.parquet", "path_outside_data_roots"),
        ("../secret/orders.parquet", "path_outside_data_roots"),
        ("nothing", "path_not_found"),
        ("mixed", "schema_mismatch"),
        ("bad.parquet", "corrupt_file"),
        ("users.csv", "corrupt_file"),
    ]
    for path, code in cases:
        with subtests.test(path=path, code=code):
            answer = submitted(client, path)
            assert (answer.status_code, answer.json()["code"]) == (422, code)
            assert answer.json()["errors"][0]["pointer"] == "/tables/orders/path"


@pytest.mark.not_quick
def test_a_store_that_stops_is_503_until_it_is_back(
    tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch, database_url: str
) -> None:
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", database_url)
    monkeypatch.setenv("EVENKEEL_DATA_STORE_ATTEMPTS", "1")
    with running_object_store(tmp_path) as own, serving(monkeypatch, own.variables("s3a://mine")) as client:
        own.stop()
        answer = submitted(client, "orders.parquet")
        assert (answer.status_code, answer.json()["code"]) == (503, "storage_unavailable")
        assert answer.headers["retry-after"]
        assert "127.0.0.1" not in answer.text
        own.start()
        assert "bucket" in submitted(client, "orders.parquet").json()["detail"]
        own.make_bucket("mine")
        own.put("mine", {"orders.parquet": parquet(pa.table({"uid": [1]}))})
        assert submitted(client, "orders.parquet").status_code == 202


def test_a_header_over_several_lines(tmp_path: Path) -> None:
    for name in ("t", "u"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.csv").write_text('id,"two\nlines"\n1,"a\nb"\n')
    ddl = "id BIGINT, `two\nlines` STRING"
    csv: dict[str, Any] = {"format": "csv", "options": {"header": True, "multi_line": True}}
    tables = {
        "t": {**csv, "path": "t", "schema": ddl, "role": "static", "refresh": True},
        "u": {**csv, "path": "u", "role": "stream"},
    }
    spec = JobSpec.model_validate(
        {
            "mode": "continuous",
            "tables": tables,
            "sql": "SELECT u.id, COUNT(*) AS n FROM u JOIN t ON t.id = u.id GROUP BY u.id",
        }
    )
    checked = check_job(spec, (DirectoryRoot(tmp_path),))
    assert [table.declared_schema for table in checked.spec.file_tables.values()] == [ddl, ddl]
    tables["t"]["schema"] = "id BIGINT, `two` STRING"
    with pytest.raises(SpecError) as caught:
        check_job(spec.model_validate({**spec.stored(), "tables": tables}), (DirectoryRoot(tmp_path),))
    assert caught.value.code == "schema_mismatch"


class TestStreamingTables:
    """Tables of streaming jobs, which may have no file yet."""

    SQL = "SELECT uid, COUNT(*) AS orders FROM orders GROUP BY uid"

    def check(self, tables: dict[str, Any], roots: tuple[Root, ...] = (), sql: str = SQL) -> CheckedJob:
        spec = JobSpec.model_validate({"mode": "continuous", "tables": tables, "sql": sql})
        return check_job(spec, roots, {"clicks": parse_schema("uid BIGINT, ts TIMESTAMP", "/")})

    def refused(self, tables: dict[str, Any], roots: tuple[Root, ...] = ()) -> tuple[str, str | None]:
        with pytest.raises(SpecError) as caught:
            self.check(tables, roots)
        return caught.value.code, caught.value.issues[0].pointer

    def test_rates_and_streams_have_columns_and_no_bytes(self) -> None:
        rate = self.check({"r": {"format": "rate"}}, sql="SELECT value, COUNT(timestamp) AS n FROM r GROUP BY value")
        posted = self.check({"orders": {"format": "stream", "stream": "clicks", "event_time": {"column": "ts"}}})
        assert (rate.table_bytes, posted.table_bytes) == (0, 0)

    def test_an_unknown_stream_is_told_with_its_neighbours(self) -> None:
        assert self.refused({"orders": {"format": "stream", "stream": "click"}}) == (
            "stream_unknown",
            "/tables/orders/stream",
        )

    def test_an_event_time_is_a_timestamp_of_its_table(self, subtests: pytest.Subtests) -> None:
        cases: list[tuple[str, str]] = [("tz", "unknown_column"), ("uid", "event_time_not_timestamp")]
        for column, code in cases:
            with subtests.test(column=column, code=code):
                table = {"format": "stream", "stream": "clicks", "event_time": {"column": column}}
                assert self.refused({"orders": table}) == (code, "/tables/orders/event_time/column")

    def test_an_operation_is_a_text_of_its_table(self, subtests: pytest.Subtests) -> None:
        cases: list[tuple[str, str]] = [("opp", "unknown_column"), ("ts", "operation_not_text")]
        for column, code in cases:
            with subtests.test(column=column, code=code):
                table = {"format": "stream", "stream": "clicks", "operation": column}
                assert self.refused({"orders": table}) == (code, "/tables/orders/operation")

    def test_columns_of_an_upsert_are_comparable_columns_of_its_table(
        self, tmp_path: Path, subtests: pytest.Subtests
    ) -> None:
        (tmp_path / "orders").mkdir()
        files = {"format": "json", "path": "orders", "schema": "uid BIGINT, at TIMESTAMP, m MAP<STRING, INT>"}
        cases: list[tuple[dict[str, object], str, str]] = [
            ({"keys": ["uidd"], "order": "at"}, "unknown_column", "keys/0"),
            ({"keys": ["uid", "m"], "order": "at"}, "upsert_not_comparable", "keys/1"),
            ({"keys": ["uid"], "order": "att"}, "unknown_column", "order"),
            ({"keys": ["uid"], "order": "m"}, "upsert_not_comparable", "order"),
        ]
        roots = (DirectoryRoot(tmp_path),)
        for upsert, code, at in cases:
            with subtests.test(upsert=upsert, code=code):
                found = self.refused({"orders": {**files, "upsert": upsert}}, roots)
                assert found == (code, f"/tables/orders/upsert/{at}")
        records = {**files, "envelope": "debezium"}
        wrong = self.refused({"orders": {**records, "upsert": {"keys": ["uid"], "order": "at"}}}, roots)
        assert wrong == ("upsert_not_comparable", "/tables/orders/upsert/order")
        for order in (None, "ts_us", "source.lsn"):
            assert self.check({"orders": {**records, "upsert": {"keys": ["uid"], "order": order}}}, roots)

    def test_only_a_stream_with_a_schema_may_begin_without_files(self, tmp_path: Path) -> None:
        (tmp_path / "orders").mkdir()
        roots = (DirectoryRoot(tmp_path),)
        table = {"format": "csv", "path": "orders", "schema": "uid BIGINT"}
        assert self.check({"orders": table}, roots).table_bytes == 0
        without = {"orders": {"format": "parquet", "path": "orders"}}
        assert self.refused(without, roots) == ("schema_cannot_be_inferred", "/tables/orders/path")
        undeclared = {"orders": {"format": "csv", "path": "orders"}}
        assert self.refused(undeclared, roots) == ("schema_cannot_be_inferred", "/tables/orders/path")
        static = {"orders": {**table, "role": "static"}, "c": {"format": "stream", "stream": "clicks"}}
        assert self.refused(static, roots)[0] == "empty_directory"

    def test_static_tables_are_inferred_and_may_have_partitions(self, tmp_path: Path) -> None:
        for name in ("orders", "n/day=2024-01-01"):
            (tmp_path / name).mkdir(parents=True)
        (tmp_path / "orders" / "1.csv").write_text("uid\n1\n")
        (tmp_path / "n" / "day=2024-01-01" / "1.csv").write_text("uid,name\n1,a\n")
        roots = (DirectoryRoot(tmp_path),)
        static = {"path": "n", "role": "static"}
        tables = {"orders": {"path": "orders", "role": "stream"}, "n": static}
        sql = "SELECT n.day, COUNT(*) AS c FROM orders JOIN n ON n.uid = orders.uid GROUP BY n.day"
        found = self.check(tables, roots, sql).spec.file_tables
        assert (found["orders"].declared_schema, found["n"].partitions) == ("uid BIGINT", "day DATE")
        refreshed = {**tables, "n": {**static, "refresh": True}}
        assert self.refused(refreshed, roots) == ("unsupported_construct", "/tables/n/path")

    def test_what_is_not_streamed(self, tmp_path: Path) -> None:
        (tmp_path / "orders" / "day=2024-01-01").mkdir(parents=True)
        (tmp_path / "orders" / "day=2024-01-01" / "1.csv").write_text("uid\n1\n")
        (tmp_path / "orc").mkdir()
        orc.write_table(pa.table({"uid": [1]}), str(tmp_path / "orc" / "1.orc"))
        (tmp_path / "csv").mkdir()
        (tmp_path / "csv" / "1.csv.gz").write_bytes(gzip.compress(b"uid\n1\n"))
        roots = (DirectoryRoot(tmp_path),)
        assert self.refused({"orders": {"path": "orders"}}, roots)[0] == "unsupported_construct"
        assert self.refused({"orders": {"path": "orc"}}, roots) == ("unsupported_construct", "/tables/orders/format")
        assert self.refused({"orders": {"path": "csv/*.gz"}}, roots)[0] == "path_not_found"
        table = {"path": "csv", "options": {"mode": "permissive"}}
        assert self.refused({"orders": table}, roots) == ("option_not_applicable", "/tables/orders/options/mode")
        assert self.check({"orders": {"path": "csv"}}, roots).spec.file_tables["orders"].options.header
