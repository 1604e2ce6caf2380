"""A salted join that reads its hot side once: the plan is valid and has the expected text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.query import JoinKind
from service.sql.expressions.scalar import column
from service.sql.joins import Side
from service.sql.types.data_types import BIGINT, STRING, Field
from tests.support.scalars import scalar
from workers.engine.plan.explain import text_of
from workers.engine.plan.nodes import Join, Scan, output_of
from workers.engine.plan.validation import check
from workers.engine.rules.joins.skew_rewrite import PROBE_SIDES, salted_in_one_read

SEVEN = (scalar("7L", BIGINT),)
LEFT = Scan("l", "l", ((Field("l.k", BIGINT), "k"), (Field("l.v", STRING), "v")))
RIGHT = Scan("r", "r", ((Field("r.k", BIGINT), "k"), (Field("r.w", STRING), "w")))
JOIN = Join(LEFT, RIGHT, JoinKind.LEFT, ((column("l.k", BIGINT), column("r.k", BIGINT)),))


def test_the_hot_side_is_read_once() -> None:
    assert text_of(salted_in_one_read(JOIN, Side.LEFT, (SEVEN,), nulls=True, salts=4)) == (
        """\
Project l.k, l.v, r.k, r.w
  Join LEFT REPARTITION SORT_MERGE NONE ON l.k = r.k AND $salt = $copy
    Project l.k, l.v, if(l.k <=> 7L OR l.k IS NULL, CAST(pmod(xxhash64(l.v), 4) + 1 AS INT), 1) AS $salt
      Scan l AS l [l.k, l.v]
    Union 2 inputs
      Project r.k, r.w, 1 AS $copy
        Filter NOT r.k <=> 7L
          Scan r AS r [r.k, r.w]
      Expand 4 branches AS $copy
        Filter r.k <=> 7L
          Scan r AS r [r.k, r.w]"""
    )


def test_nulls_alone_need_no_copies() -> None:
    text = text_of(salted_in_one_read(JOIN, Side.LEFT, (), nulls=True, salts=4))
    assert "Join LEFT NONE ON l.k = r.k AND $salt = $copy" in text
    assert "if(l.k IS NULL, CAST(pmod(xxhash64(l.v), 4) + 1 AS INT), 1) AS $salt" in text
    assert "Project r.k, r.w, 1 AS $copy\n      Scan" in text


@pytest.mark.parametrize(("kind", "probe"), [(kind, probe) for kind, sides in PROBE_SIDES.items() for probe in sides])
def test_each_side_that_may_be_split(kind: JoinKind, probe: Side) -> None:
    node = replace(JOIN, kind=kind)
    check(salted_in_one_read(node, probe, (SEVEN, SEVEN), nulls=False, salts=3), "a test", output_of(node))


def test_names_of_its_own() -> None:
    node = replace(JOIN, left=replace(LEFT, columns=(*LEFT.columns, (Field("$SALT", STRING), "s"))))
    check(salted_in_one_read(node, Side.LEFT, (SEVEN,), nulls=False, salts=3), "a test", output_of(node))


def test_what_cannot_be_salted() -> None:
    with pytest.raises(ValueError, match="a disjunction needs a term"):
        salted_in_one_read(JOIN, Side.LEFT, (), nulls=False, salts=3)
    with pytest.raises(ValueError, match="no column to compute a salt from"):
        salted_in_one_read(
            replace(JOIN, left=replace(LEFT, columns=LEFT.columns[:1])), Side.LEFT, (SEVEN,), nulls=False, salts=3
        )
