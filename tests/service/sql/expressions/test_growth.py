"""Values that would outgrow the memory are refused; what people write is not."""

from __future__ import annotations

import pytest

from service.contract.problems import SpecError
from service.contract.query import Query
from service.sql.compile import compile_sql
from service.sql.ddl import parse_schema
from service.sql.expressions.compile_expression import TableScope, compile_expression, scalar_of
from service.sql.expressions.limits import COLUMN_BYTES, MAX_VALUE_BYTES
from service.sql.expressions.nodes import Column, String
from service.sql.parser import Text
from service.sql.resolve.binder import bind
from service.sql.types.data_types import STRING

SCHEMA = parse_schema("s STRING, i INT, dt DATE", "/x")
SCOPE = TableScope({"t": SCHEMA})


def nested(function: str, levels: int, inner: str, arguments: str = "") -> str:
    return f"{function}(" * levels + inner + f"{arguments})" * levels


TOO_LONG = [
    nested("hex", 18, "'abcdefgh'"),
    nested("hex", 14, "s"),
    nested("hex", 31, "X'00'"),
    nested("hex", 31, "i"),
    nested("replace", 5, "'xxxxxxxxxxxxxxxxxxxx'", ", 'x', 'xxxxxxxxxxxxxxxxxxxx'"),
    nested("replace", 2, "s", f", s, '{'x' * 100}'"),
    nested("replace", 4, "s", ", 'x', s"),
    nested("regexp_replace", 3, "'aaaaaaaaaa'", f", '', '{'a' * 100}'"),
    nested("regexp_replace", 12, "s", ", '(.*)', '$1$1$1'"),
    nested("regexp_replace", 3, "s", ", '(?=(.*))', '$1'"),
    nested("regexp_replace", 3, "s", ", s, '$1'"),
    nested("regexp_replace", 3, "s", ", 'x', s"),
    f"regexp_replace('{'x' * 1000}', '.*', concat('{'$0' * 1000}', '$0'))",
    nested("translate", 8, "s", ", 'x', '\U0001f600'"),
    nested("hex", 3, "lpad('x', 65536, 'y')"),
    f"concat({', '.join(['rpad(s, 65536, s)'] * 5)})",
    f"concat_ws(rpad(s, 65536, s), {', '.join(['s'] * 5)})",
    " || ".join(["rpad(s, 65536, s)"] * 5),
    "hex(hex(hex(CAST(lpad(s, 65536, s) AS BINARY))))",
    "CASE WHEN i = 1 THEN 'x' ELSE hex(hex(hex(lpad('x', 65536, 'y')))) END",
    "coalesce(s, hex(hex(hex(lpad('x', 65536, 'y')))))",
    "length(hex(hex(hex(lpad('x', 65536, 'y'))))) = 1",
    "date_format(dt, hex(hex(lpad('x', 65536, 'y'))))",
]

LONG_ENOUGH = [
    "replace(replace(replace(replace(replace(s, '&', '&amp;'), '<', '&lt;'), '>', '&gt;'), '\"', '&quot;'), "
    "'~', '&apos;')",
    "regexp_replace(regexp_replace(s, '(\\\\d+)-(\\\\d+)', '$2-$1'), '\\\\s+', ' ')",
    "regexp_replace(s, 'x', s)",
    "regexp_replace(s, 'https?://x=(.*)', '$1')",
    nested("upper", 31, "s"),
    nested("trim", 31, "s"),
    nested("replace", 31, "s", ", 'abc', 'abc'"),
    nested("replace", 31, "s", ", 'abc'"),
    "hex(sha2(concat_ws('|', s, i, dt), 512))",
    "hex(hex(s))",
    "lpad(rpad(s, 65536, ' '), 65536, '0')",
    "lpad(s, -5, 'x')",
    "translate(translate(s, 'abc', 'xyz'), 'xyz', 'uvw')",
    f"concat_ws(', ', {', '.join(['s', 'i', 'dt'] * 100)})",
    "date_format(dt, 'EEEE, dd. MMMM yyyy')",
    "from_unixtime(i)",
]


@pytest.mark.parametrize("text", TOO_LONG)
def test_growth_is_refused(text: str) -> None:
    with pytest.raises(SpecError, match="more than 1 MB") as caught:
        compile_expression(text, SCOPE, "/x")
    assert caught.value.code == "unsupported_construct"
    assert caught.value.issues[0].column is not None


@pytest.mark.parametrize("text", LONG_ENOUGH)
def test_what_people_write_passes(text: str) -> None:
    assert (compile_expression(text, SCOPE, "/x").longest or 0) <= MAX_VALUE_BYTES


def test_bounds_count_bytes() -> None:
    source = Text("", "/x")
    assert scalar_of(String("\u00e4"), source).longest == 2
    assert scalar_of(Column("t.s", STRING), source).longest == COLUMN_BYTES
    assert scalar_of(Column("key", STRING, longest=7), source).longest == 7


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT {nested('hex', 4, 'MAX(' + nested('hex', 10, 's') + ')')} AS x FROM t",
        f"SELECT {nested('hex', 14, 's')} AS x FROM t GROUP BY {nested('hex', 10, 's')}",
        f"SELECT {nested('hex', 10, 's')} AS x FROM t GROUP BY 1 ORDER BY {nested('hex', 4, 'x')}",
    ],
)
def test_keys_and_aggregates_count_with_their_own_length(sql: str) -> None:
    schemas = {"t": SCHEMA}
    with pytest.raises(SpecError, match="more than 1 MB"):
        bind(compile_sql(sql, schemas).query, schemas)


def test_expressions_that_double_through_derived_tables_are_refused() -> None:
    def levels(number: int, step: str) -> str:
        sql = "SELECT i AS x FROM t"
        for level in range(number):
            sql = f"SELECT {step} AS x FROM ({sql}) a{level}"
        return f"SELECT x FROM ({sql}) a WHERE x > 0"

    schemas = {"t": SCHEMA}
    with pytest.raises(SpecError, match=r"at most 20000 \(limit `expanded_nodes`\)") as caught:
        bind(compile_sql(levels(6, "x + x + x + x + x + x + x + x"), schemas).query, schemas)
    assert caught.value.code == "query_too_deep"
    bind(compile_sql(levels(9, "x + 1"), schemas).query, schemas)
    bind(compile_sql(levels(9, "MAX(x + x + x + x)"), schemas).query, schemas)


def test_a_column_of_a_union_is_as_long_as_in_any_branch() -> None:
    table = {"kind": "table", "table": "t"}
    short = {"source": table, "select": [{"expression": "'x'", "name": "a"}]}
    # Its output is what it groups by, of any length.
    grouped = {"source": table, "group_by": [{"expression": "s", "name": "s"}]}
    for branches in ([short, grouped], [grouped, short]):
        source = {"kind": "union_all", "queries": branches, "alias": "u"}
        select = [{"expression": nested("hex", 13, "a" if branches[0] is short else "s"), "name": "h"}]
        with pytest.raises(SpecError, match="more than 1 MB"):
            bind(Query.model_validate({"source": source, "select": select}), {"t": SCHEMA})
