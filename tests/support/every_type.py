"""Values of every type that sinks support, including the smallest and the largest."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from service.sql.types.data_types import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    TIMESTAMP_NTZ,
    TINYINT,
    DataType,
    decimal,
)

EVERY_TYPE: tuple[tuple[DataType, list[Any]], ...] = (
    (BOOLEAN, [True, False]),
    (TINYINT, [-128, 127]),
    (INT, [-(2**31), 2**31 - 1]),
    (BIGINT, [-(2**63), 2**63 - 1]),
    (FLOAT, [1.5, float("inf")]),
    (DOUBLE, [0.1, float("-inf")]),
    (decimal(38, 10), [Decimal("9" * 28 + ".0000000001"), Decimal("-1.5000000000")]),
    (STRING, ["", "ä'\"\\\n\x01"]),
    (BINARY, [b"", b"\x00\xff"]),
    (DATE, [date(1, 1, 1), date(9999, 12, 31)]),
    (TIMESTAMP, [datetime(1, 1, 2, tzinfo=UTC), datetime(2026, 3, 29, 1, 30, 0, 123456, tzinfo=UTC)]),
    (TIMESTAMP_NTZ, [datetime.fromisoformat("0001-01-01"), datetime.fromisoformat("9999-12-31T23:59:59.999999")]),
)
