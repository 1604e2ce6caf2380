"""Partitions, wildcards, Delta tables and compressed text in an object store."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from service.contract.problems import SpecError
from service.contract.tables import TableSource
from service.data.file_io import UriFile
from service.data.files import find_table_files
from service.data.table_resolution import Resolved, resolve_table
from tests.support.object_store import Bucket, Roots


def resolved(path: str, bucket: Bucket, roots: Roots, **table: object) -> Resolved:
    source = TableSource.model_validate({"path": path, **table})
    return resolve_table("t", source, roots(f"s3a://{bucket.name}/in"))


def _parquet() -> bytes:
    data = io.BytesIO()
    pq.write_table(pa.table({"v": [1]}), data)
    return data.getvalue()


def test_partitions_wildcards_and_compressed_text(bucket: Bucket, roots: Roots) -> None:
    objects = {f"in/t/day=2024-01-0{day}/p.parquet": _parquet() for day in (1, 2, 3)}
    bucket.server.put(bucket.name, {**objects, "in/c/x.csv.gz": gzip.compress(b"a,b\n1,x\n"), "in/c/README": b""})
    found = resolved("t", bucket, roots)
    assert (found.source.partitions, found.schema.names) == ("day DATE", ("v", "day"))
    assert resolved("t/day=2024-01-0[12]/*", bucket, roots).bytes == 2 * len(_parquet())
    text = resolved("c/*.gz", bucket, roots).source
    assert (text.format, text.declared_schema, text.options.header) == ("csv", "a BIGINT, b STRING", True)


def test_a_delta_table(bucket: Bucket, roots: Roots, tmp_path: Path) -> None:
    for number in range(2):
        table = pa.table({"v": [number], "day": ["a b"]})
        write_deltalake(tmp_path / "t", table, mode="append", partition_by=["day"])
    files = [path for path in (tmp_path / "t").rglob("*") if path.is_file()]
    bucket.server.put(bucket.name, {f"in/{path.relative_to(tmp_path)}": path.read_bytes() for path in files})
    found = resolved("t", bucket, roots)
    assert (found.source.format, found.source.version, found.schema.names) == ("delta", 1, ("v", "day"))
    names = {path.relative_to(tmp_path).as_posix() for path in files if path.suffix == ".parquet"}
    listed = find_table_files("t", found.source, roots(f"s3a://{bucket.name}/in"))
    assert {file.uri for file in listed.files if isinstance(file, UriFile)} == {
        f"s3a://{bucket.name}/in/{name}" for name in names
    }
    with pytest.raises(SpecError, match="has no version 9"):
        resolved("t", bucket, roots, version=9)
    with pytest.raises(SpecError, match="_delta_log"):
        resolved("none", bucket, roots, format="delta")
