"""SQL: what it compiles into, and what is refused where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contract.problems import SpecError
from service.contract.query import Query
from service.sql.compile import compile_sql
from service.sql.ddl import parse_schema
from service.sql.resolve.binder import bind

SCHEMAS = {
    "orders": parse_schema("oid BIGINT, uid BIGINT, category STRING, amount DECIMAL(10,2), day DATE, ok BOOLEAN", "/x"),
    "users": parse_schema("uid INT, name STRING, day DATE", "/x"),
}


def compiled(sql: str) -> Query:
    query = compile_sql(sql, SCHEMAS).query
    bind(query, SCHEMAS)
    return query


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


def test_long_columns_need_a_name_only_where_they_are_shown() -> None:
    schemas = {"t": parse_schema(f"`{'x' * 300}` INT", "/x")}
    assert bind(compile_sql(f"SELECT COUNT(*) AS n FROM t GROUP BY {'x' * 300}", schemas).query, schemas).keys
    with pytest.raises(SpecError) as caught:
        compile_sql("SELECT * FROM t", schemas)
    assert caught.value.code == "name_too_long"


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
