"""Joins the groups of a SELECT with the rows of its subqueries."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from service.contract.query import Join, JoinKey, NamedExpression, Query, QueryRef
from service.sql.expressions.nodes import Expression, Name, position_of, walk
from service.sql.expressions.scalar import render
from service.sql.parser import Text
from service.sql.statements.origins import Origins
from service.sql.statements.references import with_names
from service.sql.statements.subqueries.joined import LATER
from service.sql.statements.tables.from_clause import JoinedTable


def joined_to_groups(
    query: Query, later: tuple[JoinedTable, ...], at: str, origins: Origins, alias: str, source: Text
) -> Query:
    """Returns a query around `query`, which has aggregates: its groups, called `alias`, joined with the rows of
    subqueries, then HAVING, SELECT, ORDER BY and LIMIT. `at` is the pointer of `query`.

    Raises SpecError `unsupported_construct` for a group key that uses the value of such a subquery, and `not_grouped`.
    """
    inner_at = f"{at}/source/query"
    for part in ("/source", "/joins", "/generators", "/where", "/group_by", "/grouping_sets", "/aggregates"):
        origins.move(at + part, inner_at + part)
    origins.move(at + "/having", at + "/where")
    origins.move(at + LATER, f"{at}/joins")
    keys = {
        origins.trees[f"{inner_at}/group_by/{index}/expression"]: key.name for index, key in enumerate(query.group_by)
    }
    _check_keys(keys, later, source)

    joined = {join.table.name for join in later}

    def over_groups(pointer: str) -> str:
        tree = with_names(origins.trees[at + pointer], keys)
        for part in walk(tree):
            if isinstance(part, Name) and part.qualifier is not None and part.qualifier not in joined:
                detail = (
                    f"{part.qualifier}.{part.name} is neither a group key nor an aggregate. Add it to GROUP BY, or use "
                    "it in an aggregate."
                )
                raise source.error("not_grouped", detail, at=part.at)
        origins.trees[at + pointer] = tree
        return render(tree)

    names = [*keys.values(), *(call.name for call in query.aggregates)]
    groups = query.model_copy(
        update={
            "select": tuple(NamedExpression(expression=render(Name(None, name)), name=name) for name in names),
            "having": None,
            "order_by": (),
            "limit": None,
            "offset": 0,
        }
    )
    return Query(
        source=QueryRef(kind="query", query=groups, alias=alias),
        joins=tuple(_joined(join, f"{at}/joins/{index}", keys, origins, source) for index, join in enumerate(later)),
        where=over_groups("/where") if query.having is not None else None,
        select=tuple(
            NamedExpression(expression=over_groups(f"/select/{index}/expression"), name=item.name)
            for index, item in enumerate(query.select)
        ),
        order_by=tuple(
            key.model_copy(update={"expression": over_groups(f"/order_by/{index}/expression")})
            for index, key in enumerate(query.order_by)
        ),
        limit=query.limit,
        offset=query.offset,
    )


def _joined(join: JoinedTable, at: str, keys: Mapping[Expression, str], origins: Origins, source: Text) -> Join:
    """Returns the join of the groups with the rows of a subquery; its keys are over those of the groups."""

    def over_groups(of_rows: Expression) -> Expression:
        tree = with_names(of_rows, keys)
        for part in walk(tree):
            if isinstance(part, Name) and part.qualifier is not None and part.qualifier != join.table.name:
                detail = (
                    f"{part.qualifier}.{part.name}, which the subquery reads, is not a group key. Add it to GROUP BY, "
                    "or write the subquery in an aggregate."
                )
                raise source.error("not_grouped", detail, at=part.at)
        return tree

    on = []
    for number, (left, right) in enumerate(join.keys):
        tree = over_groups(left)
        for side, each in (("left", tree), ("right", right)):
            origins.add(f"{at}/on/{number}/{side}", each, join.at)
        on.append(JoinKey(left=render(tree), right=render(right)))
    if join.residual is None:
        return Join(kind=join.kind, right=join.table, on=tuple(on))
    residual = over_groups(join.residual)
    origins.add(f"{at}/residual", residual, join.at)
    return Join(kind=join.kind, right=join.table, on=tuple(on), residual=render(residual))


def _check_keys(keys: Iterable[Expression], later: tuple[JoinedTable, ...], source: Text) -> None:
    joined = {join.table.name for join in later}
    for key in keys:
        if any(isinstance(part, Name) and part.qualifier in joined for part in walk(key)):
            hint = "Compute the subquery as a column of a derived table, and group by that column."
            what = "A key of GROUP BY that uses the alias of a subquery"
            raise source.unsupported(what, at=position_of(key), hint=hint)
