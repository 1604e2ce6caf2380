"""Two streams joined and aggregated in one state. tests/conformance/test_streams.py compares the results."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.query import JoinKind
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, INT, DataType, TypeName
from tests.support.joined import call, col, joined, scan, text
from tests.support.plan_parts import lines_of
from tests.support.scalars import scalar
from workers.engine.plan.nodes import Aggregate, Call, Filter, Join, Named, Project, output_of
from workers.engine.plan.traversal import walk_up
from workers.engine.plan.validation import check
from workers.engine.streaming.stream_joins import aggregate_in_one_state, one_state_refusal

INNER, LEFT, RIGHT = JoinKind.INNER, JoinKind.LEFT, JoinKind.RIGHT
SEMI, ANTI, FULL = JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI, JoinKind.FULL


def by_key(*calls: Call, kind: JoinKind = INNER, residual: Scalar | None = None, by: str = "l.k") -> Aggregate:
    return joined(*calls, kind=kind, by=(by,), residual=residual)


def lines(node: Aggregate) -> list[str]:
    after = aggregate_in_one_state(node)
    check(after, "the test", output_of(node))
    assert not any(isinstance(part, Join) for part in walk_up(after))
    return lines_of(after)


def test_groups_of_an_inner_join_have_rows_on_both_sides() -> None:
    assert lines(by_key(call("COUNT"), call("MAX", col("r.i")))) == [
        "Filter l.k IS NOT NULL",
        "Project l.k AS $k0, 1 AS $u0, CAST(NULL AS INT) AS $u1, CAST(NULL AS INT) AS $u2",
        "Filter r.k IS NOT NULL",
        "Project r.k AS $k0, CAST(NULL AS INT) AS $u0, 1 AS $u1, r.i AS $u2",
        "Union 2 inputs",
        "Aggregate BY $k0 [COUNT($u0) AS $l0, COUNT($u1) AS $r0, MAX($u2) AS $r1]",
        "Filter $l0 > 0L AND $r0 > 0L",
        "Project $k0 AS l_k, $l0, $r0, $r1",
        "Project l_k, $l0, $r0, $r1, $l0 * $r0 AS $f0, $r1 AS $f1",
        "Project l_k, coalesce($f0, 0L) AS count, $f1 AS max_r.i",
    ]


@pytest.mark.parametrize(("kind", "kept", "other"), [(LEFT, "l", "r"), (RIGHT, "r", "l")])
def test_the_preserved_side_of_an_outer_join_needs_no_match(kind: JoinKind, kept: str, other: str) -> None:
    told = lines(by_key(call("COUNT"), call("MIN", col(f"{other}.i")), kind=kind, by=f"{kept}.k"))
    assert [line for line in told if line.startswith("Filter")] == [
        f"Filter {other}.k IS NOT NULL",
        f"Filter ${kept}0 > 0L",
    ]
    # NULL for the other until it has rows, as an outer join has them.
    (parts,) = (line for line in told if line.startswith("Project $k0 AS"))
    assert f"if(${other}0 > 0L, ${other}1, NULL) AS ${other}1" in parts
    assert any(f"coalesce(${other}0, 1L)" in line for line in told)


def test_the_right_side_of_a_semi_join_is_only_counted() -> None:
    told = lines(by_key(call("COUNT"), kind=SEMI))
    assert "Aggregate BY $k0 [COUNT($u0) AS $l0, COUNT($u1) AS $nr]" in told
    assert "Filter $l0 > 0L AND $nr > 0L" in told
    assert told[-1] == "Project l_k, coalesce($f0, 0L) AS count"


def test_distinct_values_of_a_side_are_deduplicated_on_it() -> None:
    told = lines(by_key(call("COUNT", col("r.i"), distinct=True)))
    assert told[2:5] == ["Filter r.k IS NOT NULL", "Project r.k AS $u1, r.i AS $u2", "Deduplicate"]
    assert told[-1] == "Project l_k, count_r.i"


def test_conditions_of_a_side_are_moved_below_the_join() -> None:
    node = by_key(call("COUNT"), residual=text("r.q", "r.q"))
    told = lines(replace(node, input=Filter(node.input, text("l.i > 3", "l.i"))))
    assert [line for line in told if line.startswith("Filter")][:4] == [
        "Filter l.i > 3",
        "Filter l.k IS NOT NULL",
        "Filter r.q",
        "Filter r.k IS NOT NULL",
    ]


def test_expressions_above_the_join_are_moved_below_it() -> None:
    node = by_key(call("COUNT"))
    between = Project(node.input, (Named(col("l.k"), "x"), Named(col("r.x"), "y")))
    key, of = scalar("`x`", BIGINT), column("y", col("r.x").type)
    renamed = Aggregate(between, (Named(key, "x"),), (call("SUM", of),))
    assert lines(renamed)[-1] == "Project x, $f0 AS sum_y"


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (Aggregate(scan("l"), (Named(col("l.k"), "k"),), (call("COUNT"),)), "cannot be moved below the join"),
        (by_key(call("COUNT"), kind=FULL), "the rows of a FULL JOIN change as matches arrive"),
        (by_key(call("COUNT"), kind=ANTI), "an anti join would have to retract rows"),
        (joined(call("COUNT"), by=("l.k",), on=()), "no equality"),
        (
            by_key(call("COUNT"), residual=text("l.i < r.i", "l.i", "r.i")),
            "The condition l.i < r.i uses columns of",
        ),
        (
            by_key(call("COUNT"), kind=LEFT, residual=text("l.q", "l.q")),
            "The condition l.q uses columns of",
        ),
        (joined(call("COUNT"), by=("l.t",)), "grouped by l.t, which is not the join key"),
        (joined(call("COUNT"), by=("l.k",), on=("k", "b")), "not grouped by the complete join key"),
        (by_key(call("COUNT"), kind=LEFT, by="r.k"), "grouped by r.k, which is not the join key"),
        (by_key(call("COUNT"), kind=RIGHT), "grouped by l.k, which is not the join key"),
        (by_key(call("VAR_POP", col("l.x"))), r"VAR_POP\(l.x\) needs the joined rows"),
        (by_key(call("SUM", text("l.x + r.x", "l.x", "r.x"))), "uses columns of both sides"),
        (by_key(call("SUM", text("100 / l.i", "l.i", type_=INT))), "may fail on rows without a match"),
        (by_key(call("SUM", text("l.k + 1", "l.k", type_=BIGINT))), "may fail on rows without a match"),
        (by_key(call("COUNT", where=text("l.i < r.i", "l.i", "r.i"))), "has a FILTER over columns of both sides"),
        (by_key(call("SUM", col("l.w"))), r"is over DECIMAL\(30,2\): parts"),
        (by_key(call("SUM", col("l.y"))), "would lose digits"),
        (by_key(call("COUNT", col("l.i"), col("r.i"), distinct=True)), "uses columns of both sides"),
        (by_key(call("COUNT", text("100 / l.i", "l.i", type_=INT), distinct=True)), "may fail on rows without a match"),
        (
            by_key(call("COUNT", col("l.i"), distinct=True, where=text("1 / l.i > 0", "l.i"))),
            "may fail on rows without a match",
        ),
        (
            by_key(call("COUNT", text("coalesce(r.i, 1)", "r.i", type_=INT), distinct=True), kind=LEFT),
            "may count rows without a match",
        ),
        (by_key(call("COUNT", text("coalesce(r.i, 1)", "r.i", type_=INT)), kind=LEFT), "or may not be NULL there"),
    ],
)
def test_aggregates_that_one_state_cannot_compute(node: Aggregate, words: str) -> None:
    assert one_state_refusal(node) is not None
    with pytest.raises(ValueError, match=words):
        aggregate_in_one_state(node)


@pytest.mark.parametrize("type_", [None, INT, DataType(TypeName.OTHER)])
def test_join_keys_must_have_the_same_known_type(type_: DataType | None) -> None:
    node = by_key(call("COUNT"))
    assert isinstance(node.input, Join)
    keys = ((col("l.k"), replace(col("r.k"), type=type_)),)
    assert "not known to be equal" in (one_state_refusal(replace(node, input=replace(node.input, keys=keys))) or "")
