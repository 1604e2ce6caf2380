"""The queries of the planning benchmark: join graphs with any number of joins, as SQL.

The number of joins of a SELECT is limited, so the first members of a larger graph are in a derived table, which returns
the join columns of the others. The number of equalities of a join is limited too, so a member of a larger clique is
joined with the members just before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

COLUMNS = "k BIGINT, f BIGINT, g INT, v INT"
TABLES = tuple(f"t{number}" for number in range(10))
"""The names of the tables, which have `COLUMNS`. The members of a graph read them in turn."""

JOINS_OF_ONE_SELECT = 30
EQUALITIES_OF_ONE_JOIN = 16

PLAIN = "SUM({first}.v) AS s, COUNT(*) AS n, MAX({last}.v) AS m"
DISTINCT = "COUNT(DISTINCT {last}.k) AS dk, COUNT(DISTINCT {first}.f) AS df, COUNT(*) AS n"


@dataclass(frozen=True)
class Variant:
    """The expressions over a graph, and the statistics of its tables: none, even keys, or hot keys."""

    name: str
    calls: str
    knowledge: str


VARIANTS = (
    Variant("no statistics", PLAIN, "none"),
    Variant("statistics", PLAIN, "even"),
    Variant("DISTINCT", DISTINCT, "even"),
    Variant("skew", PLAIN, "hot"),
    Variant("DISTINCT and skew", DISTINCT, "hot"),
)


@dataclass(frozen=True)
class PlanningCase:
    """A query with its number of joins; `conditions` is the number of equalities."""

    shape: str
    variant: Variant
    joins: int
    conditions: int
    sql: str

    @property
    def size(self) -> int:
        """The number of tables plus join conditions."""
        return self.joins + 1 + self.conditions


def _chain(position: int) -> list[int]:
    return [position - 1]


def _star(_: int) -> list[int]:
    return [0]


def _snowflake(position: int) -> list[int]:
    return [(position - 1) // 3]


def _clique(position: int) -> list[int]:
    """Returns all earlier members, up to the limit of a join."""
    return list(range(max(0, position - EQUALITIES_OF_ONE_JOIN), position))


_GRAPHS: dict[str, Callable[[int], list[int]]] = {
    "chain": _chain,
    "star": _star,
    "snowflake": _snowflake,
    "clique": _clique,
}
"""The earlier members with which a member is joined, by shape."""

SHAPES = (*_GRAPHS, "nested CTEs", "CTEs used twice")


def planning_case(shape: str, variant: Variant, joins: int) -> PlanningCase:
    """Returns the query of `shape` with exactly `joins` joins, counting each use of a common table expression."""
    if shape == "nested CTEs":
        return PlanningCase(shape, variant, joins, joins, _nested(variant, joins))
    if shape == "CTEs used twice":
        return PlanningCase(shape, variant, joins, joins, _used_twice(variant, joins))
    neighbours = _GRAPHS[shape]
    conditions = sum(len(neighbours(position)) for position in range(1, joins + 1))
    return PlanningCase(shape, variant, joins, conditions, _graph(neighbours, variant, joins))


def _table(position: int) -> str:
    return TABLES[position % len(TABLES)]


def _graph(neighbours: Callable[[int], list[int]], variant: Variant, joins: int) -> str:
    text, inside = f"{_table(0)} AS a0", 0
    for position in range(1, joins + 1):
        if position > JOINS_OF_ONE_SELECT and position % JOINS_OF_ONE_SELECT == 1:
            columns = ", ".join(
                f"{_name(member, column, inside)} AS {column}{member}"
                for member in range(position)
                for column in "kfgv"
            )
            text, inside = f"(SELECT {columns} FROM {text}) AS p", position
        equalities = " AND ".join(
            f"{_name(other, 'f' if at else 'k', inside)} = a{position}.{'f' if at else 'k'}"
            for at, other in enumerate(neighbours(position))
        )
        text += f" JOIN {_table(position)} AS a{position} ON {equalities}"
    calls = variant.calls.replace("{first}.", "a0." if not inside else "p.").replace("{last}.", f"a{joins}.")
    if inside:
        calls = calls.replace("p.v", "p.v0").replace("p.f", "p.f0")
    return f"SELECT {_name(0, 'g', inside)} AS g, {calls} FROM {text} GROUP BY {_name(0, 'g', inside)}"


def _name(member: int, column: str, inside: int) -> str:
    """Returns the name of a member's column if the first `inside` members are in the derived table `p`."""
    return f"p.{column}{member}" if member < inside else f"a{member}.{column}"


_LEVELS = 10
"""The number of nested common table expressions; the depth of queries is limited."""


def _nested(variant: Variant, joins: int) -> str:
    """Returns common table expressions that each join the previous one with tables."""
    levels = min(_LEVELS, joins)
    expressions, done = [], 0
    for level in range(levels):
        share = joins // levels + (level < joins % levels)
        first = f"w{level - 1} AS x" if level else f"{_table(0)} AS x"
        joined = "".join(f" JOIN {_table(done + at)} AS b{at} ON x.k = b{at}.k" for at in range(1, share + 1))
        expressions.append(f"w{level} AS (SELECT x.k, x.f, b1.g, b{share}.v FROM {first}{joined})")
        done += share
    calls = variant.calls.format(first="w", last="w")
    return f"WITH {', '.join(expressions)} SELECT w.g, {calls} FROM w{levels - 1} AS w GROUP BY w.g"


def _used_twice(variant: Variant, joins: int) -> str:
    """Returns common table expressions that each join the previous one with itself, and tables for the remaining
    joins.
    """
    levels = (joins + 1).bit_length() - 1
    levels = min(levels, 5)
    expressions = [f"w0 AS (SELECT k, f, g, v FROM {_table(0)})"]
    for level in range(1, levels + 1):
        below = f"w{level - 1}"
        expressions.append(f"w{level} AS (SELECT x.k, y.f, x.g, y.v FROM {below} AS x JOIN {below} AS y ON x.k = y.f)")
    left = joins - (2**levels - 1)
    joined = "".join(f" JOIN {_table(at)} AS a{at} ON w.k = a{at}.k" for at in range(1, left + 1))
    calls = variant.calls.format(first="w", last=f"a{left}" if left else "w")
    return f"WITH {', '.join(expressions)} SELECT w.g, {calls} FROM w{levels} AS w{joined} GROUP BY w.g"
