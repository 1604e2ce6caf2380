"""Tests the skewed facts of the TPC benchmarks."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from tests.benchmarks.tpc_skew import replacements, skew
from tests.conformance import tpch_workload


def test_replacements_follow_zipfs_law() -> None:
    table = replacements(10_000, 1.2, seed=1)
    assert table.column("old").to_pylist() == list(range(1, 10_001))
    counts = sorted((each["counts"] for each in table.column("new").value_counts().to_pylist()), reverse=True)
    for rank in (2, 3, 10):
        assert counts[rank - 1] / counts[0] == pytest.approx(rank**-1.2, rel=0.02)
    assert table == replacements(10_000, 1.2, seed=1)


def test_lines_keep_their_orders_and_have_suppliers_of_their_parts(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for directory in (before, after):
        directory.mkdir()
    tpch_workload.generate(before, "0.01")
    skew(before, after, "tpch", 1.2)
    with duckdb.connect() as connection:
        for name in ("orders", "partsupp"):
            connection.execute(f"CREATE VIEW {name} AS FROM '{after / name}.parquet'")
        connection.execute(f"CREATE VIEW old AS FROM '{before}/lineitem.parquet'")
        connection.execute(f"CREATE VIEW lineitem AS FROM '{after}/lineitem.parquet'")
        kept = "SELECT l_orderkey, l_linenumber, l_extendedprice FROM"
        assert connection.execute(f"({kept} old) EXCEPT ALL ({kept} lineitem)").fetchall() == []
        without = (
            "SELECT count(*) FROM lineitem ANTI JOIN partsupp ON l_partkey = ps_partkey AND l_suppkey = ps_suppkey"
        )
        assert connection.execute(without).fetchall() == [(0,)]
        share = "SELECT max(n) / sum(n) FROM (SELECT count(*) AS n FROM lineitem GROUP BY l_partkey)"
        [(hottest,)] = connection.execute(share).fetchall()
    assert 0.15 < hottest < 0.35
