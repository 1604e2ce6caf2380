"""Very large queries of many shapes: those that are accepted, and those that a limit refuses."""

from __future__ import annotations

from typing import Any

TABLE = "t"
"""The table that all queries read, with the columns `a` BIGINT, `b` INT, `s` STRING and `ok` BOOLEAN."""

_SOURCE: dict[str, Any] = {"kind": "table", "table": TABLE}


def sql(text: str) -> dict[str, Any]:
    """Returns the field `sql` of a job."""
    return {"sql": text}


def selecting(*expressions: str, source: object = _SOURCE, **parts: Any) -> dict[str, Any]:
    """Returns a structured query with these columns: c0, c1, …"""
    select = [{"expression": text, "name": f"c{index}"} for index, text in enumerate(expressions)]
    return {"source": source, "select": select, **parts}


def query(*expressions: str, **parts: Any) -> dict[str, Any]:
    """Returns the field `query` of a job."""
    return {"query": selecting(*expressions, **parts)}


def chain(operator: str, term: str, count: int) -> str:
    """Returns `count` terms connected by `operator`, with the number of each in place of `#`."""
    return f" {operator} ".join(term.replace("#", str(number)) for number in range(count))


def listed(term: str, count: int) -> str:
    """Like `chain`, with commas."""
    return ",".join(term.replace("#", str(number)) for number in range(count))


def derived(levels: int) -> dict[str, Any]:
    """Returns nested structured queries."""
    inner = selecting("a")
    for _ in range(levels):
        inner = selecting("c0", source={"kind": "query", "alias": "d", "query": inner})
    return {"query": inner}


def ctes(count: int, body: str) -> str:
    """Returns common table expressions c0, c1, … . Each is `body`, in which `#` stands for the previous one."""
    parts = ["c0 AS (SELECT a, b FROM t)"]
    parts += [f"c{number} AS ({body.replace('#', f'c{number - 1}')})" for number in range(1, count)]
    return f"WITH {', '.join(parts)} SELECT COUNT(*) AS n FROM c{count - 1}"


TWICE = "SELECT x.a, y.b FROM # x JOIN # y ON x.a = y.a"
ONCE = "SELECT a + 1 AS a, b FROM #"


def joins(count: int) -> str:
    """Returns a chain of joins of a table with itself."""
    return f"SELECT COUNT(*) AS n FROM t t0 {' '.join(_join(number) for number in range(1, count + 1))}"


def _join(number: int) -> str:
    return f"JOIN t t{number} ON t{number - 1}.a = t{number}.a"


def joined(count: int) -> dict[str, Any]:
    """Like `joins`, as a structured query."""
    steps: list[dict[str, Any]] = [
        {
            "kind": "inner",
            "right": {**_SOURCE, "alias": f"t{number}"},
            "on": [{"left": f"t{number - 1}.a", "right": f"t{number}.a"}],
        }
        for number in range(1, count + 1)
    ]
    return query("t0.a", source={**_SOURCE, "alias": "t0"}, joins=steps)


def united(count: int) -> dict[str, Any]:
    """Returns a structured query with UNION ALL."""
    return query("c0", source={"kind": "union_all", "alias": "u", "queries": [selecting("a")] * count})


ACCEPTED: dict[str, dict[str, Any]] = {
    "AND of 1,000": sql(f"SELECT a FROM t WHERE {chain('AND', 'a <> #', 1_000)}"),
    "OR of 4,900": sql(f"SELECT a FROM t WHERE {chain('OR', 'a = #', 4_900)}"),
    "OR of ANDs": sql(f"SELECT a FROM t WHERE {chain('OR', '(a = # AND b = #)', 1_900)}"),
    "AND of 1,000 over group keys": sql(f"SELECT a FROM t GROUP BY a HAVING {chain('AND', 'a <> #', 1_000)}"),
    "OR of 3,000 in ON": sql(f"SELECT t.a FROM t JOIN t u ON t.a = u.a AND ({chain('OR', 't.b = #', 3_000)})"),
    "IN of 9,900": sql(f"SELECT a FROM t WHERE a IN ({listed('#', 9_900)})"),
    "IN of 9,900 texts": sql(f"SELECT a FROM t WHERE s IN ({listed(chr(39) + '#' + chr(39), 9_900)})"),
    "1,024 columns": sql(f"SELECT {listed('a + # AS c#', 1_024)} FROM t"),
    "256 aggregates": sql(f"SELECT {listed('SUM(a + #) AS c#', 256)} FROM t"),
    "64 group keys": sql(f"SELECT COUNT(*) AS n FROM t GROUP BY {listed('a + #', 64)}"),
    "64 branches": sql(chain("UNION ALL", "SELECT a FROM t WHERE a = #", 64)),
    "6 expressions that use the one before twice": sql(ctes(6, TWICE)),
    "11 expressions that use the one before once": sql(ctes(11, ONCE)),
    "parentheses 32 deep": sql(f"SELECT a FROM t WHERE {'(' * 32}a = 1{')' * 32}"),
    "calls 32 deep": sql(f"SELECT {'abs(' * 32}a{')' * 32} AS x FROM t"),
    "CASE 29 deep": sql(f"SELECT {'CASE WHEN a = 1 THEN ' * 29}1{' END' * 29} AS x FROM t"),
    "CASE of 2,000 branches": sql(
        f"SELECT CASE {' '.join(f'WHEN a = {number} THEN {number}' for number in range(2_000))} END AS x FROM t"
    ),
    "60 additions": sql(f"SELECT {chain('+', '1', 60)} AS x FROM t"),
    "queries 10 deep": sql(f"{'SELECT a FROM (' * 10}SELECT a FROM t{')' * 10}"),
    "structure: OR of 4,900": query("a", where=chain("OR", "a = #", 4_900)),
    "structure: IN of 9,900": query("a", where=f"a IN ({listed('#', 9_900)})"),
    "structure: 1,024 columns": query(*(f"a + {number}" for number in range(1_024))),
    "structure: 64 branches": united(64),
    "structure: queries 11 deep": derived(11),
}
"""Queries that are accepted."""

MANY_JOINS: dict[str, dict[str, Any]] = {
    "60 joins": sql(joins(60)),
    "100 joins": sql(joins(100)),
    "60 joins from WHERE": sql(
        f"SELECT COUNT(*) AS n FROM {listed('t t#', 61)} "
        f"WHERE {' AND '.join(f't{number}.a = t{number + 1}.a' for number in range(60))}"
    ),
    "60 full joins by USING": sql(
        f"SELECT a FROM t t0 {' '.join(f'FULL JOIN t t{number} USING (a)' for number in range(1, 61))}"
    ),
    "structure: 60 joins": joined(60),
}
"""Queries that are accepted too, but take Spark's planner long."""


def nested_four_times(values: int) -> str:
    """Returns a query nested eight times in a common table expression that is used four times."""
    text = f"SELECT a FROM t WHERE a IN ({listed('1', values)})"
    for level in range(8):
        text = f"SELECT a FROM ({text}) d{level}"
    return f"WITH c AS ({text}) {chain('UNION ALL', 'SELECT a FROM c', 4)}"


ACCEPTED_EARLIER: dict[str, tuple[str, dict[str, Any]]] = {
    "AND of 1,200": ("conditions", sql(f"SELECT a FROM t WHERE {chain('AND', 'a <> #', 1_200)}")),
    "NOT around an OR of 1,200": ("conditions", sql(f"SELECT a FROM t WHERE NOT ({chain('OR', 'a = #', 1_200)})")),
    "AND of 1,200 in SELECT": ("conditions", sql(f"SELECT {chain('AND', 'a <> #', 1_200)} AS x FROM t")),
    "AND of 1,200 in FILTER": (
        "conditions",
        sql(f"SELECT COUNT(*) FILTER (WHERE {chain('AND', 'a <> #', 1_200)}) AS n FROM t"),
    ),
    "AND of 1,200 in HAVING": (
        "conditions",
        sql(f"SELECT a FROM t GROUP BY a HAVING {chain('AND', 'a <> #', 1_200)}"),
    ),
    "AND of 1,200 in an unused common table expression": (
        "conditions",
        sql(f"WITH c AS (SELECT a FROM t WHERE {chain('AND', 'a <> #', 1_200)}) SELECT a FROM t"),
    ),
    "ANDs of 600 around each other": (
        "conditions",
        sql(
            f"SELECT a FROM (SELECT a FROM t WHERE {chain('AND', 'a <> #', 600)}) d WHERE {chain('AND', 'a > #', 600)}"
        ),
    ),
    "structure: AND of 1,200": ("conditions", query("a", where=chain("AND", "a <> #", 1_200))),
    "queries 10 deep used four times": ("nodes", sql(nested_four_times(9_935))),
    "an alias of 1,000 parts used 150 times": (
        "written_nodes",
        sql(f"SELECT COUNT(concat({listed('s', 1_000)})) AS n FROM t HAVING {chain('AND', 'n > #', 150)}"),
    ),
}
"""Queries that versions without these limits accepted, with the limit that now refuses them."""

REFUSED: dict[str, tuple[str, int, dict[str, Any]]] = {
    "AND of 5,000": ("sql_tokens", 20_004, sql(f"SELECT a FROM t WHERE {chain('AND', 'a <> #', 5_000)}")),
    "OR of 5,000": ("sql_tokens", 20_004, sql(f"SELECT a FROM t WHERE {chain('OR', 'a <> #', 5_000)}")),
    "AND of 4,900": ("conditions", 4_900, sql(f"SELECT a FROM t WHERE {chain('AND', 'a <> #', 4_900)}")),
    "ANDs of 600 around each other": (
        "conditions",
        1_200,
        sql(
            f"SELECT a FROM (SELECT a FROM t WHERE {chain('AND', 'a <> #', 600)}) d WHERE {chain('AND', 'a > #', 600)}"
        ),
    ),
    "IN of 20,000": ("sql_characters", 108_918, sql(f"SELECT a FROM t WHERE a IN ({listed('#', 20_000)})")),
    "2,000 columns": ("columns", 2_000, sql(f"SELECT {listed('a AS c#', 2_000)} FROM t")),
    "2,000 group keys": ("group_keys", 2_000, sql(f"SELECT COUNT(*) AS n FROM t GROUP BY {listed('a + #', 2_000)}")),
    "2,000 sort keys": ("sort_keys", 2_000, sql(f"SELECT a FROM t ORDER BY {listed('a + #', 2_000)}")),
    "1,000 aggregates": ("aggregates", 1_000, sql(f"SELECT {listed('SUM(a + #) AS c#', 1_000)} FROM t")),
    "300 branches": ("queries", 300, sql(chain("UNION ALL", "SELECT a FROM t", 300))),
    "100 branches": ("union_branches", 100, sql(chain("UNION ALL", "SELECT a FROM t", 100))),
    "branches 300 deep": ("nesting", 300, sql(f"{'SELECT a FROM t UNION ALL (' * 300}SELECT a FROM t{')' * 300}")),
    "100 expressions that use the one before twice": ("queries", 2**100, sql(ctes(100, TWICE))),
    "7 expressions over 2 tables that use the one before twice": (
        "tables",
        192,
        sql(ctes(7, TWICE).replace("SELECT a, b FROM t", "SELECT t.a, t.b FROM t JOIN u USING (a) JOIN w USING (a)")),
    ),
    "parentheses 2,000 deep": ("nesting", 2_000, sql(f"SELECT a FROM t WHERE {'(' * 2_000}a = 1{')' * 2_000}")),
    "a query in 2,000 parentheses": ("nesting", 2_000, sql(f"{'(' * 2_000}SELECT a FROM t{')' * 2_000}")),
    "queries 200 deep": ("nesting", 200, sql(f"{'SELECT a FROM (' * 200}SELECT a FROM t{')' * 200}")),
    "200 joins": ("joins", 200, sql(joins(200))),
    "calls 2,000 deep": ("nesting", 2_000, sql(f"SELECT {'abs(' * 2_000}a{')' * 2_000} AS x FROM t")),
    "CASE 1,000 deep": (
        "nesting",
        1_000,
        sql(f"SELECT {'CASE WHEN a = 1 THEN ' * 1_000}1{' END' * 1_000} AS x FROM t"),
    ),
    "5,000 additions": ("operator_depth", 5_002, sql(f"SELECT {chain('+', '1', 5_000)} AS x FROM t")),
    "an alias of 4,000 parts used 5,000 times": (
        "written_nodes",
        20_011_504,
        sql(
            f"SELECT concat({listed('s', 4_000)}) AS x, COUNT(*) AS n FROM t GROUP BY s "
            f"HAVING {chain('AND', 'x = x', 2_500)}"
        ),
    ),
    "structure: 2,000 columns": ("columns", 2_000, query(*["a"] * 2_000)),
    "structure: 300 branches": ("union_branches", 300, united(300)),
    "structure: 200 joins": ("joins", 200, joined(200)),
    "structure: parentheses 2,000 deep": ("nesting", 2_000, query("a", where=f"{'(' * 2_000}a = 1{')' * 2_000}")),
    "structure: 5,000 additions": ("operator_depth", 5_001, query(chain("+", "a", 5_000))),
    "structure: 10 lists of 9,000": ("expression_tokens", 180_030, query(*[f"a IN ({listed('1', 9_000)})"] * 10)),
    "structure: an alias of 4,000 parts used 4,000 times": (
        "expanded_nodes",
        16_004_001,
        query(f"concat({listed('s', 4_000)})", order_by=[{"expression": f"concat({listed('c0', 4_000)})"}]),
    ),
}
"""Refused queries, with the limit and the number in the error. ACCEPTED_EARLIER has more cases of `conditions`."""
