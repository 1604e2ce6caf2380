"""Prints a recursion as Spark's WITH RECURSIVE.

Spark accepts the rows of the step before in FROM only, and not in another common table expression, so that the step is
one query with queries in its FROM.
"""

from __future__ import annotations

from collections.abc import Sequence

from service.contract.query import JoinKind
from service.sql.expressions.scalar import quoted
from workers.engine.plan.expressions import generator_sql, join_condition
from workers.engine.plan.nodes import Filter, Generate, Join, Named, Node, Project, Recursion, StepRows, Union

JOINS = {
    JoinKind.INNER: "JOIN",
    JoinKind.LEFT: "LEFT JOIN",
    JoinKind.RIGHT: "RIGHT JOIN",
    JoinKind.FULL: "FULL JOIN",
    JoinKind.LEFT_SEMI: "LEFT SEMI JOIN",
    JoinKind.LEFT_ANTI: "LEFT ANTI JOIN",
    JoinKind.CROSS: "JOIN",
}


def recursion_sql(node: Recursion, name: str, tables: Sequence[str]) -> str:
    """Returns the definition of the common table expression `name` that computes `node`; `tables` are the names of the
    tables with its inputs.

    Raises TypeError for a node that a step cannot have.
    """
    columns = ", ".join(quoted(field.name) for field in node.columns)
    levels = "" if node.levels is None else f" MAX RECURSION LEVEL {node.levels}"
    step = _Step((name, *tables[1:])).query(node.step)
    first = f"SELECT * FROM {quoted(tables[0])}"  # noqa: S608 - quoted
    return f"{quoted(name)}({columns}){levels} AS (\n  {first}\n  UNION ALL\n  {step}\n)"


class _Step:
    def __init__(self, tables: tuple[str, ...]) -> None:
        self._tables = tables
        self._queries = 0

    def query(self, node: Node) -> str:
        """Returns the query of a node of the step."""
        match node:
            case StepRows():
                columns = ", ".join(f"{quoted(name)} AS {quoted(field.name)}" for field, name in node.columns)
                return f"SELECT {columns} FROM {quoted(self._tables[node.place])}"  # noqa: S608 - from trees
            case Filter():
                return f"SELECT * FROM {self._below(node.input)} WHERE {node.condition.sql}"  # noqa: S608 - from trees
            case Project():
                return f"SELECT {', '.join(map(_item, node.items))} FROM {self._below(node.input)}"  # noqa: S608 - from trees
            case Generate():
                return f"SELECT *, {generator_sql(node)} FROM {self._below(node.input)}"  # noqa: S608 - from trees
            case Join():
                condition = join_condition(node)
                left, right = self._below(node.left), self._below(node.right)
                on = f" ON {condition}" if condition else ""
                return f"SELECT * FROM {left} {JOINS[node.kind] if on else 'CROSS JOIN'} {right}{on}"  # noqa: S608 - from trees
            case Union():
                return "(" + ") UNION ALL (".join(map(self.query, node.inputs)) + ")"
            case _:
                raise TypeError(f"the step of a recursion cannot have {type(node).__name__}")

    def _below(self, node: Node) -> str:
        query = self.query(node)
        self._queries += 1
        return f"({query}) AS `step_{self._queries}`"


def _item(item: Named) -> str:
    return f"{item.expression.sql} AS {quoted(item.name)}"
