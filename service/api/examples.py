"""Bodies that the specification shows."""

from __future__ import annotations

from typing import Any

JOB_EXAMPLES: dict[str, Any] = {
    "sql": {
        "summary": "SQL",
        "value": {
            "name": "categories-per-user",
            "tables": {
                "orders": {"format": "parquet", "path": "orders/"},
                "users": {
                    "format": "csv",
                    "path": "users/",
                    "schema": "uid BIGINT, name STRING",
                    "options": {"header": True},
                },
            },
            "sql": "SELECT o.uid, COUNT(DISTINCT o.category) AS categories "
            "FROM orders o JOIN users u ON o.uid = u.uid GROUP BY o.uid",
            "settings": {"distinct_split": {"enabled": "auto", "bucket_num": 1024}},
            "limits": {"timeout": "1h"},
        },
    },
    "query": {
        "summary": "The same as a structure, with one of Flink's keys",
        "value": {
            "name": "categories-per-user",
            "tables": {"orders": {"format": "parquet", "path": "orders/"}},
            "query": {
                "source": {"kind": "table", "table": "orders", "alias": "o"},
                "group_by": [{"expression": "o.uid", "name": "uid"}],
                "aggregates": [
                    {"function": "COUNT", "arguments": ["o.category"], "distinct": True, "name": "categories"}
                ],
            },
            "settings": {"table.optimizer.agg-phase-strategy": "TWO_PHASE"},
        },
    },
}

PROFILE_EXAMPLES: dict[str, Any] = {
    "keys": {
        "summary": "Two keys of a table, for 200 tasks",
        "value": {
            "table": {"format": "parquet", "path": "flights/"},
            "keys": [["tailnum"], ["origin", "dest"]],
            "slots": 200,
        },
    },
}
