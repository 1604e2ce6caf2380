"""`prune_union_branches`: which branches it drops, by the tables that the plan still reads."""

from __future__ import annotations

from dataclasses import replace

import pytest

from service.contract.options import JobSettings
from tests.support.applied_rules import matched, skipped
from tests.support.compiled import compiled
from workers.engine.plan.builder import build
from workers.engine.plan.nodes import Filter, Join, Node, Scan, output_of
from workers.engine.plan.traversal import walk_up
from workers.engine.plan.validation import check
from workers.engine.rules.prune_union_branches import PruneUnionBranches, Requirement, without_excluded_branches
from workers.engine.rules.rule import RuleContext
from workers.engine.statistics.model import Statistics

RULE = PruneUnionBranches()
CONTEXT = RuleContext(JobSettings(), Statistics({}, {}, slots=2))
TABLES = ("web", "shop", "mail", "users")
SCHEMA = "uid BIGINT, n INT, name STRING"
SALES = """
    WITH sales AS (
      SELECT uid, n, 'w' AS kind, 1 AS level, TRUE AS online FROM web
      UNION ALL SELECT uid, n, 's', 2, FALSE FROM shop
      UNION ALL SELECT uid, n, NULL, -3, NULL FROM mail)
"""


def plan_of(sql: str) -> Node:
    return build(compiled(dict.fromkeys(TABLES, SCHEMA), SALES + sql, name="pruned"))


def tables_read(plan: Node) -> list[str]:
    return [node.table for node in walk_up(plan) if isinstance(node, Scan)]


def pruned(sql: str) -> list[str]:
    """The tables that the plan of `sql` reads after the rule; its columns must stay the same."""
    before = plan_of(sql)
    after = without_excluded_branches(before)
    check(after, RULE.name, output_of(before))
    return tables_read(after)


@pytest.mark.parametrize(
    ("where", "tables"),
    [
        ("kind = 's'", "shop"),
        ("'s' = kind", "shop"),
        ("n > 1 AND (kind = 's' AND uid = 7)", "shop"),
        ("kind IN ('s', 'w')", "web shop"),
        ("kind IN ('s', NULL)", "shop"),
        ("kind = 's' AND level IN (2, 5)", "shop"),
        ("level = -3", "mail"),
        ("online = FALSE", "shop"),
        # One branch stays, so that the plan keeps its columns.
        ("kind = 'x'", "web"),
        ("kind = NULL", "web"),
        # Of these it does not know that no row can meet them.
        ("kind = 's' OR n = 1", "web shop mail"),
        ("NOT kind = 's'", "web shop mail"),
        ("kind <=> NULL", "web shop mail"),
        ("kind IS NULL", "web shop mail"),
        ("kind = name", "web shop mail"),
        ("upper(kind) = 'S'", "web shop mail"),
        ("level = 2.0", "web shop mail"),
        ("n = 1", "web shop mail"),
    ],
)
def test_a_condition_on_a_constant_column(where: str, tables: str) -> None:
    where = where.replace("name", "CAST(uid AS STRING)")
    assert pruned(f"SELECT uid, n FROM sales WHERE {where}") == tables.split()


@pytest.mark.parametrize(
    ("join", "where", "tables"),
    [
        *((f"{kind} JOIN", "WHERE s.kind = 's'", "users shop") for kind in ("", "LEFT", "RIGHT", "FULL")),
        ("JOIN", "AND s.kind = 's'", "users shop"),
        ("LEFT JOIN", "AND s.kind = 's'", "users shop"),
        ("LEFT SEMI JOIN", "AND s.kind = 's'", "users shop"),
        ("LEFT ANTI JOIN", "AND s.kind = 's'", "users shop"),
        # The sales without a user are emitted, whatever their kind.
        ("RIGHT JOIN", "AND s.kind = 's'", "users web shop mail"),
        ("FULL JOIN", "AND s.kind = 's'", "users web shop mail"),
    ],
)
def test_a_condition_above_a_join_and_in_it(join: str, where: str, tables: str) -> None:
    assert pruned(f"SELECT u.uid FROM users u {join} sales s ON u.uid = s.uid {where}") == tables.split()


@pytest.mark.parametrize(
    ("sql", "tables"),
    [
        ("SELECT level FROM sales WHERE kind = 's'", "shop"),
        ("SELECT x.k FROM (SELECT kind AS k FROM sales WHERE n > 0) x WHERE x.k = 's'", "shop"),
        ("SELECT kind, COUNT(*) AS c FROM sales GROUP BY kind HAVING kind = 's'", "shop"),
        ("SELECT x.k FROM (SELECT DISTINCT kind AS k FROM sales) x WHERE x.k = 's'", "shop"),
        (
            "SELECT x.v FROM (SELECT CAST(5 AS BIGINT) AS v FROM web UNION ALL SELECT uid FROM shop) x WHERE x.v = 6",
            "shop",
        ),
        # A user may be called 's'.
        (
            "SELECT x.k FROM (SELECT kind AS k FROM sales UNION ALL SELECT name FROM users) x WHERE x.k = 's'",
            "shop users",
        ),
        ("SELECT x.k FROM (SELECT MAX(kind) AS k FROM sales GROUP BY uid) x WHERE x.k = 's'", "web shop mail"),
        ("SELECT x.k FROM (SELECT kind AS k FROM sales ORDER BY n LIMIT 5) x WHERE x.k = 's'", "web shop mail"),
        (
            "SELECT x.k FROM (SELECT kind AS k, uid FROM sales GROUP BY ROLLUP (kind, uid)) x WHERE x.k = 's'",
            "web shop mail",
        ),
    ],
)
def test_nodes_between_the_condition_and_the_union(sql: str, tables: str) -> None:
    assert pruned(sql) == tables.split()


def test_a_union_inside_a_union() -> None:
    sql = """
        SELECT x.k, x.level FROM (
          SELECT 'a' AS k, level FROM sales UNION ALL SELECT 'b' AS k, level FROM sales
        ) x WHERE x.k = 'b' AND x.level IN (1, 2)
    """
    assert pruned(sql) == ["web", "shop"]


def test_a_branch_with_the_constant_further_below() -> None:
    sql = """
        SELECT x.k FROM (
          SELECT y.k FROM (SELECT 'a' AS k, uid FROM web) y GROUP BY y.k, y.uid
          UNION ALL SELECT z.k FROM (SELECT 'b' AS k FROM shop LIMIT 3) z JOIN users u ON u.name = z.k
          UNION ALL SELECT v.k FROM users u JOIN (SELECT 'c' AS k FROM mail) v ON u.name = v.k
          UNION ALL SELECT CAST(NULL AS STRING) AS k FROM web
          UNION ALL SELECT y.k FROM (SELECT q.k FROM (SELECT 'c' AS k FROM web) q LIMIT 3) y
        ) x WHERE x.k = 'b'
    """
    assert pruned(sql) == ["shop", "users"]


def test_the_trace_says_what_is_not_read() -> None:
    plan = plan_of("SELECT uid FROM sales WHERE kind = 's'")
    node = next(node for node in walk_up(plan) if isinstance(node, Filter))
    match = matched(RULE, node, CONTEXT)
    assert match.reason == "2 branches of UNION are not read: the condition on sales.kind excludes them."
    assert tables_read(RULE.rewrite(match, CONTEXT)) == ["shop"]


def test_it_says_why_an_outer_join_keeps_a_branch() -> None:
    plan = plan_of("SELECT u.uid FROM users u RIGHT JOIN sales s ON u.uid = s.uid AND s.kind IN ('s', 'w')")
    node = next(node for node in walk_up(plan) if isinstance(node, Join))
    skip = skipped(RULE, node, CONTEXT)
    assert skip.reason == (
        "The condition in ON excludes 1 branch of a UNION, but the join is RIGHT: it also emits rows that have no "
        "partner."
    )


@pytest.mark.parametrize(
    ("sql", "left"),
    [
        ("SELECT s.n FROM sales s WHERE s.kind = 's'", []),
        ("SELECT s.n FROM sales s WHERE s.kind IN ('w', 's')", []),
        ("SELECT s.n FROM sales s WHERE s.kind = 's' AND s.n > 1 AND s.level = 2", ["s.n > 1"]),
        ("SELECT s.n FROM sales s WHERE s.kind = 'x'", ["s.kind = 'x'"]),
        ("SELECT s.n FROM users u LEFT JOIN sales s ON s.uid = u.uid AND s.kind = 's'", []),
        # The join makes the column NULL for users without a sale.
        ("SELECT s.n FROM users u LEFT JOIN sales s ON s.uid = u.uid WHERE s.kind = 's'", ["s.kind = 's'"]),
        ("SELECT s.n FROM users u RIGHT JOIN sales s ON s.uid = u.uid WHERE s.kind = 's'", []),
        ("SELECT s.n FROM sales s LEFT JOIN users u ON s.uid = u.uid WHERE s.kind = 's'", []),
        ("SELECT s.n FROM sales s RIGHT JOIN users u ON s.uid = u.uid WHERE s.kind = 's'", ["s.kind = 's'"]),
        ("SELECT s.n FROM sales s FULL JOIN users u ON s.uid = u.uid WHERE s.kind = 's'", ["s.kind = 's'"]),
        ("SELECT s.n FROM users u FULL JOIN sales s ON s.uid = u.uid WHERE s.kind = 's'", ["s.kind = 's'"]),
        ("SELECT s.n FROM sales s WHERE s.kind = 's' AND (s.level = 2 AND s.n > 1)", ["s.level = 2 AND s.n > 1"]),
        ("SELECT s.n FROM sales s WHERE s.kind = 's' AND (s.level = 2 OR s.n > 1)", ["s.level = 2 OR s.n > 1"]),
        # A user may have another name.
        (
            "SELECT x.k FROM (SELECT kind AS k FROM sales UNION ALL SELECT name FROM users) x WHERE x.k = 's'",
            ["x.k = 's'"],
        ),
        (
            "SELECT s.n FROM sales s JOIN (SELECT q.k FROM (SELECT 'g' AS k FROM users) q GROUP BY q.k) g "
            "ON TRUE WHERE s.kind = 's' AND g.k = 'g'",
            [],
        ),
        # ROLLUP adds a row in which the column is NULL.
        (
            "SELECT s.n FROM sales s JOIN (SELECT q.k FROM (SELECT 'g' AS k FROM users) q GROUP BY ROLLUP (q.k)) g "
            "ON TRUE WHERE s.kind = 's' AND g.k = 'g'",
            ["g.k = 'g'"],
        ),
    ],
)
def test_terms_that_all_rows_meet_are_removed(sql: str, left: list[str]) -> None:
    """Else the estimates would take them for ones that keep a part of the rows."""
    after = without_excluded_branches(plan_of(sql))
    filters = [str(node.condition) for node in walk_up(after) if isinstance(node, Filter)]
    residuals = [str(node.residual) for node in walk_up(after) if isinstance(node, Join) and node.residual is not None]
    assert [*filters, *residuals] == left


def test_the_trace_names_the_column_of_the_condition() -> None:
    plan = plan_of("SELECT y.k FROM (SELECT x.kind AS k FROM (SELECT kind FROM sales) x) y WHERE y.k = 's'")
    node = next(node for node in walk_up(plan) if isinstance(node, Filter))
    match = matched(RULE, node, CONTEXT)
    assert match.reason == "2 branches of UNION are not read: the condition on y.k excludes them."


def test_a_condition_above_makes_that_of_the_join_no_matter() -> None:
    plan = plan_of("SELECT s.n FROM sales s FULL JOIN users u ON s.uid = u.uid AND s.kind = 's' WHERE s.kind = 's'")
    above = next(node for node in walk_up(plan) if isinstance(node, Filter))
    assert RULE.match(above.input, CONTEXT) is not None
    assert RULE.match(above.input, replace(CONTEXT, above=(above.condition,))) is None


def test_constants_of_two_types_are_not_compared() -> None:
    one = Requirement("c", frozenset({1}))
    assert [(one.admits(value), one.is_met_by(value)) for value in (1, 2, True, "1", None)] == [
        (True, True),
        (False, False),
        (True, False),
        (True, False),
        (False, False),
    ]


def test_a_plan_without_excluded_branches_stays_the_same() -> None:
    plan = plan_of("SELECT s.uid FROM sales s JOIN users u ON u.uid = s.uid WHERE s.n = 1")
    assert without_excluded_branches(plan) is plan
    assert all(RULE.match(node, CONTEXT) is None for node in walk_up(plan))
