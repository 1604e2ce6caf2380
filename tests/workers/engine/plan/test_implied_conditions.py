"""Conditions on single tables that follow from an OR over several tables."""

from __future__ import annotations

import pytest

from service.sql.expressions.analysis import tree_of
from service.sql.expressions.nodes import Column
from service.sql.expressions.scalar import Scalar
from service.sql.types.data_types import BOOLEAN, INT
from tests.support.scalars import scalar
from workers.engine.plan.implied_conditions import with_implied_conditions

INPUTS = ({"l.a", "l.b"}, {"r.c"}, {"s.d"})
COLUMNS = {name: Column(name, INT) for names in INPUTS for name in names}


def typed(sql: str) -> Scalar:
    """Returns the condition over INT columns."""
    tree = tree_of(scalar(sql, BOOLEAN), COLUMNS)
    assert tree is not None
    return Scalar(tree, BOOLEAN)


@pytest.mark.parametrize(
    ("condition", "implied"),
    [
        ("(`l.a` = 1 AND `r.c` = 2) OR (`l.a` = 3 AND `r.c` = 4)", "(l.a = 1 OR l.a = 3) AND (r.c = 2 OR r.c = 4)"),
        ("(`l.a` = 1 AND `r.c` = 2) OR (`l.a` = 3 AND `r.c` = `l.b`)", "(l.a = 1 OR l.a = 3)"),
        ("(`l.a` = 1 AND `r.c` = 2) OR (`l.a` = 1 AND `r.c` > 4)", "l.a = 1 AND (r.c = 2 OR r.c > 4)"),
        (
            "(`l.a` = 1 AND `l.b` > 1 AND `r.c` = 2) OR (`l.a` = 3 AND (`r.c` = 4 OR `l.b` = 5))",
            "(l.a = 1 AND l.b > 1 OR l.a = 3)",
        ),
        ("`s.d` < 9 AND ((`l.a` = 1 AND `r.c` = 2) OR (`r.c` = 4 AND `s.d` = 1))", "(r.c = 2 OR r.c = 4)"),
    ],
)
def test_what_all_terms_of_an_or_require_is_added(condition: str, implied: str) -> None:
    before = typed(condition)
    assert str(with_implied_conditions(before, INPUTS)) == f"{_inner(before)} AND {implied}"


@pytest.mark.parametrize(
    "condition",
    [
        "`l.a` = 1 AND `r.c` = 2",
        "`l.a` = 1 OR `l.b` = 2",
        "`l.a` = 1 OR `r.c` = 2",
        "(`l.a` = 1 AND `r.c` = 2) OR `l.b` + `r.c` = 4",
        # The division may fail on rows that have no partner.
        "(1 / `l.a` = 1 AND `r.c` = `l.a`) OR (`l.a` = 3 AND `r.c` = `l.b`)",
        "((`l.a` = 1 AND `r.c` > `l.b`) OR (`l.a` = 3 AND `r.c` < `l.b`)) AND (`l.a` = 1 OR `l.a` = 3)",
    ],
)
def test_nothing_is_added(condition: str) -> None:
    before = typed(condition)
    assert with_implied_conditions(before, INPUTS) is before


def _inner(condition: Scalar) -> str:
    """Returns the text as a term of an AND."""
    text = str(condition)
    return f"({text})" if " OR " in text and not text.startswith("s.d") else text
