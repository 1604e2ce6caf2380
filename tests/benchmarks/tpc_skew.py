"""Makes the foreign keys of TPC-H's and TPC-DS's facts follow Zipf's law.

The generators draw these keys uniformly. Here, each key of a dimension is replaced in all facts by another, so that the
key of rank r is `r ** -exponent` times as frequent as the first. All facts have the same replacements, so returns still
belong to their sales. The ranks are spread over the keys at random, with a fixed seed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import duckdb
import numpy as np
import pyarrow as pa

_SEED = 20_130_101

_OF_PARTS = """
    SELECT l.* REPLACE (p.new AS l_partkey, s.ps_suppkey AS l_suppkey)
    FROM facts AS l
    JOIN of_part AS p ON p.old = l.l_partkey
    JOIN (SELECT *, row_number() OVER (PARTITION BY ps_partkey ORDER BY ps_suppkey) AS place FROM partsupp) AS s
      ON s.ps_partkey = p.new AND s.place = l.l_linenumber % 4 + 1
"""
"""A line's supplier has to be one of the four that have the part."""

_DIMENSIONS = {
    "tpch": {"part": "p_partkey", "customer": "c_custkey"},
    "tpcds": {"item": "i_item_sk", "customer": "c_customer_sk"},
}

_FACTS: Mapping[str, Mapping[str, Mapping[str, str] | str]] = MappingProxyType(
    {
        "tpch": {"lineitem": _OF_PARTS, "orders": {"o_custkey": "customer"}},
        "tpcds": {
            "store_sales": {"ss_item_sk": "item", "ss_customer_sk": "customer"},
            "store_returns": {"sr_item_sk": "item", "sr_customer_sk": "customer"},
            "catalog_sales": {"cs_item_sk": "item", "cs_bill_customer_sk": "customer"},
            "catalog_returns": {"cr_item_sk": "item", "cr_returning_customer_sk": "customer"},
            "web_sales": {"ws_item_sk": "item", "ws_bill_customer_sk": "customer"},
            "web_returns": {"wr_item_sk": "item", "wr_returning_customer_sk": "customer"},
        },
    }
)
"""For each fact, the dimension of each column, or the query that replaces its keys. A key that is NULL stays NULL."""


def skew(root: Path, to: Path, workload: str, exponent: float) -> None:
    """Writes the tables of `root`, one Parquet file each, to the existing directory `to`, with skewed facts.

    `workload` is `tpch` or `tpcds`. The keys of a dimension must be 1, 2, and so on.
    """
    paths = {path.stem: path for path in sorted(root.glob("*.parquet"))}
    facts = _FACTS[workload]
    for name in paths.keys() - facts.keys():
        os.link(paths[name], to / paths[name].name)
    with duckdb.connect(config={"threads": 2}) as connection:
        if "partsupp" in paths:
            connection.execute(f"CREATE VIEW partsupp AS FROM '{paths['partsupp']}'")
        for number, (name, key) in enumerate(_DIMENSIONS[workload].items()):
            [(count,)] = connection.execute(f"SELECT max({key}) FROM '{paths[name]}'").fetchall()
            connection.register(f"of_{name}", replacements(int(count), exponent, _SEED + number))
        for name, change in facts.items():
            connection.execute(f"CREATE OR REPLACE VIEW facts AS FROM '{paths[name]}'")
            query = change if isinstance(change, str) else _replaced(change)
            connection.execute(f"COPY ({query}) TO '{to / paths[name].name}' (FORMAT parquet)")


def replacements(count: int, exponent: float, seed: int) -> pa.Table:
    """Returns the columns `old`, with the keys from 1 to `count`, and `new`. If the old keys are uniform, the new ones
    follow Zipf's law.
    """
    random = np.random.default_rng(seed)
    shares = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    bounds = np.cumsum(shares) / shares.sum()
    ranks = np.searchsorted(bounds, (random.permutation(count) + 0.5) / count)
    keys = random.permutation(count) + 1
    return pa.table({"old": np.arange(1, count + 1), "new": keys[ranks]})


def _replaced(columns: Mapping[str, str]) -> str:
    new = ", ".join(f"of_{column}.new AS {column}" for column in columns)
    joins = "".join(
        f" LEFT JOIN of_{name} AS of_{column} ON of_{column}.old = f.{column}" for column, name in columns.items()
    )
    return f"SELECT f.* REPLACE ({new}) FROM facts AS f{joins}"
