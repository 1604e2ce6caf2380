"""Random queries over join graphs of up to 8 tables, with settings, each determined by its seed alone.

The graphs are chains, stars, snowflakes, cycles and cliques. A member of a graph is a table, a derived table or a
common table expression, which is used twice. The SQL front end refuses a few of the texts, for a hint that the kind of
join does not allow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

MAX_TABLES = 8

COLUMNS = {
    "k": "BIGINT",
    "f": "BIGINT",
    "g": "INT",
    "y": "TINYINT",
    "h": "STRING",
    "d": "DATE",
    "m": "DECIMAL(12,2)",
    "v": "DOUBLE",
    "b": "BOOLEAN",
}
"""The columns of every table."""

TABLES = {f"t{number}": ", ".join(f"{name} {type_}" for name, type_ in COLUMNS.items()) for number in range(MAX_TABLES)}
"""The DDL of every table."""

_JOINED_BY = ("BIGINT", "INT", "STRING", "DATE", "DECIMAL(12,2)")
_NUMBERS = ("BIGINT", "INT", "TINYINT", "DECIMAL(12,2)", "DOUBLE")
_KINDS = {"INNER": 50, "LEFT": 15, "RIGHT": 7, "FULL": 6, "LEFT SEMI": 8, "LEFT ANTI": 6, "CROSS": 3}
_CONDITIONS = {
    "BIGINT": ("{} > 100", "{} IN (1, 7, 9)", "{} IS NOT NULL", "{} = 7"),
    "INT": ("{} % 2 = 0", "{} BETWEEN 3 AND 90", "{} <> 5"),
    "TINYINT": ("{} < 20", "{} IS NULL"),
    "STRING": ("{} LIKE 'a%'", "{} = 'x'", "LENGTH({}) > 3"),
    "DATE": ("{} >= DATE '2024-01-01'", "YEAR({}) = 2023"),
    "DECIMAL(12,2)": ("{} > 9.99",),
    "DOUBLE": ("{} < 0.5",),
    "BOOLEAN": ("{}", "NOT {}"),
}
_EXPRESSIONS = {"BIGINT": "{} % 10", "INT": "{} + 1", "STRING": "UPPER({})", "DATE": "YEAR({})"}

_SETTINGS: dict[str, tuple[Any, ...]] = {
    "agg_phase": ("ONE_PHASE", "TWO_PHASE"),
    "distinct_method": ("native", "split", "bitmap", "branches"),
    "distinct_split.enabled": (True, False),
    "distinct_split.bucket_num": (2, 16, 4096),
    "incremental_agg": (False,),
    "eager_aggregation": (True, True, False),
    "join.ship": ("REPARTITION", "BROADCAST_LEFT", "BROADCAST_RIGHT"),
    "join.local": ("SORT_MERGE", "HASH_LEFT", "HASH_RIGHT"),
    "join.skew": ("ISOLATE", "SALT", "NONE"),
    "skew.threshold": (0, "1MB", "10GB"),
    "skew.factor": (1.5, 20.0),
    "mini_batch.size": (1000,),
}
_SOME_SETTINGS = 0.25
"""How often a setting is given in a query that is not left to the defaults."""


@dataclass(frozen=True)
class Column:
    """A column that can be seen, as SQL names it, with its type."""

    text: str
    type: str


@dataclass(frozen=True)
class Relation:
    """What stands in FROM: its SQL without an alias, its columns by name, and how many tables it reads."""

    text: str
    columns: dict[str, str]
    tables: int


@dataclass(frozen=True)
class RandomQuery:
    """One case before anything is known of its tables."""

    sql: str
    settings: dict[str, Any]


def random_query(seed: int) -> RandomQuery:
    """The query of `seed`."""
    rng = Random(f"query {seed}")
    sql = _Writer(rng).statement(max(rng.randint(1, MAX_TABLES), rng.randint(1, MAX_TABLES)))
    return RandomQuery(sql, _settings(rng))


def _settings(rng: Random) -> dict[str, Any]:
    if rng.random() < 0.6:
        return {}
    return {key: rng.choice(values) for key, values in _SETTINGS.items() if rng.random() < _SOME_SETTINGS}


@dataclass
class _Writer:
    """Writes one statement. `expressions` are its common table expressions, in order."""

    rng: Random
    expressions: list[str] = field(default_factory=list)

    def statement(self, tables: int) -> str:
        """A whole statement that reads `tables` tables at most."""
        relations = self._relations(tables, depth=0)
        text = self._select(relations, whole=True).text
        with_ = f"WITH {', '.join(self.expressions)} " if self.expressions else ""
        return with_ + text

    def _chance(self, share: float) -> bool:
        return self.rng.random() < share

    def _relations(self, tables: int, depth: int) -> list[Relation]:
        """Members of one graph that read `tables` tables in all."""
        found: list[Relation] = []
        left = tables
        while left:
            if left >= 2 and depth < 2 and self._chance(0.12):
                shared = self._shared(self.rng.randint(1, left // 2), depth)
                found += [shared, shared]
                left -= 2 * shared.tables
            elif depth < 2 and self._chance(0.2):
                found.append(self._derived(self.rng.randint(1, left), depth))
                left -= found[-1].tables
            else:
                found.append(Relation(f"t{self.rng.randrange(MAX_TABLES)}", dict(COLUMNS), 1))
                left -= 1
        self.rng.shuffle(found)
        return found

    def _shared(self, tables: int, depth: int) -> Relation:
        """A common table expression."""
        below = self._select(self._relations(tables, depth + 1), whole=False)
        name = f"w{len(self.expressions)}"
        self.expressions.append(f"{name} AS ({below.text})")
        return Relation(name, below.columns, tables)

    def _derived(self, tables: int, depth: int) -> Relation:
        if tables >= 2 and self._chance(0.3):
            return self._union(tables)
        below = self._select(self._relations(tables, depth + 1), whole=False)
        return Relation(f"({below.text})", below.columns, tables)

    def _union(self, tables: int) -> Relation:
        names = self.rng.sample(list(COLUMNS), self.rng.randint(3, 6))
        selected = ", ".join(names)
        visible = [Column(name, COLUMNS[name]) for name in names]
        branches = [
            f"SELECT {selected} FROM t{self.rng.randrange(MAX_TABLES)}{self._where(visible)}"
            for _ in range(min(tables, 3))
        ]
        return Relation(f"({' UNION ALL '.join(branches)})", {name: COLUMNS[name] for name in names}, len(branches))

    def _select(self, relations: Sequence[Relation], *, whole: bool) -> Relation:
        """One SELECT over `relations` joined to one graph; the whole statement has hints, ORDER BY and UNION too."""
        from_, visible, aliases = self._joined(relations)
        hint = self._hint(aliases) if len(aliases) > 1 and self._chance(0.12) else ""
        where = self._where(visible)
        selected, columns, tail = self._items(visible, whole=whole)
        text = f"SELECT {hint}{selected} FROM {from_}{where}{tail}"
        tables = sum(relation.tables for relation in relations)
        if whole and 2 * tables <= MAX_TABLES and self._chance(0.1):
            text = f"{text} UNION ALL SELECT {selected} FROM {from_}{self._where(visible)}{tail}"
        elif whole and self._chance(0.25):
            text += f" ORDER BY {self.rng.randint(1, len(columns))}{self.rng.choice(('', ' DESC'))}"
            text += self._limit()
        elif self._chance(0.06):
            text += self._limit()
        return Relation(text, columns, tables)

    def _limit(self) -> str:
        return f" LIMIT {self.rng.choice((1, 100, 1_000_000))}" if self._chance(0.7) else ""

    def _joined(self, relations: Sequence[Relation]) -> tuple[str, list[Column], list[str]]:
        """FROM with its joins, the columns that can be seen after it, and the aliases."""
        neighbours = self.rng.choice(_GRAPHS)
        text, seen = "", dict[int, list[Column]]()
        aliases = [f"a{position}" for position in range(len(relations))]
        for position, relation in enumerate(relations):
            columns = [Column(f"a{position}.{name}", type_) for name, type_ in relation.columns.items()]
            if not position:
                text = f"{relation.text} AS a0"
                seen[0] = columns
                continue
            kind = self.rng.choices(list(_KINDS), list(_KINDS.values()))[0]
            wanted = [other for other in neighbours(position, len(relations)) if other in seen]
            condition = self._on([seen[other] for other in wanted or [self.rng.choice(list(seen))]], columns)
            if condition is None or kind == "CROSS":
                text += f" CROSS JOIN {relation.text} AS a{position}"
            else:
                text += f" {kind} JOIN {relation.text} AS a{position} ON {condition}"
            if condition is None or kind not in {"LEFT SEMI", "LEFT ANTI"}:
                seen[position] = columns
        return text, [column for columns in seen.values() for column in columns], aliases

    def _on(self, others: Sequence[list[Column]], columns: list[Column]) -> str | None:
        """An equality with each of `others`, now and then two, and a residual."""
        terms: list[str] = []
        for other in others:
            pairs = [
                (left, right)
                for left in other
                for right in columns
                if left.type == right.type and left.type in _JOINED_BY
            ]
            if not pairs:
                continue
            for left, right in self.rng.sample(pairs, min(len(pairs), 2 if self._chance(0.2) else 1)):
                expression = _EXPRESSIONS.get(left.type, "{}") if self._chance(0.08) else "{}"
                terms.append(f"{expression.format(left.text)} = {expression.format(right.text)}")
        numbers = [column for column in columns if column.type == "DOUBLE"]
        beside = [column for column in others[0] if column.type == "DOUBLE"]
        if terms and numbers and beside and self._chance(0.1):
            terms.append(f"{beside[0].text} < {numbers[0].text}")
        return " AND ".join(terms) if terms else None

    def _hint(self, aliases: list[str]) -> str:
        named = self.rng.sample(aliases, self.rng.randint(1, min(2, len(aliases))))
        return f"/*+ {self.rng.choice(('BROADCAST', 'SHUFFLE_HASH', 'SHUFFLE_MERGE'))}({', '.join(named)}) */ "

    def _condition(self, visible: Sequence[Column]) -> str:
        column = self.rng.choice([column for column in visible if column.type in _CONDITIONS])
        return self.rng.choice(_CONDITIONS[column.type]).format(column.text)

    def _where(self, visible: Sequence[Column]) -> str:
        if not any(column.type in _CONDITIONS for column in visible) or self._chance(0.5):
            return ""
        terms = [self._condition(visible) for _ in range(self.rng.randint(1, 3))]
        return f" WHERE {self.rng.choice((' AND ', ' AND ', ' OR ')).join(terms)}"

    def _items(self, visible: list[Column], *, whole: bool) -> tuple[str, dict[str, str], str]:
        """The SELECT list, its columns, and GROUP BY with HAVING."""
        if self._chance(0.75 if whole else 0.3):
            return self._grouped(visible)
        chosen = self.rng.sample(visible, min(len(visible), self.rng.randint(2, 6)))
        names = [f"c{position}" for position in range(len(chosen))]
        distinct = "DISTINCT " if self._chance(0.15) else ""
        selected = distinct + ", ".join(f"{column.text} AS {name}" for column, name in zip(chosen, names, strict=True))
        return selected, {name: column.type for name, column in zip(names, chosen, strict=True)}, ""

    def _grouped(self, visible: list[Column]) -> tuple[str, dict[str, str], str]:
        groupable = [column for column in visible if column.type in (*_JOINED_BY, "TINYINT")] or visible
        keys = self.rng.sample(groupable, min(len(groupable), self.rng.choices((0, 1, 2, 3), (1, 5, 3, 1))[0]))
        texts = [_EXPRESSIONS.get(key.type, "{}").format(key.text) if self._chance(0.1) else key.text for key in keys]
        columns = {
            f"c{at}": key.type if text == key.text else "OTHER"
            for at, (key, text) in enumerate(zip(keys, texts, strict=True))
        }
        selected = [f"{text} AS c{at}" for at, text in enumerate(texts)]
        calls = [self._call(visible) for _ in range(self.rng.choices((1, 2, 3, 4), (4, 3, 2, 1))[0])]
        for at, (text, type_) in enumerate(calls, start=len(keys)):
            selected.append(f"{text} AS c{at}")
            columns[f"c{at}"] = type_
        tail = ""
        if texts:
            grouping = ", ".join(texts)
            tail = f" GROUP BY {f'ROLLUP ({grouping})' if self._chance(0.05) else grouping}"
            tail += (
                f" HAVING {self.rng.choice(('COUNT(*) > 1', 'MAX(' + keys[0].text + ') IS NOT NULL'))}"
                if self._chance(0.15)
                else ""
            )
        return ", ".join(selected), columns, tail

    def _call(self, visible: list[Column]) -> tuple[str, str]:
        """One aggregate call and its type."""
        numbers = [column for column in visible if column.type in _NUMBERS]
        integers = [column for column in visible if column.type in ("BIGINT", "INT", "TINYINT")]
        one = self.rng.choice(visible).text
        way = self.rng.randrange(10)
        if way < 4:
            arguments = self.rng.sample(
                [column.text for column in visible], min(len(visible), 2 if self._chance(0.15) else 1)
            )
            text, type_ = f"COUNT(DISTINCT {', '.join(arguments)})", "BIGINT"
        elif way == 4 and integers:
            text, type_ = f"SUM(DISTINCT {self.rng.choice(integers).text})", "BIGINT"
        elif way == 5 and numbers:
            text, type_ = f"{self.rng.choice(('AVG', 'STDDEV_SAMP'))}({self.rng.choice(numbers).text})", "DOUBLE"
        elif way == 6 and numbers:
            text, type_ = f"SUM({self.rng.choice(numbers).text})", "OTHER"
        elif way == 7:
            text, type_ = f"{self.rng.choice(('MIN', 'MAX'))}({one})", "OTHER"
        else:
            text, type_ = f"COUNT({self.rng.choice(('*', one))})", "BIGINT"
        if any(column.type in _CONDITIONS for column in visible) and self._chance(0.12):
            text += f" FILTER (WHERE {self._condition(visible)})"
        return text, type_


def _chain(position: int, _: int) -> list[int]:
    return [position - 1]


def _star(_: int, __: int) -> list[int]:
    return [0]


def _snowflake(position: int, _: int) -> list[int]:
    return [(position - 1) // 2]


def _cycle(position: int, count: int) -> list[int]:
    return [position - 1, 0] if position == count - 1 and position > 1 else [position - 1]


def _clique(position: int, _: int) -> list[int]:
    return list(range(position))


_GRAPHS: tuple[Callable[[int, int], list[int]], ...] = (_chain, _star, _snowflake, _cycle, _clique)
"""Which earlier members a member is joined with, by its position and the number of members."""
