"""Random tables and queries, by a seed, that Spark and DuckDB should answer alike.

Tables have random columns, NULLs and a hot value in each column. Queries have joins (also USING, semi and anti joins,
conditions without equality, CROSS JOIN), groups, windows, QUALIFY, subqueries (IN, NOT IN, EXISTS, values, correlated
or not, LATERAL), set operations with and without ALL, derived tables, common table expressions, VALUES, PIVOT, UNPIVOT,
LATERAL VIEW, structures, arrays, maps, lambdas, JSON, DISTINCT, ROLLUP, and ORDER BY with LIMIT and OFFSET, nested in
each other.

What the two define differently is left out: division by 0, overflow, sums of doubles that are not exact, rows that are
chosen among equals (LIMIT and ROW_NUMBER only with a total order), and groups of ROLLUP without rows. What they only
write differently is written for both, as `«Spark's text¦DuckDB's text»`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from random import Random
from typing import Any

import pyarrow as pa

INT, TEXT, DOUBLE, MONEY, DAY, FLAG = TYPES = ("BIGINT", "STRING", "DOUBLE", "DECIMAL(8,2)", "DATE", "BOOLEAN")
NUMBERS = (INT, DOUBLE, MONEY)
_ARROW = {
    INT: pa.int64(),
    TEXT: pa.string(),
    DOUBLE: pa.float64(),
    MONEY: pa.decimal128(8, 2),
    DAY: pa.date32(),
    FLAG: pa.bool_(),
}
_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
_DIRECTIONS = ("", " DESC", " NULLS LAST", " DESC NULLS FIRST")
_JOINS = ("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")
_DIALECTS = re.compile("«([^«»¦]*)¦([^«»¦]*)»")
_MOST_ROWS = 60
_DEEPEST = 3
_FIRST_DAY = datetime.date(2024, 1, 1)


@dataclass(frozen=True)
class Column:
    """A column as a query writes it, with its type."""

    text: str
    type: str


@dataclass(frozen=True)
class Table:
    """A table with a unique column `id`, a key `k` with a hot value, and other columns."""

    name: str
    columns: tuple[Column, ...]

    def of(self, alias: str) -> tuple[Column, ...]:
        """Returns the columns, written with an alias."""
        return tuple(replace(column, text=f"{alias}.{column.text}") for column in self.columns)


@dataclass(frozen=True)
class Query:
    """A query, and the types of its columns c0, c1, …"""

    text: str
    types: tuple[str, ...]


def in_spark(text: str) -> str:
    """Returns a generated query as Spark reads it."""
    return _DIALECTS.sub(r"\1", text)


def in_duckdb(text: str) -> str:
    """Returns a generated query as DuckDB reads it."""
    return _DIALECTS.sub(r"\2", text)


def value(random: Random, type_: str) -> Any:
    """Returns a random value of a type, from a small set, so that values repeat."""
    match type_:
        case "BIGINT":
            return random.randint(-3, 6)
        case "STRING":
            return random.choice(("", "a", "b", "ab", "B", "ä", "x y", "zz"))
        case "DOUBLE":
            # Multiples of a power of two: their sums do not depend on the order.
            return random.randint(-8, 8) / 4
        case "DECIMAL(8,2)":
            return Decimal(random.randint(-999, 999)) / 100
        case "DATE":
            return _FIRST_DAY + datetime.timedelta(days=random.randint(0, 5))
        case _:
            return random.random() < 0.5


def tables(random: Random) -> dict[Table, pa.Table]:
    """Returns three random tables; one may be empty."""
    found = {}
    for name in ("t", "u", "w"):
        types = random.sample(TYPES, random.randint(2, 5))
        others = (Column(f"{name}{index}", type_) for index, type_ in enumerate(types))
        columns = (Column("id", INT), Column("k", INT), *others)
        (rows,) = random.choices((0, 1, _MOST_ROWS // 2, _MOST_ROWS), (1, 1, 4, 6))
        nulls, hot = random.choice((0.0, 0.1, 0.4)), random.choice((0.0, 0.5, 0.9))
        arrays = []
        for index, column in enumerate(columns):
            hot_value = value(random, column.type)
            values = [
                None if random.random() < nulls else hot_value if random.random() < hot else value(random, column.type)
                for _ in range(rows)
            ]
            arrays.append(pa.array(range(rows) if index == 0 else values, _ARROW[column.type]))
        found[Table(name, columns)] = pa.table(arrays, names=[column.text for column in columns])
    return found


class Generator:
    """Generates queries over tables."""

    def __init__(self, random: Random, tables: Sequence[Table]) -> None:
        self._random = random
        self._tables = tables
        self._aliases = 0

    def query(self) -> str:
        """Returns a query; its rows are in a total order if it has ORDER BY."""
        made = self._any(0)
        if self._random.random() < 0.5:
            return made.text
        names = [f"c{index}" for index in range(len(made.types))]
        self._random.shuffle(names)
        keys = ", ".join(name + self._random.choice(_DIRECTIONS) for name in names)
        limit = self._random.choice(("", "", " LIMIT 3", " LIMIT 8", " LIMIT 0", " LIMIT 5 OFFSET 2", " OFFSET 4"))
        shown = ", ".join(f"c{index}" for index in range(len(made.types)))
        return f"SELECT {shown} FROM ({made.text}) AS o ORDER BY {keys}{limit}"

    def _any(self, depth: int, types: tuple[str, ...] | None = None) -> Query:
        """Returns a query, with columns of these types if given."""
        makers = [self._plain, self._grouped, self._distinct]
        if depth < _DEEPEST:
            makers += [self._set_operation, self._grouped]
        made = self._random.randint(0, len(makers) + (1 if types is None else -1))
        if made == len(makers):
            return self._windows(depth)
        if made > len(makers):
            return self._random.choice((self._rolled_up, self._pivoted, self._grouped_by_all))(depth)
        return makers[made](depth, types)

    def _source(self, depth: int, *, unique: bool = False) -> tuple[str, tuple[Column, ...], str]:
        """Returns FROM, its columns, and the text before SELECT: common table expressions."""
        if unique or depth >= _DEEPEST or self._random.random() < 0.35:
            table = self._random.choice(self._tables)
            alias = self._alias()
            return f"{table.name} AS {alias}", table.of(alias), ""
        if self._random.random() < 0.25:
            return self._nested(depth)
        if self._random.random() < 0.2:
            makers = (self._values, self._unpivoted, self._exploded, self._half_joined, self._lateral)
            return self._random.choice(makers)()
        left, right = (self._random.choice(self._tables) for _ in range(2))
        one, other = self._alias(), self._alias()
        columns = (*left.of(one), *right.of(other))
        condition = f"{one}.k = {other}.k"
        join = self._random.choice(_JOINS)
        if self._random.random() < 0.15:
            if self._random.random() < 0.3:
                return f"{left.name} AS {one} CROSS JOIN {right.name} AS {other}", columns, ""
            if self._random.random() < 0.5:
                return f"{left.name} AS {one} {join} {right.name} AS {other} USING (k)", columns, ""
            # DuckDB has no other outer joins without an equality.
            join, condition = (
                self._random.choice(("JOIN", "LEFT JOIN")),
                f"{one}.k {self._random.choice('<>')} {other}.k",
            )
        if self._random.random() < 0.3:
            pairs = [
                (mine, others)
                for mine in left.of(one)
                for others in right.of(other)
                if mine.type == others.type and mine.type != FLAG
            ]
            mine, others = self._random.choice(pairs)
            sign = "=" if join == "FULL JOIN" else self._random.choice(_COMPARISONS)
            condition += f" AND {mine.text} {sign} {others.text}"
        return f"{left.name} AS {one} {join} {right.name} AS {other} ON {condition}", columns, ""

    def _lateral(self) -> tuple[str, tuple[Column, ...], str]:
        """Returns FROM with a query after LATERAL, with the columns of both."""
        left, right = (self._random.choice(self._tables) for _ in range(2))
        one, other, alias = self._alias(), self._alias(), self._alias()
        before, inner = left.of(one), right.of(other)
        chosen = self._some(inner, 1, 2)
        join = self._random.choice(("JOIN", "LEFT JOIN"))
        rows = f"{right.name} AS {other} WHERE {other}.k = {one}.k"
        rest = ""
        match self._random.randint(0, 3):
            case 0:
                chosen = [Column("COUNT(*)", INT), *(Column(f"MAX({each.text})", each.type) for each in chosen)]
            case 1:
                # The ids are unique, so that the order is total.
                rest = f" ORDER BY {other}.id LIMIT {self._random.randint(1, 3)}"
            case 2:
                chosen, rows = [self._expression(before, INT), *self._some(before, 1, 1)], ""
            case _:
                mine = self._random.choice([each for each in inner if each.type == INT])
                outer = self._random.choice([each for each in before if each.type == INT])
                rows += f" AND {mine.text} {self._random.choice(_COMPARISONS)} {outer.text}"
        columns = tuple(Column(f"{alias}.c{index}", each.type) for index, each in enumerate(chosen))
        query = f"SELECT {_named(chosen)}{f' FROM {rows}' if rows else ''}{rest}"
        return f"{left.name} AS {one} {join} LATERAL ({query}) AS {alias} ON TRUE", (*before, *columns), ""

    def _nested(self, depth: int) -> tuple[str, tuple[Column, ...], str]:
        inner, alias = self._any(depth + 1), self._alias()
        columns = tuple(Column(f"{alias}.c{index}", type_) for index, type_ in enumerate(inner.types))
        if self._random.random() < 0.5:
            return f"({inner.text}) AS {alias}", columns, ""
        if self._random.random() < 0.5:
            return f"w_{alias} AS {alias}", columns, f"WITH w_{alias} AS ({inner.text}) "
        other = self._alias()
        again = tuple(Column(f"{other}.c{index}", type_) for index, type_ in enumerate(inner.types))
        source = f"w_{alias} AS {alias} JOIN w_{alias} AS {other} ON {columns[0].text} = {again[0].text}"
        return source, (*columns, *again), f"WITH w_{alias} AS ({inner.text}) "

    def _values(self) -> tuple[str, tuple[Column, ...], str]:
        """Returns VALUES as a table."""
        alias, types = self._alias(), [self._random.choice(TYPES) for _ in range(self._random.randint(1, 3))]
        rows = [
            [f"CAST({'NULL' if self._random.random() < 0.2 else self._literal(type_)} AS {type_})" for type_ in types]
            for _ in range(self._random.randint(1, 4))
        ]
        names = [f"v{index}" for index in range(len(types))]
        listed = ", ".join(f"({', '.join(row)})" for row in rows)
        text = f"(VALUES {listed}) AS {alias}({', '.join(names)})"
        return text, tuple(Column(f"{alias}.{name}", type_) for name, type_ in zip(names, types, strict=True)), ""

    def _unpivoted(self) -> tuple[str, tuple[Column, ...], str]:
        """Returns UNPIVOT of two columns of one type."""
        table, inner, alias = self._random.choice(self._tables), self._alias(), self._alias()
        type_ = self._random.choice(table.columns[1:]).type
        columns = table.of(inner)
        pair = [self._expression(columns, type_).text for _ in range(2)]
        kind = self._random.choice(("", "INCLUDE NULLS ", "EXCLUDE NULLS "))
        selected = f"SELECT {inner}.id AS id, {pair[0]} AS p, {pair[1]} AS q"
        text = (
            f"({selected} FROM {table.name} AS {inner}) AS {self._alias()} UNPIVOT {kind}(v FOR n IN (p, q)) AS {alias}"
        )
        return text, (Column(f"{alias}.id", INT), Column(f"{alias}.n", TEXT), Column(f"{alias}.v", type_)), ""

    def _exploded(self) -> tuple[str, tuple[Column, ...], str]:
        """Returns a table with a row for each element of an array."""
        table, alias, view = self._random.choice(self._tables), self._alias(), self._alias()
        columns = table.of(alias)
        type_ = self._random.choice(columns).type
        parts = ", ".join(self._expression(columns, type_, 1).text for _ in range(self._random.randint(1, 3)))
        in_spark = f" LATERAL VIEW EXPLODE(ARRAY({parts})) {view} AS e"
        text = f"{table.name} AS {alias}«{in_spark}¦, LATERAL (SELECT UNNEST([{parts}]) AS e) AS {view}»"
        return text, (*columns, Column(f"{view}.e", type_)), ""

    def _half_joined(self) -> tuple[str, tuple[Column, ...], str]:
        """Returns a semi or anti join."""
        left, right = (self._random.choice(self._tables) for _ in range(2))
        one, other = self._alias(), self._alias()
        kind = self._random.choice(("SEMI", "ANTI"))
        condition = f"{one}.k = {other}.k"
        if self._random.random() < 0.4:
            condition += f" AND {self._condition(right.of(other))}"
        return f"{left.name} AS {one} «LEFT ¦»{kind} JOIN {right.name} AS {other} ON {condition}", left.of(one), ""

    def _pivoted(self, depth: int) -> Query:
        """Returns PIVOT; not with COUNT, which is NULL in Spark and 0 in DuckDB for a value without rows."""
        inner, types = self._any(depth + 1, (INT, INT, TEXT)), (INT, INT, TEXT)
        call = self._random.choice(("SUM(c1)", "MIN(c1)", "MAX(c1)"))
        values = self._random.sample(("''", "'a'", "'b'", "'ab'", "'B'"), 2)
        source = f"(SELECT c0, c1, c2 FROM ({inner.text}) AS {self._alias()}) AS {self._alias()}"
        listed = ", ".join(f"{value} AS p{index}" for index, value in enumerate(values))
        text = f"SELECT c0, p0 AS c1, p1 AS c2 FROM {source} PIVOT ({call} FOR c2 IN ({listed}))"
        return Query(text, (types[0], INT, INT))

    def _grouped_by_all(self, depth: int) -> Query:
        source, columns, before = self._source(depth)
        keys = [column for column in self._some(columns, 1, 2) if column.type != DOUBLE] or [columns[0]]
        calls = [self._aggregate(columns, self._random.choice(TYPES), keys)]
        text = f"{before}SELECT {_named([*keys, *calls])} FROM {source}{self._where(columns, depth)} GROUP BY ALL"
        return Query(text, _types([*keys, *calls]))

    def _plain(self, depth: int, types: tuple[str, ...] | None) -> Query:
        source, columns, before = self._source(depth)
        chosen = self._chosen(columns, types)
        where = self._where(columns, depth)
        if types is None and self._random.random() < 0.15:
            chosen.append(self._value_of_subquery(columns))
        return Query(f"{before}SELECT {_named(chosen)} FROM {source}{where}", _types(chosen))

    def _distinct(self, depth: int, types: tuple[str, ...] | None) -> Query:
        source, columns, before = self._source(depth)
        chosen = self._chosen(columns, types)
        where = self._where(columns, depth)
        return Query(f"{before}SELECT DISTINCT {_named(chosen)} FROM {source}{where}", _types(chosen))

    def _grouped(self, depth: int, types: tuple[str, ...] | None) -> Query:
        source, columns, before = self._source(depth)
        keys = [column for column in self._some(columns, 0, 2) if column.type != DOUBLE]
        wanted = types or tuple(self._random.choice(TYPES) for _ in range(self._random.randint(1, 3)))
        calls = [self._aggregate(columns, type_, keys) for type_ in wanted]
        chosen = calls if types else [*keys, *calls]
        group = f" GROUP BY {', '.join(key.text for key in keys)}" if keys else ""
        having = f" HAVING COUNT(*) {self._random.choice(_COMPARISONS)} {self._random.randint(0, 5)}"
        text = f"{before}SELECT {_named(chosen)} FROM {source}{self._where(columns, depth)}{group}"
        return Query(text + (having if self._random.random() < 0.3 else ""), _types(chosen))

    def _rolled_up(self, depth: int) -> Query:
        source, columns, before = self._source(depth)
        keys = [column for column in self._some(columns, 1, 2) if column.type != DOUBLE] or [columns[0]]
        calls = [self._aggregate(columns, INT, []), Column("GROUPING(" + keys[0].text + ")", INT)]
        kind = self._random.choice(("ROLLUP", "CUBE"))
        group = f" GROUP BY {kind} ({', '.join(key.text for key in keys)})"
        chosen = [*keys, *calls]
        # Without rows, DuckDB returns the group of all rows, and Spark does not.
        text = f"{before}SELECT {_named(chosen)} FROM {source}{self._where(columns, depth)}{group} HAVING COUNT(*) > 0"
        return Query(text, _types(chosen))

    def _windows(self, depth: int) -> Query:
        unique = self._random.random() < 0.6
        source, columns, before = self._source(depth, unique=unique)
        chosen = list(self._some(columns, 1, 3))
        calls = [self._window(columns, unique=unique) for _ in range(self._random.randint(1, 3))]
        qualify = ""
        if self._random.random() < 0.4:
            call = self._window(columns, unique=unique)
            qualify = f" QUALIFY {self._compared(call)}"
        text = f"{before}SELECT {_named([*chosen, *calls])} FROM {source}{self._where(columns, depth)}{qualify}"
        return Query(text, _types([*chosen, *calls]))

    def _window(self, columns: Sequence[Column], *, unique: bool) -> Column:
        parts = self._some(columns, 0, 1)
        partition = f"PARTITION BY {', '.join(part.text for part in parts)}" if parts else ""
        key = self._random.choice([column for column in columns if column.type != FLAG] or columns)
        direction = self._random.choice(("", " DESC", " NULLS LAST"))
        order = f"ORDER BY {key.text}{direction}"
        if not unique:
            if self._random.random() < 0.5:
                rank = self._random.choice(("RANK", "DENSE_RANK"))
                return Column(f"{rank}() OVER ({partition} {order})", INT)
            call = self._plain_aggregate(columns, self._random.choice(NUMBERS))
            return Column(f"{call.text} OVER ({partition} {order if self._random.random() < 0.5 else ''})", call.type)
        total = f"{order}, {columns[0].text}"
        argument = self._random.choice(columns)
        match self._random.randint(0, 4):
            case 0:
                return Column(f"ROW_NUMBER() OVER ({partition} {total})", INT)
            case 1:
                name = self._random.choice(("LAG", "LEAD"))
                offset = self._random.randint(1, 3)
                return Column(f"{name}({argument.text}, {offset}) OVER ({partition} {total})", argument.type)
            case 2:
                name = self._random.choice(("FIRST_VALUE", "LAST_VALUE"))
                return Column(f"{name}({argument.text}) OVER ({partition} {total} {self._frame()})", argument.type)
            case 3:
                return Column(f"NTILE({self._random.randint(1, 4)}) OVER ({partition} {total})", INT)
            case _:
                call = self._plain_aggregate(columns, self._random.choice(NUMBERS))
                return Column(f"{call.text} OVER ({partition} {total} {self._frame()})", call.type)

    def _frame(self) -> str:
        if self._random.random() < 0.4:
            return "ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
        first = self._random.choice(("UNBOUNDED PRECEDING", "2 PRECEDING", "CURRENT ROW"))
        last = self._random.choice(("CURRENT ROW", "1 FOLLOWING", "UNBOUNDED FOLLOWING"))
        return f"ROWS BETWEEN {first} AND {last}"

    def _set_operation(self, depth: int, types: tuple[str, ...] | None) -> Query:
        wanted = types or tuple(self._random.choice(TYPES) for _ in range(self._random.randint(1, 3)))
        left, right = (self._any(depth + 1, wanted) for _ in range(2))
        kind = self._random.choice(
            ("UNION", "UNION ALL", "UNION ALL", "INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL")
        )
        names = ", ".join(f"c{index}" for index in range(len(wanted)))
        sides = [f"SELECT {names} FROM ({side.text}) AS {self._alias()}" for side in (left, right)]
        return Query(f" {kind} ".join(sides), wanted)

    def _chosen(self, columns: Sequence[Column], types: tuple[str, ...] | None) -> list[Column]:
        if types is None:
            return [self._expression(columns, column.type) for column in self._some(columns, 1, 4)]
        return [self._expression(columns, type_) for type_ in types]

    def _expression(self, columns: Sequence[Column], type_: str, depth: int = 0) -> Column:
        """Returns an expression of a type over columns; the type of a sum of decimals is exact, but wider."""
        same = [column for column in columns if column.type == type_]
        if not same or self._random.random() < 0.1:
            return Column(f"CAST({self._literal(type_)} AS {type_})", type_)
        one, other = self._random.choice(same).text, self._random.choice(same).text
        if depth or self._random.random() < 0.5:
            return Column(one, type_)
        made = [
            f"COALESCE({one}, {other})",
            f"NULLIF({one}, {other})",
            f"CASE WHEN {self._condition(columns)} THEN {one} ELSE {other} END",
        ]
        if type_ == INT:
            made += [f"({one} & {other})", f"({one} | {other})", f"(~{one})"]
        if type_ in {INT, DOUBLE}:
            made += [f"{one} + {other}", f"{one} * 2 - {other}", f"ABS({one})"]
            if type_ == INT:
                made += [f"«SIZE(ARRAY({one}, {other}))¦LEN([{one}, {other}])»"]
                made += [f"CAST(«GET_JSON_OBJECT('{{\"a\": 4}}', '$.a')¦'{{\"a\": 4}}' ->> '$.a'» AS BIGINT) + {one}"]
        elif type_ == TEXT:
            made += [f"{one} || {other}", f"UPPER({one})", f"SUBSTRING({one}, 1, 1)"]
        elif type_ == FLAG:
            made += [f"NOT {one}", f"({one} AND {other})"]
        made += [
            f"«NAMED_STRUCT('x', {one}, 'y', 1).x¦STRUCT_PACK(x := {one}, y := 1).x»",
            f"«ARRAY({one}, {other})[1]¦[{one}, {other}][2]»",
            f"«MAP('m', {one})['m']¦MAP {{'m': {one}}}['m']»",
            f"«ELEMENT_AT(TRANSFORM(ARRAY({one}), e -> COALESCE(e, {other})), 1)"
            f"¦LIST_TRANSFORM([{one}], LAMBDA e: COALESCE(e, {other}))[1]»",
        ]
        if type_ == DAY:
            made.append(f"CAST({one} + INTERVAL '3' MONTH AS DATE)")
        return Column(self._random.choice(made), type_)

    def _value_of_subquery(self, columns: Sequence[Column]) -> Column:
        """Returns a value of a subquery, correlated or not."""
        table, alias = self._random.choice(self._tables), self._alias()
        inner = table.of(alias)
        call = self._plain_aggregate(inner, self._random.choice(NUMBERS))
        pairs = [(mine, others) for mine in columns for others in inner if mine.type == others.type]
        where = ""
        if pairs and self._random.random() < 0.7:
            mine, others = self._random.choice(pairs)
            where = f" WHERE {others.text} = {mine.text}"
        return Column(f"(SELECT {call.text} FROM {table.name} AS {alias}{where})", call.type)

    def _aggregate(self, columns: Sequence[Column], type_: str, keys: Sequence[Column]) -> Column:
        """Returns an aggregate of a type."""
        matching = [column for column in columns if column.type == type_]
        any_column = self._random.choice(columns)
        filtered = f" FILTER (WHERE {self._condition(columns)})" if self._random.random() < 0.2 else ""
        if type_ == INT:
            made = ["COUNT(*)", f"COUNT({any_column.text})", f"COUNT(DISTINCT {any_column.text})"]
            made += [f"CAST(SUM({column.text}) AS BIGINT)" for column in matching if not filtered]
            made += [f"SUM({column.text})" for column in matching]
            if not filtered:
                condition = self._condition(columns)
                # DuckDB's COUNT_IF is NULL without rows.
                made.append(f"«COUNT_IF({condition})¦COUNT(*) FILTER (WHERE {condition})»")
            return Column(self._random.choice(made) + filtered, INT)
        if not matching:
            return Column(f"MAX(CAST({self._literal(type_)} AS {type_})){filtered}", type_)
        column = self._random.choice(matching)
        if type_ == TEXT and not filtered and self._random.random() < 0.2:
            text = column.text
            return Column(
                f"«LISTAGG({text}, '-') WITHIN GROUP (ORDER BY {text})¦STRING_AGG({text}, '-' ORDER BY {text})»", TEXT
            )
        names = (
            ["MIN", "MAX"] + (["SUM"] if type_ == DOUBLE else []) + (["BOOL_AND", "BOOL_OR"] if type_ == FLAG else [])
        )
        return Column(f"{self._random.choice(names)}({column.text}){filtered}", type_)

    def _plain_aggregate(self, columns: Sequence[Column], type_: str) -> Column:
        matching = [column for column in columns if column.type == type_] or None
        if matching is None:
            return Column("COUNT(*)", INT)
        column = self._random.choice(matching)
        names = ["MIN", "MAX", "COUNT"] + (["SUM"] if type_ != MONEY else [])
        name = self._random.choice(names)
        return Column(f"{name}({column.text})", INT if name == "COUNT" else type_)

    def _where(self, columns: Sequence[Column], depth: int) -> str:
        if self._random.random() < 0.5:
            return ""
        terms = [
            self._subquery(columns) if depth < _DEEPEST and self._random.random() < 0.4 else self._condition(columns)
            for _ in range(self._random.choice((1, 1, 1, 2)))
        ]
        return f" WHERE {' AND '.join(terms)}"

    def _condition(self, columns: Sequence[Column], depth: int = 0) -> str:
        column = self._random.choice(columns)
        match self._random.randint(0, 7):
            case 0:
                return f"{column.text} IS {self._random.choice(('NULL', 'NOT NULL'))}"
            case 1 if depth == 0 and self._random.random() < 0.4:
                # Conditions on single tables may follow from it.
                pairs = [f"{self._condition(columns, 1)} AND {self._condition(columns, 1)}" for _ in range(2)]
                return f"({' OR '.join(pairs)})"
            case 1 if depth < 2:
                word = self._random.choice(("AND", "OR"))
                return f"({self._condition(columns, depth + 1)} {word} {self._condition(columns, depth + 1)})"
            case 2 if depth < 2:
                return f"NOT ({self._condition(columns, depth + 1)})"
            case 3 if column.type != FLAG:
                values = ", ".join(self._literal(column.type) for _ in range(3))
                return f"{column.text} {self._random.choice(('IN', 'NOT IN'))} ({values})"
            case 4 if column.type == TEXT:
                return f"{column.text} LIKE {self._random.choice(_PATTERNS)}"
            case 5 if column.type != FLAG:
                return f"{column.text} BETWEEN {self._literal(column.type)} AND {self._literal(column.type)}"
            case _:
                return self._compared(column)

    def _compared(self, column: Column) -> str:
        sign = self._random.choice(_COMPARISONS if column.type != FLAG else _COMPARISONS[:2])
        return f"{column.text} {sign} {self._literal(column.type)}"

    def _subquery(self, columns: Sequence[Column]) -> str:
        """Returns a condition with a subquery over one table."""
        table, alias = self._random.choice(self._tables), self._alias()
        inner = table.of(alias)
        compared = [column for column in columns if column.type != FLAG]
        pairs = [(mine, others) for mine in compared for others in inner if mine.type == others.type]
        if not pairs:
            return self._condition(columns)
        mine, others = self._random.choice(pairs)
        key, other_key = self._random.choice(pairs)
        terms = [self._condition(inner)] if self._random.random() < 0.5 else []
        if self._random.random() < 0.4:
            terms.append(f"{other_key.text} = {key.text}")
        where = f" WHERE {' AND '.join(terms)}" if terms else ""
        match self._random.randint(0, 3):
            case 0:
                return f"{mine.text} IN (SELECT {others.text} FROM {table.name} AS {alias}{where})"
            case 1:
                return f"{mine.text} NOT IN (SELECT {others.text} FROM {table.name} AS {alias}{where})"
            case 2:
                word = self._random.choice(("EXISTS", "NOT EXISTS"))
                return f"{word} (SELECT 1 FROM {table.name} AS {alias}{where})"
            case _:
                call = self._random.choice(("MIN", "MAX"))
                sign = self._random.choice(_COMPARISONS)
                return f"{mine.text} {sign} (SELECT {call}({others.text}) FROM {table.name} AS {alias}{where})"

    def _literal(self, type_: str) -> str:
        found = value(self._random, type_)
        if type_ == DAY:
            return f"DATE '{found}'"
        if type_ == DOUBLE:
            return f"CAST({found} AS DOUBLE)"
        return f"'{found}'" if type_ == TEXT else str(found).upper()

    def _some(self, columns: Sequence[Column], least: int, most: int) -> list[Column]:
        return self._random.sample(list(columns), min(len(columns), self._random.randint(least, most)))

    def _alias(self) -> str:
        self._aliases += 1
        return f"a{self._aliases}"


_PATTERNS = ("'a%'", "'%b'", "'_'", "'%'", "'%a%b%'", "''")


def _named(columns: Sequence[Column]) -> str:
    return ", ".join(f"{column.text} AS c{index}" for index, column in enumerate(columns))


def _types(columns: Sequence[Column]) -> tuple[str, ...]:
    return tuple(column.type for column in columns)
