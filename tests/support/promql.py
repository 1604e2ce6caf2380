"""Evaluates alerts on given samples at one moment. It supports the part of PromQL that the alerts use: selectors,
sum/max/min/count, rate and increase, histogram_quantile, absent, arithmetic, comparisons, and/or. Anything else raises
AssertionError.

The sample of a counter is its increase within the requested range.
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import promql_parser

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]

_AGGREGATES: Mapping[str, Callable[[list[float]], float]] = {"sum": sum, "max": max, "min": min, "count": len}
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "==": operator.eq,
}


def vector_selectors(expression: Any) -> Iterator[Any]:
    """Yields every selector of a parsed expression."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    for name in ("lhs", "rhs", "expr", "vector_selector"):
        part = getattr(expression, name, None)
        if part is not None:
            yield from vector_selectors(part)
    for argument in getattr(expression, "args", ()):
        yield from vector_selectors(argument)


def evaluate(text: str, samples: Samples) -> Vector:
    """Returns the series that `text` yields for these samples. An alert fires for each."""
    found = _value(promql_parser.parse(text), samples)
    assert isinstance(found, dict), "an alert must yield series, not a number"
    return found


def _value(node: Any, samples: Samples) -> Vector | float:
    match node:
        case promql_parser.NumberLiteral():
            return float(node.val)
        case promql_parser.ParenExpr():
            return _value(node.expr, samples)
        case promql_parser.VectorSelector():
            return _select(node, samples)
        case promql_parser.AggregateExpr():
            return _aggregate(node, samples)
        case promql_parser.Call():
            return _call(node, samples)
        case promql_parser.BinaryExpr():
            return _binary(str(node.op), _value(node.lhs, samples), _value(node.rhs, samples))
    raise AssertionError(f"not supported: {type(node).__name__}")


def _select(node: Any, samples: Samples) -> Vector:
    return {
        frozenset(labels.items()): value
        for labels, value in samples.get(node.name, ())
        if all(_matches(matcher, labels.get(matcher.name, "")) for matcher in node.matchers.matchers)
    }


def _matches(matcher: Any, value: str) -> bool:
    same = re.fullmatch(matcher.value, value) is not None if "Re" in str(matcher.op) else matcher.value == value
    return same is not ("Not" in str(matcher.op))


def _vector(node: Any, samples: Samples) -> Vector:
    found = _value(node, samples)
    assert isinstance(found, dict)
    return found


def _aggregate(node: Any, samples: Samples) -> Vector:
    kept = set(node.modifier.labels) if node.modifier is not None else set()
    assert node.modifier is None or "By" in str(node.modifier.type)
    groups: dict[Labels, list[float]] = defaultdict(list)
    for labels, value in _vector(node.expr, samples).items():
        groups[frozenset(pair for pair in labels if pair[0] in kept)].append(value)
    return {labels: float(_AGGREGATES[str(node.op)](values)) for labels, values in groups.items()}


def _call(node: Any, samples: Samples) -> Vector:
    name = node.func.name
    if name in {"rate", "increase"}:
        seconds = node.args[0].range.total_seconds() if name == "rate" else 1.0
        grown = _select(node.args[0].vector_selector, samples)
        return {labels: value / seconds for labels, value in grown.items()}
    if name == "absent":
        return {} if _vector(node.args[0], samples) else {frozenset(): 1.0}
    assert name == "histogram_quantile", name
    return _quantile(node.args[0].val, _vector(node.args[1], samples))


def _quantile(wanted: float, buckets: Vector) -> Vector:
    groups: dict[Labels, list[tuple[float, float]]] = defaultdict(list)
    for labels, value in buckets.items():
        bound = float(dict(labels)["le"].replace("+Inf", "inf"))
        groups[frozenset(pair for pair in labels if pair[0] != "le")].append((bound, value))
    found = {}
    for labels, counts in groups.items():
        total = max(value for _, value in counts)
        # The upper bound of the bucket; Prometheus interpolates.
        found[labels] = min(bound for bound, value in counts if value >= wanted * total) if total else math.nan
    return found


def _binary(name: str, left: Vector | float, right: Vector | float) -> Vector | float:
    assert isinstance(left, dict), "an expression that begins with a number is not supported"
    if name in {"and", "or"}:
        assert isinstance(right, dict)
        there = {labels: value for labels, value in left.items() if name == "or" or labels in right}
        return {**right, **there} if name == "or" else there
    pairs = {
        labels: (value, right if isinstance(right, float) else right[labels])
        for labels, value in left.items()
        if isinstance(right, float) or labels in right
    }
    if name in _COMPARISONS:
        return {labels: one for labels, (one, other) in pairs.items() if _COMPARISONS[name](one, other)}
    assert name == "/", name
    return {labels: one / other if other else math.nan for labels, (one, other) in pairs.items()}
