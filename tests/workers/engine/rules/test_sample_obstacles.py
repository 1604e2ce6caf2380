"""Samples that are too weak to skip a local phase; `test_two_phase_aggregate.py` has each reason in a trace."""

from __future__ import annotations

from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, DOUBLE, DataType, Field
from workers.engine.plan.nodes import Aggregate, Named, Scan
from workers.engine.rules.cost import MIN_SAMPLED_ROWS, one_phase_obstacle
from workers.engine.statistics.model import KeySketch, Statistics, TableSize


def doubt(type_: DataType, sampled: int = MIN_SAMPLED_ROWS, representative: bool = True) -> str | None:
    sketch = KeySketch("t", ("t.a",), sampled, 1, 0.0, (), representative)
    known = Statistics({"t": TableSize("t", 1, 1 << 30, 1_000_000, True)}, {("t.a",): sketch}, slots=2)
    scan = Scan("t", "t", ((Field("t.a", type_), "a"),))
    return one_phase_obstacle(Aggregate(scan, (Named(column("t.a", type_), "a"),), ()), known)


def test_a_good_sample_leaves_no_doubt() -> None:
    assert doubt(BIGINT) is None
    assert "which is a DOUBLE" in (doubt(DOUBLE) or "")
    assert "rows were sampled" in (doubt(BIGINT, sampled=MIN_SAMPLED_ROWS - 1) or "")
    assert "sorted by t.a" in (doubt(BIGINT, representative=False) or "")
