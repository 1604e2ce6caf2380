"""SQL: what it compiles into, and what is refused where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.spec.binding import bind
from service.spec.compile import compile_job
from service.spec.ddl import parse_schema
from service.spec.errors import SpecError
from service.spec.job import JobSpec
from service.spec.query import JoinKind, NullsOrder, Query, SortDirection
from service.spec.sql import compile_sql

SCHEMAS = {
    "orders": parse_schema("oid BIGINT, uid BIGINT, category STRING, amount DECIMAL(10,2), day DATE, ok BOOLEAN", "/x"),
    "users": parse_schema("uid INT, name STRING, day DATE", "/x"),
    "labels": parse_schema("uid INT, label STRING", "/x"),
}
TABLES = {name: {"format": "csv", "path": name, "schema": "a INT"} for name in SCHEMAS}


def compiled(sql: str) -> Query:
    query = compile_sql(sql, SCHEMAS).query
    bind(query, SCHEMAS)
    return query


def selected(sql: str) -> list[tuple[str, str]]:
    """(expression, name) of the output, over keys and aggregates where there are any."""
    return [(str(each.expression), each.name) for each in bind(compile_sql(sql, SCHEMAS).query, SCHEMAS).select]


def test_the_example_of_the_design() -> None:
    query = compiled(
        "SELECT o.uid, COUNT(DISTINCT o.category) AS categories FROM orders o JOIN users u ON o.uid = u.uid "
        "GROUP BY o.uid"
    )
    assert query == Query.model_validate(
        {
            "source": {"kind": "table", "table": "orders", "alias": "o"},
            "joins": [
                {
                    "kind": "inner",
                    "right": {"kind": "table", "table": "users", "alias": "u"},
                    "on": [{"left": "`o`.`uid`", "right": "`u`.`uid`"}],
                }
            ],
            "group_by": [{"expression": "`o`.`uid`", "name": "uid"}],
            "aggregates": [
                {"function": "COUNT", "arguments": ["`o`.`category`"], "distinct": True, "name": "categories"}
            ],
            "select": [
                {"expression": "`o`.`uid`", "name": "uid"},
                {"expression": "`categories`", "name": "categories"},
            ],
        }
    )


@pytest.mark.parametrize(
    ("sql", "output"),
    [
        ("SELECT * FROM users", [("users.uid", "uid"), ("users.name", "name"), ("users.day", "day")]),
        ("SELECT u.name n, upper(name) FROM users AS u", [("u.name", "n"), ("upper(u.name)", "upper(name)")]),
        (
            "SELECT l.*, name FROM users JOIN labels l USING (uid)",
            [("l.uid", "uid"), ("l.label", "label"), ("users.name", "name")],
        ),
        (
            "SELECT * FROM users JOIN labels USING (uid)",
            [("users.uid", "uid"), ("users.name", "name"), ("users.day", "day"), ("labels.label", "label")],
        ),
        ("SELECT uid FROM users RIGHT JOIN labels USING (uid)", [("labels.uid", "uid")]),
        ("SELECT uid FROM users FULL JOIN labels USING (uid)", [("coalesce(users.uid, labels.uid)", "uid")]),
        ("SELECT COUNT(*), COUNT(*) + 1 AS more FROM users", [("COUNT(*)", "COUNT(*)"), ("COUNT(*) + 1", "more")]),
        ("SELECT year(day) + 1 AS y FROM users GROUP BY year(users.day)", [("year(users.day) + 1", "y")]),
        ("SELECT year(day) AS y FROM users GROUP BY y", [("y", "y")]),
        ("SELECT year(day) AS day FROM users GROUP BY day", [("year(day_2)", "day")]),
        ("SELECT name, uid AS k FROM users GROUP BY 2, 1", [("name", "name"), ("k", "k")]),
        ("SELECT uid AS k, SUM(amount) AS uid FROM orders GROUP BY uid", [("k", "k"), ("uid", "uid")]),
        ("SELECT DISTINCT name, upper(name) u FROM users", [("name", "name"), ("u", "u")]),
        ("SELECT DISTINCT uid, COUNT(*) n FROM users GROUP BY uid", [("uid", "uid"), ("n", "n")]),
        ("FROM users SELECT name", [("users.name", "name")]),
        ("select ALL `NAME` from `USERS`;", [("users.name", "NAME")]),
        ("SELECT 1 FROM users, labels", [("1", "1")]),
        (
            "SELECT current_date, Current_Timestamp AS t FROM users",
            [("current_date()", "current_date()"), ("current_timestamp()", "t")],
        ),
        ("SELECT current_date + 1 AS d, COUNT(*) n FROM users", [("current_date() + 1", "d"), ("n", "n")]),
    ],
)
def test_output(sql: str, output: list[tuple[str, str]]) -> None:
    assert selected(sql) == output


@pytest.mark.parametrize(
    ("sql", "names"),
    [
        ("* FROM a JOIN b USING (x)", ["x", "p", "y", "r", "y2"]),
        ("* FROM a RIGHT JOIN b USING (x)", ["X", "p", "y", "r", "y2"]),
        ("* FROM a FULL JOIN b USING (x)", ["x", "p", "y", "r", "y2"]),
        ("* FROM a SEMI JOIN b USING (x)", ["x", "p", "y"]),
        ("* FROM a JOIN c USING (y, x)", ["y", "x", "p", "s"]),
        ("* FROM a JOIN b USING (x) JOIN c USING (y)", None),
        ("* FROM a JOIN b USING (x) JOIN d USING (r)", ["r", "x", "p", "y", "y2", "t"]),
        ("a.* FROM a JOIN b USING (x)", ["x", "p", "y"]),
        ("a.* FROM a RIGHT JOIN b USING (x)", ["x", "p", "y"]),
        ("b.* FROM a JOIN b USING (x)", ["X", "r", "y2"]),
        ("b.* FROM a JOIN b USING (x) JOIN d USING (r)", ["X", "r", "y2"]),
        ("d.* FROM a JOIN b USING (x) FULL JOIN d USING (r)", ["r", "t"]),
        ("* FROM a JOIN b ON a.p = b.r JOIN d USING (r)", None),
    ],
)
def test_stars_have_the_order_of_spark(sql: str, names: list[str] | None) -> None:
    schemas = {
        "a": parse_schema("p INT, x INT, y INT", "/x"),
        "b": parse_schema("r INT, X INT, y2 INT", "/x"),
        "c": parse_schema("s INT, x INT, y INT", "/x"),
        "d": parse_schema("t INT, r INT", "/x"),
    }
    if names is None:
        with pytest.raises(SpecError) as caught:
            compile_sql(f"SELECT {sql}", schemas)
        assert caught.value.code == "duplicate_column"
        assert "AS" in str(caught.value)
        return
    assert [item.name for item in compile_sql(f"SELECT {sql}", schemas).query.select] == names


def test_a_column_comes_before_the_function_of_its_name() -> None:
    schemas = {"t": parse_schema("Current_Date INT", "/x")}
    query = bind(compile_sql("SELECT current_date, current_date() AS now FROM t", schemas).query, schemas)
    assert [(str(item.expression), item.name) for item in query.select] == [
        ("t.Current_Date", "current_date"),
        ("current_date()", "now"),
    ]


def test_long_columns_need_a_name_only_where_they_are_shown() -> None:
    schemas = {"t": parse_schema(f"`{'x' * 300}` INT", "/x")}
    assert bind(compile_sql(f"SELECT COUNT(*) AS n FROM t GROUP BY {'x' * 300}", schemas).query, schemas).keys
    with pytest.raises(SpecError) as caught:
        compile_sql("SELECT * FROM t", schemas)
    assert caught.value.code == "name_too_long"


def test_the_same_aggregate_is_computed_once() -> None:
    query = compiled(
        "SELECT uid, SUM(amount) / COUNT(*) AS average, sum(o.AMOUNT) total FROM orders o GROUP BY uid "
        "HAVING SUM(amount) > 10 AND count(*) > 1 ORDER BY SUM(amount), COUNT(*) DESC"
    )
    assert [(call.function, call.name) for call in query.aggregates] == [("SUM", "total"), ("COUNT", "COUNT(*)")]
    assert query.having == "`total` > 10 AND `COUNT(*)` > 1"


def test_having_prefers_group_keys_and_order_by_aliases() -> None:
    sql = "SELECT uid AS k, MAX(amount) AS uid FROM orders GROUP BY uid HAVING uid > 3 ORDER BY uid"
    query = bind(compile_sql(sql, SCHEMAS).query, SCHEMAS)
    assert str(query.having) == "k > 3"
    assert [str(each.expression) for each in query.order_by] == ["uid"]
    assert query.calls[0].output.name == "uid"


@pytest.mark.parametrize(
    ("select", "key", "having", "bound"),
    [
        ("-uid AS uid", "-uid", "-uid > 0", "uid > 0"),
        ("uid + 1 AS uid", "uid + 1", "uid + 1 > 2", "uid > 2"),
        ("substring(name, 2, 1) AS name", "substring(name, 2, 1)", "substring(name, 2, 1) > ''", "name > ''"),
        ("uid + 1 AS uid", "uid + 1", "uid > 2 AND COUNT(*) > 1", "uid > 2 AND n > 1"),
        ("uid AS k", "uid", "uid + 1 > 2 AND k > 0", "k + 1 > 2 AND k > 0"),
    ],
)
def test_having_prefers_a_whole_group_key_to_an_alias_inside_it(select: str, key: str, having: str, bound: str) -> None:
    sql = f"SELECT {select}, COUNT(*) AS n FROM users GROUP BY {key} HAVING {having}"
    assert str(bind(compile_sql(sql, SCHEMAS).query, SCHEMAS).having) == bound


def test_order_and_limit() -> None:
    query = compiled(
        "SELECT category c, day FROM orders ORDER BY 2, c DESC, upper(c) NULLS LAST, oid DESC NULLS FIRST LIMIT 10"
    )
    assert [(key.direction, key.nulls) for key in query.order_by] == [
        (SortDirection.ASC, NullsOrder.FIRST),
        (SortDirection.DESC, NullsOrder.LAST),
        (SortDirection.ASC, NullsOrder.LAST),
        (SortDirection.DESC, NullsOrder.FIRST),
    ]
    assert [key.expression for key in query.order_by][2] == "upper(`orders`.`category`)"
    assert query.limit == 10
    assert compiled("SELECT oid FROM orders LIMIT ALL").limit is None
    assert compiled("SELECT oid FROM orders LIMIT 0").limit == 0


@pytest.mark.parametrize(
    ("join", "kind", "keys", "residual"),
    [
        ("JOIN users u ON o.uid = u.uid", JoinKind.INNER, [("o.uid", "u.uid")], None),
        ("INNER JOIN users u ON u.uid = o.uid", JoinKind.INNER, [("o.uid", "u.uid")], None),
        ("LEFT JOIN users u ON o.uid = u.uid AND o.day < u.day", JoinKind.LEFT, [("o.uid", "u.uid")], "o.day < u.day"),
        (
            "LEFT OUTER JOIN users u ON (o.uid = u.uid) AND u.name = 'x' AND o.ok",
            JoinKind.LEFT,
            [("o.uid", "u.uid")],
            "u.name = 'x' AND o.ok",
        ),
        (
            "RIGHT JOIN users u ON o.uid + 1 = u.uid * 2 AND upper(name) = category",
            JoinKind.RIGHT,
            [("o.uid + 1", "u.uid * 2"), ("o.category", "upper(u.name)")],
            None,
        ),
        ("FULL OUTER JOIN users u ON o.uid = u.uid", JoinKind.FULL, [("o.uid", "u.uid")], None),
        ("LEFT SEMI JOIN users u ON o.uid = u.uid", JoinKind.LEFT_SEMI, [("o.uid", "u.uid")], None),
        ("SEMI JOIN users u USING (uid, day)", JoinKind.LEFT_SEMI, [("o.uid", "u.uid"), ("o.day", "u.day")], None),
        ("ANTI JOIN users u ON o.uid = u.uid", JoinKind.LEFT_ANTI, [("o.uid", "u.uid")], None),
        ("JOIN users u ON o.uid = u.uid AND o.uid <=> u.uid", JoinKind.INNER, [("o.uid", "u.uid")], "o.uid <=> u.uid"),
        (
            "JOIN users u ON o.uid = u.uid AND (o.ok OR u.name = 'x')",
            JoinKind.INNER,
            [("o.uid", "u.uid")],
            "o.ok OR u.name = 'x'",
        ),
        ("CROSS JOIN users u", JoinKind.CROSS, [], None),
        (", users u", JoinKind.CROSS, [], None),
        ("JOIN users u ON TRUE", JoinKind.CROSS, [], None),
        ("JOIN users u", JoinKind.CROSS, [], None),
        ("CROSS JOIN users u ON o.uid = u.uid", JoinKind.INNER, [("o.uid", "u.uid")], None),
    ],
)
def test_joins(join: str, kind: JoinKind, keys: list[tuple[str, str]], residual: str | None) -> None:
    (only,) = compiled(f"SELECT o.oid FROM orders o {join}").joins
    plain = [(key.left.replace("`", ""), key.right.replace("`", "")) for key in only.on]
    assert (only.kind, plain) == (kind, keys)
    assert (only.residual.replace("`", "") if only.residual else None) == residual


def test_several_joins_see_all_tables_before() -> None:
    query = compiled(
        "SELECT label FROM orders o JOIN users u ON o.uid = u.uid "
        "LEFT JOIN labels l ON l.uid = o.uid AND l.label = u.name"
    )
    assert [(key.left, key.right) for key in query.joins[1].on] == [
        ("`o`.`uid`", "`l`.`uid`"),
        ("`u`.`name`", "`l`.`label`"),
    ]


def test_aggregates_with_filter_distinct_and_order() -> None:
    query = compiled(
        "SELECT COUNT(DISTINCT category, day) FILTER (WHERE ok) a, FIRST_VALUE(category ORDER BY day) b, "
        "last_value(oid ORDER BY day) c, SUM(DISTINCT amount) d, MIN(DISTINCT day) e, AVG(ALL oid) f FROM orders"
    )
    assert [
        (call.function, len(call.arguments), call.distinct, call.filter, call.order_by) for call in query.aggregates
    ] == [
        ("COUNT", 2, True, "`orders`.`ok`", None),
        ("FIRST_VALUE", 1, False, None, "`orders`.`day`"),
        ("LAST_VALUE", 1, False, None, "`orders`.`day`"),
        ("SUM", 1, True, None, None),
        ("MIN", 1, True, None, None),
        ("AVG", 1, False, None, None),
    ]


UNSUPPORTED = {
    "WITH x AS (SELECT 1) SELECT * FROM x": "without FROM",
    "WITH RECURSIVE x AS (SELECT uid FROM users) SELECT uid FROM x": "RECURSIVE",
    "SELECT uid FROM users UNION ALL BY NAME SELECT uid FROM orders": "BY NAME",
    "SELECT uid FROM users LIMIT 5 UNION ALL SELECT uid FROM orders": "LIMIT in front of UNION",
    "SELECT uid FROM users ORDER BY uid UNION SELECT uid FROM orders": "ORDER BY in front of UNION",
    "SELECT uid FROM users INTERSECT SELECT uid FROM orders": "INTERSECT",
    "SELECT uid FROM users EXCEPT SELECT uid FROM orders": "EXCEPT",
    "SELECT 1 FROM users UNION ALL SELECT 1, 2 FROM users": "1 and 2 columns",
    "SELECT * FROM (SELECT uid, name FROM users) x (a)": "2 columns",
    "SELECT * FROM (SELECT uid FROM users) x TABLESAMPLE (10 PERCENT)": "TABLESAMPLE",
    "WITH x AS (SELECT uid FROM users) SELECT * FROM x VERSION AS OF 3": "VERSION",
    "VALUES (1)": "VALUES",
    "TABLE users": "TABLE",
    "SELECT 1": "without FROM",
    "SELECT uid FROM VALUES (1)": "VALUES",
    "SELECT uid FROM range(10)": "table function",
    "SELECT uid FROM parquet.`/etc/passwd`": "several parts",
    "SELECT uid FROM spark_catalog.default.users": "several parts",
    "SELECT uid FROM users TABLESAMPLE (10 PERCENT)": "TABLESAMPLE",
    "SELECT uid FROM users VERSION AS OF 3": "time travel",
    "SELECT uid FROM users u (a, b)": "column aliases",
    "SELECT uid FROM users PIVOT (sum(uid) FOR name IN ('x'))": "PIVOT",
    "SELECT uid FROM users LATERAL VIEW explode(name) e": "LATERAL",
    "SELECT uid FROM users, LATERAL (SELECT 1)": "LATERAL",
    "SELECT 1 FROM users NATURAL JOIN labels": "NATURAL",
    "SELECT 1 FROM users JOIN labels ON users.uid > labels.uid": "without an equality",
    "SELECT 1 FROM users LEFT JOIN labels": "without an equality",
    "SELECT 1 FROM users u JOIN (labels l JOIN orders o ON l.uid = o.uid) ON u.uid = l.uid": "parentheses",
    "SELECT 1 FROM users u JOIN labels l JOIN orders o ON l.uid = o.uid ON u.uid = l.uid": "nested join",
    "SELECT * EXCEPT (uid) FROM users": "EXCEPT",
    "SELECT uid AS (a, b) FROM users": "ALIASES",
    "SELECT DISTINCT ON (uid) uid FROM users": "DISTINCT ON",
    "SELECT DISTINCT COUNT(*) FROM users GROUP BY uid ORDER BY uid": "by what is not selected",
    "SELECT uid FROM users WHERE uid IN (SELECT uid FROM orders)": "subquery",
    "SELECT uid FROM users WHERE EXISTS (SELECT 1 FROM orders)": "EXISTS",
    "SELECT (SELECT 1) FROM users": "subquery",
    "SELECT SUM(uid) OVER (PARTITION BY name) FROM users": "window function",
    "SELECT row_number() OVER (ORDER BY uid) FROM users": "window function",
    "SELECT uid FROM users QUALIFY uid = 1": "QUALIFY",
    "SELECT uid FROM users WINDOW w AS (ORDER BY uid)": "WINDOW",
    "SELECT COUNT(*) FROM users GROUP BY GROUPING SETS (())": "without a key",
    "SELECT uid, GROUPING(uid) FROM users GROUP BY uid": "GROUPING needs ROLLUP",
    "SELECT GROUPING(name) FROM users GROUP BY ROLLUP (uid)": "one of the group keys",
    "SELECT GROUPING_ID(name, uid) FROM users GROUP BY CUBE (uid, name)": "in the order of GROUP BY",
    "SELECT LISTAGG(name, ',') FROM users": "LISTAGG needs an order",
    "SELECT LISTAGG(DISTINCT name) WITHIN GROUP (ORDER BY uid) FROM users": "ordered by x alone",
    "SELECT LISTAGG(name, name) WITHIN GROUP (ORDER BY uid) FROM users": "no string literal",
    "SELECT LISTAGG(name) WITHIN GROUP (ORDER BY uid NULLS LAST) FROM users": "NULLS LAST",
    "SELECT PERCENTILE(uid) FROM users": "two arguments",
    "SELECT PERCENTILE(uid, 2) FROM users": "from 0 to 1",
    "SELECT PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY uid DESC) FROM users": "descending order",
    "SELECT PERCENTILE_CONT(uid, 0.5) FROM users": "without WITHIN GROUP",
    "SELECT PERCENTILE_CONT(0.5) FROM users": "PERCENTILE(x, 0.5)",
    "SELECT uid FROM users GROUP BY ALL": "ALL",
    "SELECT COUNT(*) FROM users GROUP BY COUNT(*)": "aggregate",
    "SELECT SUM(COUNT(*)) FROM users": "aggregate COUNT",
    "SELECT SUM(uid) IGNORE NULLS FROM users": "IGNORE NULLS",
    "SELECT MAX(uid) WITHIN GROUP (ORDER BY name) FROM users": "WITHIN GROUP",
    "SELECT COUNT(uid LIMIT 2) FROM users": "LIMIT",
    "SELECT COUNT(DISTINCT *) FROM users": "*",
    "SELECT COUNT(DISTINCT (uid, name)) FROM users": "row value",
    "SELECT FIRST_VALUE(uid ORDER BY name DESC) FROM users": "LAST_VALUE",
    "SELECT FIRST_VALUE(uid ORDER BY name NULLS LAST) FROM users": "NULLS LAST",
    "SELECT FIRST_VALUE(uid ORDER BY name, day) FROM users": "More than one order",
    "SELECT upper(name) FILTER (WHERE TRUE) FROM users": "FILTER",
    "SELECT uid FROM users HAVING uid > 1": "HAVING without GROUP BY",
    "SELECT uid FROM users WHERE COUNT(*) > 1": "aggregate COUNT",
    "SELECT uid FROM users ORDER BY ALL": "ORDER BY ALL",
    "SELECT uid FROM users SORT BY uid": "SORT BY",
    "SELECT uid FROM users CLUSTER BY uid": "CLUSTER BY",
    "SELECT uid FROM users DISTRIBUTE BY uid": "DISTRIBUTE BY",
    "SELECT uid FROM users LIMIT 1 + 1": "LIMIT",
    "SELECT uid FROM users LIMIT 5 PERCENT": "LIMIT",
    "SELECT uid FROM users LIMIT 5, 10": "OFFSET",
    "SELECT uid FROM users OFFSET 5": "OFFSET",
    "SELECT uid FROM users FETCH FIRST 3 ROWS ONLY": "FETCH",
    "SELECT uid INTO x FROM users": "INTO",
    "SELECT uid FROM users FOR UPDATE": "FOR UPDATE",
    "SELECT uid FROM users; SELECT 1": "second statement",
    "DROP TABLE users": "DROP",
    "INSERT INTO users SELECT 1": "INSERT",
    "CREATE TABLE x AS SELECT 1": "CREATE",
    "SET spark.sql.ansi.enabled = false": "SET",
    "EXPLAIN SELECT uid FROM users": "EXPLAIN",
    "CACHE TABLE users": "CACHE",
    "ADD JAR '/tmp/x.jar'": "",
}


@pytest.mark.parametrize("sql", UNSUPPORTED)
def test_unsupported_constructs_are_named(sql: str) -> None:
    with pytest.raises(SpecError) as caught:
        compiled(sql)
    assert caught.value.code == "unsupported_construct" or not UNSUPPORTED[sql]
    assert UNSUPPORTED[sql].lower() in str(caught.value).lower()


TOLD = [
    ("SELECT uid FROM users PIVOT (sum(uid) FOR name IN ('x'))", 1, 17, "one aggregate with FILTER"),
    ("SELECT uid FROM users UNPIVOT (v FOR n IN (uid))", 1, 17, "UNPIVOT cannot be used here. Write one SELECT"),
    ("SELECT uid FROM users TABLESAMPLE (10 PERCENT)", 1, 17, "Filter by a hash of a key"),
    ("SELECT uid FROM users TIMESTAMP AS OF '2020-01-01'", 1, 17, "keep older files under a path of their own"),
    ("SELECT uid FROM users LATERAL VIEW explode(name) e", 1, 36, "Write a row for each element into the files"),
    ("SELECT uid FROM users WHERE uid > ALL (SELECT uid FROM orders)", 1, 47, "compare with MIN or MAX"),
    ("SELECT uid FROM users WHERE name LIKE ANY ('a', 'b')", 1, 44, "OR of comparisons"),
    ("SELECT o.tags[0] FROM users o", 1, 8, "keep their parts in columns of their own"),
    ("SELECT o.tags.first FROM users o", 1, 8, "Write alias.column."),
    ("SELECT [uid] FROM users", 1, 9, "Backquotes enclose names"),
    ("SELECT uid FROM users\nWHERE uid = :id", 2, 13, "A parameter cannot be used here. Write the value."),
    ("SELECT uid FROM users WHERE uid = ?", 1, 35, "Write the value."),
    ("SELECT uid FROM users; SELECT 1", 1, 22, "Post one job for each."),
    ("FROM users |> SELECT uid", 1, 12, "The pipe operator"),
    ("SELECT uid", 1, 1, "FROM names one of the job's tables"),
    ("SELECT 1 < uid < 5 FROM users", 1, 8, "Join two with AND"),
    ("SELECT CAST(uid AS TIME) FROM users", 1, 13, "The type TIME cannot"),
    ("SELECT CAST(uid AS DECIMAL(5,9)) FROM users", 1, 13, "the scale at most the precision"),
    ("SELECT day - INTERVAL uid DAY FROM users", 1, 23, "days from a column are date_add(d, n)"),
    ("SELECT POSITION('a' IN name) FROM users", 1, 17, "POSITION(a IN b) is position(a, b)"),
    ("SELECT EXTRACT(EPOCH FROM day) FROM users", 1, 27, "unix_timestamp(t)"),
    ("SELECT uid << 2 FROM users", 1, 8, "The bitwise operator <<"),
    ("SELECT uid FROM users ORDER BY uid LIMIT 10 PERCENT", 1, 42, "Write a number of rows"),
    ("SELECT users.uid FROM users RIGHT SEMI JOIN labels USING (uid)", 1, 45, "change places, and write LEFT"),
    ("SELECT users.uid FROM users ASOF JOIN labels ON users.uid = labels.uid", 1, 39, "ASOF JOIN cannot be used here."),
    ("SELECT uid FROM users\nGROUP BY (uid, name)", 2, 1, "Name the keys without parentheses"),
    ("SELECT DISTINCT uid FROM users ORDER BY name", 1, 41, "by what is not selected"),
    ("SELECT uid * 2 AS k FROM users\nWHERE k > 1", 2, 7, "k is an alias of SELECT, which WHERE does not see"),
    ("SELECT uid * 2 AS k, k + 1 AS l FROM users", 1, 22, "which SELECT itself does not see"),
    ("SELECT u.uid FROM users u WHERE users.uid = 1", 1, 33, "no table or alias users here, only u."),
    ("SELECT 1e400 FROM users", 1, 8, "too large"),
    ("SELECT COUNT(users.*) FROM users", 1, 14, "COUNT(*) counts rows"),
    ("SELECT rank() OVER (ORDER BY uid) FROM users", 1, 8, "Aggregate in a derived table and join it back"),
]


@pytest.mark.parametrize(("sql", "line", "column", "words"), TOLD)
def test_the_form_that_works_is_told_beside_the_place(sql: str, line: int, column: int, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        compile_job(JobSpec.model_validate({"tables": TABLES, "sql": sql}), SCHEMAS)
    issue = caught.value.issues[0]
    assert (issue.pointer, issue.line, issue.column) == ("/sql", line, column)
    assert words in issue.detail


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT uid FROM users WHERE uid IN ()",
        "SELECT uid IN FROM users",
        "SELECT users.uid FROM users JOIN labels ON",
        "SELECT users.uid FROM users JOIN labels ON WHERE users.uid = 1",
        "SELECT users.uid FROM users JOIN labels USING",
        "SELECT users.uid FROM users JOIN labels USING ()",
        "SELECT uid FROM users GROUP BY",
        "SELECT uid FROM users GROUP BY ORDER BY uid",
    ],
)
def test_what_was_begun_and_left_empty_is_not_taken_for_nothing(sql: str) -> None:
    with pytest.raises(SpecError) as caught:
        compiled(sql)
    assert (caught.value.code, caught.value.issues[0].column is not None) == ("sql_syntax", True)


WRONG = [
    ("SELECT uid\nFROM users\nWHERE nme = 'x'", "unknown_column", 3, 7, ("name",)),
    ("SELECT u.nme\n  FROM users u", "unknown_column", 1, 8, ("u.name",)),
    ("SELECT uid FROM user", "unknown_table", 1, 17, ("users",)),
    ("SELECT us.uid FROM users", "unknown_table", 1, 8, ("users",)),
    ("SELECT uid\nFROM users JOIN labels ON\n users.uid = labels.uid", "ambiguous_column", 1, 8, None),
    ("SELECT 1 FROM users JOIN users ON 1 = 1", "duplicate_table", 1, 26, ()),
    ("SELECT uid,\n oid AS UID FROM orders", "duplicate_column", 2, 2, ()),
    ("SELECT uid, COUNT(*) FROM users", "not_grouped", 1, 8, ()),
    ("SELECT name, upper(name),\n uid + 1, COUNT(*) FROM users GROUP BY name", "not_grouped", 2, 2, ()),
    ("SELECT name FROM users GROUP BY name\nORDER BY uid", "not_grouped", 2, 10, ()),
    ("SELECT name FROM users WHERE\n uid", "type_mismatch", 2, 2, ()),
    ("SELECT name FROM users WHERE name = 'x' AND\n  day + name = day", "type_mismatch", 2, 3, ()),
    ("SELECT SUM(uid),\n SUM(day) FROM users", "type_mismatch", 2, 6, ()),
    ("SELECT COUNT(*) FILTER (WHERE uid) FROM users", "type_mismatch", 1, 31, ()),
    ("SELECT 1 FROM users u JOIN orders o\n ON u.name = o.uid", "type_mismatch", 2, 14, ()),
    ("SELECT MAX(uid) m FROM users HAVING m", "type_mismatch", 1, 8, ()),
    ("SELECT uid FROM users\nORDER BY 3", "unknown_column", 2, 10, ()),
    ("SELECT uid FROM users GROUP BY 0", "unknown_column", 1, 32, ()),
    ("SELECT FIRST_VALUE(uid) FROM users", "unsupported_construct", 1, 8, ()),
    ("SELECT\n uppr(name) FROM users", "unsupported_function", 2, 2, None),
    ("SELECT skewness(uid) FROM users", "unsupported_function", 1, 8, ()),
    ("SELECT uid FROM users WHERE", "sql_syntax", 1, 23, ()),
    ("SELECT uid\nFROM users\nWHERE (uid = 1", "sql_syntax", 3, 14, ()),
    ("SELECT uid FROM users WHERE name = 'x", "sql_syntax", 1, 36, ()),
    ("SELEC uid FROM users", "sql_syntax", 1, 1, ()),
    ("SELECT FROM users", "sql_syntax", 1, 1, ()),
    ("SELECT uid FROM users\nGROUP BY ALL", "unsupported_construct", 2, 1, ()),
    ("SELECT uid FROM users\nFOR UPDATE", "unsupported_construct", 2, 1, ()),
    ("SELECT uid FROM users\n HAVING TRUE", "unsupported_construct", 2, 2, ()),
    ("SELECT\n CAST(uid AS ARRAY<INT>) FROM users", "unsupported_construct", 2, 7, ()),
    ('SELECT uid FROM users WHERE name =\n "x', "sql_syntax", 2, 2, ()),
    ('SELECT uid FROM users WHERE name = "', "sql_syntax", 1, 36, ()),
    ("SELECT uid FROM users WHERE name = '", "sql_syntax", 1, 36, ()),
    ("SELECT uid FROM `users", "sql_syntax", 1, 17, ()),
    ("SELECT uid FROM users WHERE `", "sql_syntax", 1, 29, ()),
    ("SELECT '/*', uid -- /*\nFROM users /* '", "sql_syntax", 2, 12, ()),
    ("SELECT uid FROM users /* a /* b */", "sql_syntax", 1, 28, ()),
    ("SELECT x'0z' FROM users", "sql_syntax", 1, 8, ()),
    ("SELECT uid FROM users\nLIMIT 2147483648", "limit_out_of_range", 2, 1, ()),
    ("SELECT uid FROM users LIMIT 99999999999999999999999", "limit_out_of_range", 1, 23, ()),
    ("SELECT 1,\n uid AS " + "x" * 256 + " FROM users", "name_too_long", 2, 2, ()),
    ("SELECT 1 FROM users " + "x" * 256, "name_too_long", 1, 15, ()),
    ("SELECT 1 FROM users JOIN labels " + "x" * 256 + " ON TRUE", "name_too_long", 1, 26, ()),
    ("SELECT uid AS `` FROM users", "sql_syntax", 1, 8, ()),
    ("SELECT uid FROM users AS ``", "sql_syntax", 1, 17, ()),
    *(
        (f"SELECT uid FROM users {alias}", "unsupported_construct", 1, 17, ())
        for alias in ("$x", "@x", "AS :x", "AS ?", ":x")
    ),
    *((f"SELECT uid {alias} FROM users", "unsupported_construct", 1, 8, ()) for alias in ("AS $y", "AS :y", "AS ?")),
    ("SELECT * FROM users u\nJOIN labels l ON u.uid = l.uid", "duplicate_column", 1, 8, ()),
    ("SELECT CAST(uid AS DECIMAL(²)) FROM users", "unsupported_construct", 1, 13, ()),
    ("SELECT uid FROM users LIMIT ²", "unsupported_construct", 1, 23, ()),
    ("SELECT uid FROM users ORDER BY ²", "unknown_column", 1, 32, ()),
    ("", "sql_syntax", None, None, ()),
]


@pytest.mark.parametrize(("sql", "code", "line", "column", "suggestions"), WRONG)
def test_mistakes_are_told_with_their_place(
    sql: str, code: str, line: int | None, column: int | None, suggestions: tuple[str, ...] | None
) -> None:
    with pytest.raises(SpecError) as caught:
        _compiled_and_located(sql)
    issue = caught.value.issues[0]
    assert (issue.code, issue.pointer) == (code, "/sql"), str(caught.value)
    assert (issue.line, issue.column) == (line, column), str(caught.value)
    if suggestions is not None:
        assert issue.suggestions == suggestions


def _compiled_and_located(sql: str) -> None:
    found = compile_sql(sql, SCHEMAS)
    try:
        bind(found.query, SCHEMAS, text_of=found.text_of)
    except SpecError as error:
        raise SpecError([found.locate(issue) for issue in error.issues]) from None


WORDS = """
    SELECT FROM WHERE GROUP BY HAVING ORDER LIMIT JOIN LEFT SEMI ON USING AS DISTINCT OVER IN IS NOT NULL AND OR
    COUNT SUM FIRST_VALUE CASE WHEN THEN END CAST BETWEEN LIKE INTERVAL FILTER WITH UNION VALUES LATERAL DATE
    users orders u uid name day 1 2.5 'x' r'x' X'1' 10L 1e3 ARRAY<INT> DECIMAL(5,2)
    * ( ) , . = < - : [ ] ; ` ' \" ? @ $ -- /* */ :: -> =>
"""


@given(st.lists(st.sampled_from(WORDS.split()), max_size=14), st.booleans())
def test_any_heap_of_words_is_compiled_or_refused(words: list[str], begins_well: bool) -> None:
    text = ("SELECT uid FROM users u " if begins_well else "") + " ".join(words)
    try:
        found = compile_sql(text, SCHEMAS)
        bind(found.query, SCHEMAS)
    except SpecError as error:
        assert error.issues[0].detail  # noqa: PT017 - the point is that nothing else is raised
