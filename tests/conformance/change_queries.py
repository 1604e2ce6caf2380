"""Random queries over the streams `s` and `t` whose results change as rows arrive: aggregates of aggregates, joins of
all kinds, semi- and anti-joins, windows, DISTINCT and set operations, inside each other.

Their results depend on no order of rows: numbers are integers and decimals, and ranks have all columns as keys.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

NUMBER, TEXT, DECIMAL, DOUBLE = "BIGINT", "STRING", "DECIMAL(10,8)", "DOUBLE"


_GROUPINGS = ("{0}", "{0}", "{0}", "{0}", "{0}", "ROLLUP ({0})", "CUBE ({0})")
_SUMS = {DECIMAL: "DOUBLE"}
"""The types of sums that are not those of their arguments."""


@dataclass(frozen=True)
class Relation:
    """A query, and its columns with their types."""

    sql: str
    columns: tuple[tuple[str, str], ...]

    def of(self, type_: str) -> list[str]:
        """The columns of a type."""
        return [name for name, own in self.columns if own == type_]


class QueryMaker:
    """Makes queries with operators up to a depth."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._names = 0

    def query(self, depth: int) -> str:
        """Returns a query."""
        return self._relation(depth).sql

    def _name(self) -> str:
        self._names += 1
        return f"c{self._names}"

    def _relation(self, depth: int) -> Relation:
        if depth <= 0:
            return self._table()
        makers: tuple[Callable[[int], Relation], ...] = (
            self._aggregate,
            self._aggregate,
            self._aggregate,
            self._filter,
            self._distinct,
            self._join,
            self._join,
            self._semi_join,
            self._union,
            self._window,
            self._set_operation,
            self._sessions,
        )
        return self._random.choice(makers)(depth)

    def _table(self) -> Relation:
        a, b, c, d, e, f = (self._name() for _ in range(6))
        table = self._random.choice("st")
        where = self._random.choice(("", "", " WHERE i > 0", " WHERE g IS NOT NULL"))
        numbers = ", ".join(f"CAST({value} AS BIGINT) AS {name}" for value, name in (("g", b), ("i", c), ("y % 3", d)))
        # Sums of these doubles are exact, in any order.
        others = f"CAST(i / 7 AS DECIMAL(10,8)) AS {e}, CAST(i AS DOUBLE) / 4 AS {f}"
        columns = ((a, TEXT), (b, NUMBER), (c, NUMBER), (d, NUMBER), (e, DECIMAL), (f, DOUBLE))
        return Relation(f"SELECT k AS {a}, {numbers}, {others} FROM {table}{where}", columns)

    def _aggregate(self, depth: int) -> Relation:
        below = self._relation(depth - 1)
        names = [name for name, _ in below.columns]
        keys = self._random.sample(names, self._random.randint(0, min(2, len(names))))
        types = dict(below.columns)
        items, columns = [], []
        for key in keys:
            name = self._name()
            items.append(f"{key} AS {name}")
            columns.append((name, types[key]))
        for _ in range(self._random.randint(1, 3)):
            name, argument = self._name(), self._random.choice(names)
            of = types[argument]
            calls = [(call, NUMBER) for call in ("COUNT(*)", f"COUNT({argument})", f"COUNT(DISTINCT {argument})")]
            calls += [(f"{call}({argument})", of) for call in ("MIN", "MAX")]
            if of != TEXT:
                filtered = f"COUNT(*) FILTER (WHERE {argument} > 1)"
                calls += [(filtered, NUMBER), (f"CAST(AVG({argument}) * 8 AS BIGINT)", NUMBER)]
                calls += [(f"CAST(SUM({argument}) AS {_SUMS.get(of, of)})", _SUMS.get(of, of))] * 2
            if of == NUMBER:
                calls += [(f"SUM(DISTINCT {argument})", of), (f"BIT_XOR({argument})", of)]
            call, kind = self._random.choice(calls)
            items.append(f"{call} AS {name}")
            columns.append((name, kind))
            if "DISTINCT" in call:
                name, condition = self._name(), self._random.choice(names)
                items.append(
                    f"{call} FILTER (WHERE {condition} {'>' if types[condition] == TEXT else '<'} '1') AS {name}"
                )
                columns.append((name, kind))
        grouped = f" GROUP BY {self._random.choice(_GROUPINGS).format(', '.join(keys))}" if keys else ""
        having = " HAVING COUNT(*) < 4" if self._random.random() < 0.2 else ""
        alias = self._name()
        sql = f"SELECT {', '.join(items)} FROM ({below.sql}) AS {alias}{grouped}{having}"
        return Relation(sql, tuple(columns))

    def _sessions(self, _depth: int) -> Relation:
        a, b, c = (self._name() for _ in range(3))
        table, length = self._random.choice("st"), self._random.choice(("1 day", "1 microsecond", "36 hours"))
        calls = (
            "CAST(SUM(i) AS BIGINT)",
            "COUNT(DISTINCT g)",
            "CAST(unix_date(CAST(session_window.start AS DATE)) AS BIGINT)",
        )
        sql = (
            f"SELECT k AS {a}, COUNT(*) AS {b}, {self._random.choice(calls)} AS {c} FROM {table} "
            f"GROUP BY k, session_window(ts, '{length}')"
        )
        return Relation(sql, ((a, TEXT), (b, NUMBER), (c, NUMBER)))

    def _filter(self, depth: int) -> Relation:
        below = self._relation(depth - 1)
        name, kind = self._random.choice(below.columns)
        tests = [f"{name} IS NOT NULL", f"{name} > 'b'" if kind == TEXT else f"{name} > 0"]
        tests += [f"{name} % 2 = 0"] if kind == NUMBER else []
        return self._over(below, f" WHERE {self._random.choice(tests)}")

    def _distinct(self, depth: int) -> Relation:
        below = self._relation(depth - 1)
        kept = self._random.sample(below.columns, self._random.randint(1, len(below.columns)))
        names = ", ".join(name for name, _ in kept)
        return Relation(f"SELECT DISTINCT {names} FROM ({below.sql}) AS {self._name()}", tuple(kept))

    def _over(self, below: Relation, rest: str) -> Relation:
        names = ", ".join(name for name, _ in below.columns)
        return Relation(f"SELECT {names} FROM ({below.sql}) AS {self._name()}{rest}", below.columns)

    def _pair(self, depth: int) -> tuple[Relation, Relation, str, str]:
        left, right = self._relation(depth - 1), self._relation(self._random.randint(0, depth - 1))
        kinds = [kind for kind in (NUMBER, TEXT) if left.of(kind) and right.of(kind)]
        if not kinds:
            left, right, kinds = self._table(), self._table(), [NUMBER]
        kind = self._random.choice(kinds)
        return left, right, self._random.choice(left.of(kind)), self._random.choice(right.of(kind))

    def _join(self, depth: int) -> Relation:
        left, right, one, other = self._pair(depth)
        a, b = self._name(), self._name()
        kind = self._random.choice(("JOIN", "JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"))
        items, columns = [], []
        for alias, side in ((a, left), (b, right)):
            for name, type_ in self._random.sample(side.columns, min(2, len(side.columns))):
                own = self._name()
                items.append(f"{alias}.{name} AS {own}")
                columns.append((own, type_))
        condition = f"{a}.{one} = {b}.{other}"
        numbers = (left.of(NUMBER), right.of(NUMBER))
        if all(numbers) and self._random.random() < 0.3:
            condition += f" AND {a}.{numbers[0][0]} <= {b}.{numbers[1][0]}"
        sql = f"SELECT {', '.join(items)} FROM ({left.sql}) AS {a} {kind} ({right.sql}) AS {b} ON {condition}"
        return Relation(sql, tuple(columns))

    def _semi_join(self, depth: int) -> Relation:
        left, right, one, other = self._pair(depth)
        a, b = self._name(), self._name()
        word = self._random.choice(("EXISTS", "NOT EXISTS"))
        names = ", ".join(f"{a}.{name}" for name, _ in left.columns)
        inner = f"SELECT 1 FROM ({right.sql}) AS {b} WHERE {b}.{other} = {a}.{one}"
        return Relation(f"SELECT {names} FROM ({left.sql}) AS {a} WHERE {word} ({inner})", left.columns)

    def _union(self, depth: int) -> Relation:
        left, right, one, other = self._pair(depth)
        name, kind = self._name(), dict(left.columns)[one]
        branches = (
            f"SELECT {column} AS {name} FROM ({side.sql}) AS {self._name()}"
            for side, column in ((left, one), (right, other))
        )
        return Relation(" UNION ALL ".join(branches), ((name, kind),))

    def _set_operation(self, depth: int) -> Relation:
        left, right, one, other = self._pair(depth)
        name, kind = self._name(), dict(left.columns)[one]
        word = self._random.choice(("INTERSECT", "EXCEPT", "INTERSECT ALL", "EXCEPT ALL", "UNION"))
        branches = (
            f"SELECT {column} AS {name} FROM ({side.sql}) AS {self._name()}"
            for side, column in ((left, one), (right, other))
        )
        return Relation(f" {word} ".join(branches), ((name, kind),))

    def _window(self, depth: int) -> Relation:
        below = self._relation(depth - 1)
        names = [name for name, _ in below.columns]
        key, rank = self._random.choice(names), self._name()
        order = ", ".join(self._random.sample(names, len(names)))
        call = self._random.choice(
            (f"ROW_NUMBER() OVER (PARTITION BY {key} ORDER BY {order})", f"COUNT(*) OVER (PARTITION BY {key})")
        )
        inner = f"SELECT {', '.join(names)}, {call} AS {rank} FROM ({below.sql}) AS {self._name()}"
        columns = (*below.columns, (rank, NUMBER))
        made = ", ".join(name for name, _ in columns)
        where = f" WHERE {rank} <= 2" if self._random.random() < 0.6 else ""
        return Relation(f"SELECT {made} FROM ({inner}) AS {self._name()}{where}", columns)
