"""Finds what a query does that its author may not expect, for the report of the plan."""

from __future__ import annotations

from collections.abc import Iterator

from service.contract.query import AggregateFunction
from service.sql.expressions.nodes import Over
from service.sql.expressions.scalar import Scalar
from service.sql.resolve.bound import BoundQuery, queries_of
from service.sql.shown_names import with_written_aliases
from service.sql.types.data_types import STRING

_OF_NUMBERS = frozenset(
    {
        AggregateFunction.SUM,
        AggregateFunction.AVG,
        AggregateFunction.VAR_POP,
        AggregateFunction.VAR_SAMP,
        AggregateFunction.STDDEV_POP,
        AggregateFunction.STDDEV_SAMP,
        AggregateFunction.PERCENTILE,
    }
)


def notes_of(query: BoundQuery) -> Iterator[str]:
    """Yields a sentence for each aggregate of numbers whose argument is a STRING."""
    for inner in queries_of(query):
        for call in inner.calls:
            if call.function in _OF_NUMBERS and call.arguments and call.arguments[0].type == STRING:
                yield _note(call.function, str(call.arguments[0]), query)
        for window in inner.windows:
            tree = window.expression.tree
            if isinstance(tree, Over) and tree.function in _OF_NUMBERS and tree.arguments:
                argument = tree.arguments[0]
                if getattr(argument, "type", None) == STRING:
                    yield _note(tree.function, str(Scalar(argument, STRING)), query)


def _note(function: str, argument: str, query: BoundQuery) -> str:
    shown = with_written_aliases(argument.replace("`", ""), query.written_aliases)
    return (
        f"{function} converts {shown}, a STRING, to DOUBLE: the job fails on text that is no number. For NULL instead, "
        f"write TRY_CAST({shown} AS DOUBLE) as its argument."
    )
