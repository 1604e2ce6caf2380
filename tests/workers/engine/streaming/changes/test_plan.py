"""Tests of plans by changes: their steps, and what identifies the rows of the result."""

from __future__ import annotations

import pytest

from tests.support.stream_queries import built
from workers.engine.plan.nodes import Aggregate
from workers.engine.plan.traversal import walk_up
from workers.engine.streaming.changes.aggregates import share_values
from workers.engine.streaming.changes.plan import plan_changes
from workers.engine.streaming.changes.steps import ChangePlan, ChangesPlanError

pytestmark = pytest.mark.quick

PER_KEY = "(SELECT k, g, COUNT(*) AS n, MAX(i) AS most FROM s GROUP BY k, g) AS c"


def planned(sql: str) -> ChangePlan:
    return plan_changes(*built(sql))


@pytest.mark.parametrize(
    ("sql", "steps"),
    [
        ("SELECT k, i FROM s WHERE i > 3", []),
        ("SELECT k, COUNT(*) AS n FROM s GROUP BY k", ["The aggregate by s.k keeps one row for each group."]),
        (
            f"SELECT n, SUM(most) AS m FROM {PER_KEY} GROUP BY n",
            [
                "The aggregate by s.k, s.g keeps one row for each group.",
                "The aggregate by c.n keeps one row for each group.",
            ],
        ),
        (
            # Groups of an aggregate lose rows, so a new maximum needs the other values.
            f"SELECT n, MAX(most) AS m FROM {PER_KEY} GROUP BY n",
            [
                "The aggregate by s.k, s.g keeps one row for each group.",
                "The aggregate by c.n keeps the rows of its inputs.",
            ],
        ),
        (
            "SELECT k, SUM(d) AS x FROM (SELECT k, g, AVG(d) AS d FROM s GROUP BY k, g) AS c GROUP BY k",
            [
                "The aggregate by s.k, s.g keeps one row for each group.",
                # A sum of doubles depends on the order of the rows.
                "The aggregate by c.k keeps the rows of its inputs, and those that it emitted.",
            ],
        ),
        (
            "SELECT k, COUNT(DISTINCT n) AS x FROM (SELECT k, g, COUNT(*) AS n FROM s GROUP BY k, g) AS c GROUP BY k",
            [
                "The aggregate by s.k, s.g keeps one row for each group.",
                "DISTINCT keeps the number of each row.",
                "The aggregate by k keeps one row for each group.",
            ],
        ),
        ("SELECT s.k, t.i FROM s JOIN t ON s.k = t.k", ["The join by s.k keeps the rows of both inputs."]),
        (
            "SELECT s.k, t.i FROM s LEFT JOIN t ON s.k = t.k",
            ["The join by s.k keeps the rows of its inputs.", "The result keeps the number of each row."],
        ),
        ("SELECT n.name, s.k FROM s JOIN n ON s.g = n.g", []),
    ],
)
def test_the_steps_of_a_query(sql: str, steps: list[str]) -> None:
    assert list(planned(sql).texts) == steps


UNDER_CONDITIONS = "SELECT k, COUNT(DISTINCT i) AS a, COUNT(DISTINCT i) FILTER (WHERE q) AS b FROM s GROUP BY k"


@pytest.mark.parametrize(
    ("form", "values"),
    [
        (1, "DISTINCT keeps the number of each row."),
        (2, "DISTINCT keeps the conditions that were true for each row."),
    ],
)
def test_a_state_of_an_earlier_form_keeps_its_steps(form: int, values: str) -> None:
    plan = plan_changes(*built(UNDER_CONDITIONS), form=form)
    assert list(plan.texts) == [values, "The aggregate by k keeps one row for each group."]
    assert plan.form == form


@pytest.mark.parametrize(
    ("sql", "shape"),
    [
        (UNDER_CONDITIONS, True),
        ("SELECT k, COUNT(DISTINCT i) AS a, COUNT(DISTINCT g) FILTER (WHERE q) AS b FROM s GROUP BY k", False),
        ("SELECT k, COUNT(DISTINCT i) AS a, COUNT(i) FILTER (WHERE q) AS b FROM s GROUP BY k", False),
    ],
)
def test_calls_that_share_distinct_values(sql: str, shape: bool) -> None:
    (aggregate,) = (node for node in walk_up(built(sql)[0]) if isinstance(node, Aggregate))
    assert share_values(aggregate.calls) is shape


@pytest.mark.parametrize(
    ("sql", "keys", "weight"),
    [
        # Rows are only added.
        ("SELECT s.k, t.i FROM s JOIN t ON s.k = t.k", None, None),
        ("SELECT k, g, COUNT(*) AS n FROM s GROUP BY k, g HAVING COUNT(*) < 3", ("k", "g"), "$weight"),
        # The key that SELECT lacks is hidden.
        ("SELECT k AS name, COUNT(*) AS n FROM s GROUP BY k, g HAVING COUNT(*) < 3", ("name", "$key1"), "$weight"),
        ("SELECT COUNT(*) AS n FROM (SELECT DISTINCT k FROM s) AS c", (), "$weight"),
        # No columns identify the rows, so equal ones are counted.
        ("SELECT s.k FROM s LEFT JOIN t ON s.k = t.k", ("k",), "$weight"),
    ],
)
def test_what_identifies_the_rows(sql: str, keys: tuple[str, ...] | None, weight: str | None) -> None:
    plan = planned(sql)
    assert (plan.keys, plan.weight) == (keys, weight)


@pytest.mark.parametrize(("bound", "name"), [("START", "since"), ("END", "until")])
def test_a_bound_of_a_window_identifies_it(bound: str, name: str) -> None:
    hour = "INTERVAL '1' HOUR"
    sql = f"SELECT k, TUMBLE_{bound}(ts, {hour}) AS {name}, COUNT(*) AS n FROM s GROUP BY k, TUMBLE(ts, {hour})"
    assert plan_changes(*built(f"{sql} HAVING COUNT(*) < 3", timed=True)).keys == (name, "k")


@pytest.mark.parametrize(
    ("sql", "why"),
    [
        ("SELECT k FROM s ORDER BY k LIMIT 3", "ORDER BY and LIMIT need the complete result"),
        ("SELECT k, RANK() OVER (ORDER BY k) AS r FROM s", "without PARTITION BY"),
        ("SELECT k FROM s UNION ALL SELECT name FROM n", "a stream and a static table"),
        ("SELECT n.name FROM n LEFT JOIN s ON s.g = n.g", "have no match in the stream"),
        ("SELECT s.p FROM s JOIN t ON s.k = t.k", "such rows cannot be compared"),
    ],
)
def test_refused_queries(sql: str, why: str) -> None:
    with pytest.raises(ChangesPlanError, match=why):
        planned(sql)
