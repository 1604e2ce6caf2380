"""The phases of the two aggregates that a split one becomes."""

from __future__ import annotations

from service.contract.options import AggPhase
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, Field
from workers.engine.plan.aggregates import final_of, key_columns, partial_of
from workers.engine.plan.explain import line_of
from workers.engine.plan.nodes import Aggregate, Named, Scan

A = column("t.a", BIGINT)
WHOLE = Aggregate(Scan("t", "t", ((Field("t.a", BIGINT), "a"),)), (Named(A, "k"),), ())


def test_phases_and_exchanges() -> None:
    assert line_of(partial_of(WHOLE, spread=False)) == "Aggregate PARTIAL TWO_PHASE BY t.a AS k []"
    spread = partial_of(WHOLE, spread=True)
    assert [line_of(spread), line_of(spread.input)] == ["Aggregate PARTIAL ONE_PHASE BY t.a AS k []", "Exchange BY t.a"]
    assert line_of(final_of(spread, key_columns(WHOLE), (), AggPhase.AUTO)) == "Aggregate FINAL TWO_PHASE BY k []"
    one = final_of(spread, key_columns(WHOLE), (), AggPhase.ONE_PHASE)
    assert [line_of(one), line_of(one.input)] == ["Aggregate FINAL ONE_PHASE BY k []", "Exchange BY k"]
    assert line_of(final_of(spread, (), (), AggPhase.ONE_PHASE)) == "Aggregate FINAL TWO_PHASE []"
