"""Jobs over files of every format, in which only the path of the table is given."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from pyarrow import orc

from tests.support.service import Service

pytestmark = pytest.mark.e2e

TABLE = pa.table({"uid": [number % 10 for number in range(1000)], "price": [number / 4 for number in range(1000)]})
SQL = "SELECT uid, COUNT(*) AS n, SUM(price) AS total FROM t GROUP BY uid ORDER BY uid"
EXPECTED = [
    {"uid": uid, "n": 100, "total": sum(number / 4 for number in range(1000) if number % 10 == uid)}
    for uid in range(10)
]


def _csv(path: Path) -> None:
    pa_csv.write_csv(TABLE, path)


def _gzipped(path: Path) -> None:
    _csv(path)
    path.write_bytes(gzip.compress(path.read_bytes()))


def _json_lines(path: Path) -> None:
    path.write_text("".join(f'{{"uid":{row["uid"]},"price":{row["price"]}}}\n' for row in TABLE.to_pylist()))


def _xml(path: Path) -> None:
    rows = "".join(f"<o><uid>{row['uid']}</uid><price>{row['price']}</price></o>" for row in TABLE.to_pylist())
    path.write_text(f"<all>{rows}</all>")


def _avro(path: Path) -> None:
    fields = [{"name": "uid", "type": "long"}, {"name": "price", "type": "double"}]
    with path.open("wb") as file:
        fastavro.writer(file, {"type": "record", "name": "o", "fields": fields}, TABLE.to_pylist(), codec="deflate")


FORMATS: dict[str, tuple[Callable[[Path], None], dict[str, Any]]] = {
    "f.csv": (_csv, {}),
    "f.csv.gz": (_gzipped, {}),
    "f.jsonl": (_json_lines, {}),
    "f.parquet": (lambda path: pq.write_table(TABLE, path), {}),
    "f.orc": (lambda path: orc.write_table(TABLE, str(path)), {}),
    "f.avro": (_avro, {}),
    "f.xml": (_xml, {"options": {"rowTag": "o"}}),
    "f-delta": (lambda path: write_deltalake(path, TABLE), {}),
    "f-hive": (lambda path: pq.write_to_dataset(TABLE, path, partition_cols=["uid"]), {}),
}


@pytest.mark.parametrize("name", FORMATS)
def test_a_job_names_only_the_path(service: Service, name: str) -> None:
    write, further = FORMATS[name]
    write(service.data / name)
    job_id, rows = service.run({"tables": {"t": {"path": name, **further}}, "sql": SQL})
    assert rows == EXPECTED
    (stored,) = service.job(job_id)["spec"]["tables"].values()
    assert stored["format"] in {"csv", "json", "parquet", "orc", "avro", "xml", "delta"}


def test_the_metrics_have_the_number_of_corrupt_records(service: Service) -> None:
    (service.data / "bad.csv").write_text("uid,v\n1,2\nx,3\n4,5\n")
    table = {"path": "bad.csv", "columns": {"uid": "BIGINT"}, "options": {"mode": "DROPMALFORMED"}}
    job_id, rows = service.run({"tables": {"t": table}, "sql": "SELECT SUM(uid) AS s FROM t"})
    assert rows == [{"s": 5}]
    assert service.http.get(f"/v1/jobs/{job_id}/metrics").json()["corrupt_records"] == {"t": 1}


def test_a_damaged_file_is_named(service: Service) -> None:
    _avro(service.data / "cut.avro")
    data = (service.data / "cut.avro").read_bytes()
    (service.data / "cut.avro").write_bytes(data[: len(data) // 2])
    answer = service.http.post("/v1/jobs", json={"tables": {"t": {"path": "cut.avro"}}, "sql": SQL})
    job = service.wait(answer.json()["id"])
    assert (job["status"], job["error"]["code"]) == ("FAILED", "corrupt_file")
    assert "'cut.avro' is damaged" in job["error"]["detail"]
