"""The operators of a query that need a state to compute their changes, as plan nodes over the changes of a mini-batch
and the rows of the state before it.

Every step keeps the rows of its inputs by a key, so that rows with different keys do not affect each other. For the
keys that changed, a mini-batch reads the rows of the state, and

- `recomputed` computes the operator over the old and the new rows, and takes the difference. It works for every
  operator. If the operator could return other rows for the same input, as sums of DOUBLE do, the state also has the
  rows that the operator emitted.
- `first_rows` keeps only the first rows of each key, if no row of the input is removed.
- `grouped` keeps one row for each group with sums that can be changed (`workers.engine.plan.aggregates`).
- `inner_join` joins the changes of each side with the rows of the other one, where the state is.
- `distinct` and `counted` keep the number of each row, and `flagged` the conditions that were true for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from service.contract.query import AggregateFunction
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, BOOLEAN, Field
from workers.engine.plan.expressions import compose, fresh_name
from workers.engine.plan.nodes import (
    Aggregate,
    Call,
    Filter,
    Join,
    Named,
    Node,
    PlanFunction,
    Project,
    Scan,
    Union,
    output_of,
)
from workers.engine.streaming.changes.state_files import WEIGHT
from workers.engine.streaming.changes.weights import (
    OF_CHANGE,
    ONE,
    added,
    consolidated,
    difference,
    leaf,
    named,
    rows_of,
    weighted,
)

KEPT = "$kept"
"""The leaf with the changes that a second pass has written to the state."""
JOINED = "$joined"
"""The leaf with the pairs of rows of a join."""


def old(port: int, fields: Sequence[Field]) -> Node:
    """Returns the rows of the state before the mini-batch, of the input `port`."""
    return leaf(f"$old{port}", fields)


def delta(port: int, fields: Sequence[Field]) -> Node:
    """Returns the changes of the input `port`."""
    return leaf(f"$delta{port}", fields)


class ChangesPlanError(Exception):
    """A query that cannot be computed by changes. The message ends a sentence."""

    code = "not_for_streams"


@dataclass(frozen=True)
class Port:
    """An input of a step. `changes` emits `fields` and the weight; `keys` are expressions over `fields`."""

    changes: Node
    fields: tuple[Field, ...]
    keys: tuple[Scalar, ...]


@dataclass(frozen=True)
class Second:
    """What a step writes to the state after it has read it: the changes that `node` emits, by `keys`, to the part of
    the state after those of its inputs, or in place of the only one.
    """

    port: int
    fields: tuple[Field, ...]
    keys: tuple[Scalar, ...]
    node: Node


@dataclass(frozen=True)
class Step:
    """An operator with a state.

    `result` emits the changes of `output`. It reads `old` and `delta`, or `KEPT` if there is a second pass. `first`
    replaces it in the first mini-batch. For a key that changed in the input n, the state is read in the parts
    `fetched[n]`; the changes of the inputs `applied` are written. `text` describes the step and `keeps` its state.
    `always`: the first mini-batch has a result without any changes, that of an aggregate without GROUP BY.
    `is_join`: `result` reads `JOINED`, the changes of the pairs of rows with equal hashes of their keys.
    """

    number: int
    text: str
    keeps: str
    output: tuple[Field, ...]
    ports: tuple[Port, ...]
    fetched: tuple[tuple[int, ...], ...]
    applied: frozenset[int]
    result: Node
    first: Node | None = None
    second: Second | None = None
    always: bool = False
    is_join: bool = False

    @property
    def alias(self) -> str:
        """The name of the leaf with the step's changes."""
        return f"$changes{self.number}"

    @property
    def leaf(self) -> Scan:
        """The node that reads the step's changes."""
        return leaf(self.alias, self.output)


@dataclass(frozen=True)
class SharedRows:
    """Changes that several branches of the step `step` read, which `node` emits."""

    alias: str
    node: Node
    step: int


@dataclass(frozen=True)
class ChangePlan:
    """The steps of a query in their order, and the node that emits its result. `keys` and `weight` are as in
    `StreamPlan`. `form` is the first one that has such a plan (`plan_changes`).
    """

    steps: tuple[Step, ...]
    node: Node
    output: tuple[Field, ...]
    keys: tuple[str, ...] | None
    weight: str | None
    form: int
    shared: tuple[SharedRows, ...] = ()

    @property
    def sources(self) -> tuple[Node, ...]:
        """The nodes that read streams, static tables and the changes of steps."""
        ports = (port.changes for step in self.steps for port in step.ports)
        return (*(rows.node for rows in self.shared), *ports, self.node)

    @property
    def made(self) -> frozenset[str]:
        """The aliases of scans that read what the plan computes."""
        return frozenset((*(rows.alias for rows in self.shared), *(step.alias for step in self.steps)))

    @property
    def texts(self) -> tuple[str, ...]:
        """A sentence for each step."""
        return tuple(f"{step.text} keeps {step.keeps}." for step in self.steps)


def recomputed(
    number: int,
    text: str,
    ports: tuple[Port, ...],
    operator: Callable[[Sequence[Node]], Node],
    *,
    is_exact: bool,
    output_keys: Callable[[Node], tuple[Scalar, ...]] | None = None,
) -> Step:
    """Returns the step of an operator that computes the rows of a key from those of its inputs.

    `operator` returns the node over inputs without weights. `is_exact`: it returns the same rows for the same input;
    otherwise `output_keys` returns the keys in the rows that it emits.
    """
    news = [
        rows_of(consolidated(added(old(place, port.fields), delta(place, port.fields)), port.fields), port.fields)
        for place, port in enumerate(ports)
    ]
    olds = [rows_of(old(place, port.fields), port.fields) for place, port in enumerate(ports)]
    new = operator(news)
    output = output_of(new)
    inputs = tuple(range(len(ports)))
    applied = frozenset(inputs)
    is_global = not ports[0].keys
    if is_exact or output_keys is None:
        fetched = tuple(inputs for _ in inputs)
        result = difference(new, operator(olds), output)
        first = difference(new, None, output)
        keeps = "the rows of its inputs"
        return Step(number, text, keeps, output, ports, fetched, applied, result, first, always=is_global)
    kept = len(ports)
    fetched = (*((*inputs, kept) for _ in inputs), ())
    changes = consolidated(Union((removed(old(kept, output), output), weighted(new, output, ONE))), output)
    second = Second(kept, output, output_keys(new), changes)
    keeps = "the rows of its inputs, and those that it emitted"
    return Step(
        number, text, keeps, output, ports, fetched, applied, leaf(KEPT, output), second=second, always=is_global
    )


def first_rows(
    number: int,
    text: str,
    port: Port,
    operator: Callable[[Sequence[Node]], Node],
    output_keys: tuple[Scalar, ...],
) -> Step:
    """Returns the step of an operator that emits the first rows of each key, for an input from which no row is removed:
    a row that is not among the first ones never will be, so only those that were emitted are kept.

    `operator` returns the node over the input without weights; it emits the input's columns and others. It is first
    computed over the changes alone: Spark then drops most rows before it sends them.
    """
    first = operator([rows_of(port.changes, port.fields)])
    output = output_of(first)
    port = replace(port, changes=weighted(first, port.fields, ONE))
    kept = old(1, output)
    rows = Union((weighted(kept, port.fields), weighted(delta(0, port.fields), port.fields)))
    new = weighted(operator([rows_of(rows, port.fields)]), output, ONE)
    second = Second(1, output, output_keys, consolidated(Union((removed(kept, output), new)), output))
    return Step(
        number,
        text,
        "the rows that it emitted",
        output,
        (port,),
        ((1,), ()),
        frozenset(),
        leaf(KEPT, output),
        second=second,
    )


def removed(node: Node, fields: tuple[Field, ...]) -> Node:
    """Returns the rows of `node` as changes that remove them."""
    return weighted(node, fields, compose("-{0}", (OF_CHANGE,), BIGINT))


def distinct(number: int, text: str, port: Port) -> Step:
    """Returns the step that emits each row of its input once, whatever its number."""
    was, now = _numbers(port.fields)
    flips = compose("CAST({1} > 0L AS BIGINT) - CAST({0} > 0L AS BIGINT)", (was, now), BIGINT)
    result = Filter(weighted(_counts(port.fields), port.fields, flips), compose("{0} <> 0L", (OF_CHANGE,), BOOLEAN))
    return Step(number, text, "the number of each row", port.fields, (port,), ((0,),), frozenset({0}), result)


def counted(number: int, text: str, port: Port) -> Step:
    """Returns the step that emits the rows whose number changed, with the new number as the weight."""
    _, now = _numbers(port.fields)
    result = weighted(_counts(port.fields), port.fields, compose("GREATEST({0}, 0L)", (now,), BIGINT))
    return Step(number, text, "the number of each row", port.fields, (port,), ((0,),), frozenset({0}), result)


def flagged(number: int, text: str, port: Port, flags: str) -> Step:
    """Returns the step that emits each row with the bits that its earlier changes do not have, in the column `flags`.
    The bits of a change are its weight; the state adds up weights, and has each bit of a row once.
    """
    was, now = _numbers(port.fields)
    calls = tuple(Call(PlanFunction.BIT_OR, (one,), Field(one.columns[0], BIGINT)) for one in (was, now))
    both = Aggregate(_before_and_change(port.fields), named(port.fields), calls)
    new = Project(both, (*named(port.fields), Named(compose("{1} & ~{0}", (was, now), BIGINT), WEIGHT)))
    second = Second(0, port.fields, port.keys, Filter(new, compose("{0} <> 0L", (OF_CHANGE,), BOOLEAN)))
    output = (*port.fields, Field(flags, BIGINT))
    result = Project(leaf(KEPT, port.fields), (*named(port.fields), Named(OF_CHANGE, flags), Named(ONE, WEIGHT)))
    keeps = "the conditions that were true for each row"
    return Step(number, text, keeps, output, (port,), ((0,),), frozenset(), result, second=second)


def _numbers(fields: tuple[Field, ...]) -> tuple[Scalar, Scalar]:
    taken = frozenset(field.name for field in fields)
    return column(fresh_name("$was", taken), BIGINT), column(fresh_name("$now", taken), BIGINT)


def _counts(fields: tuple[Field, ...]) -> Node:
    """Returns the changed rows, with their numbers before and after the mini-batch."""
    was, now = _numbers(fields)
    calls = tuple(Call(AggregateFunction.SUM, (one,), Field(one.columns[0], BIGINT)) for one in (was, now))
    counts = Aggregate(_before_and_change(fields), named(fields), calls)
    return Filter(counts, compose("{0} <> {1}", (was, now), BOOLEAN))


def _before_and_change(fields: tuple[Field, ...]) -> Node:
    """Returns the rows of the state and the changes, each with the weights before and after."""
    was, now = _numbers(fields)
    zero = compose("0L", (), BIGINT)
    before = Project(
        old(0, fields), (*named(fields), Named(OF_CHANGE, was.columns[0]), Named(OF_CHANGE, now.columns[0]))
    )
    change = Project(delta(0, fields), (*named(fields), Named(zero, was.columns[0]), Named(OF_CHANGE, now.columns[0])))
    return Union((before, change))


def inner_join(number: int, text: str, join: Join, left: Port, right: Port) -> Step:
    """Returns the step of an inner join, or of a product without keys. Its rows have equal hashes of their keys, so the
    keys are compared again.
    """
    output = (*left.fields, *right.fields)
    template = "{0} <=> {1}" if join.null_safe else "{0} = {1}"
    conditions = [compose(template, pair, BOOLEAN) for pair in zip(left.keys, right.keys, strict=True)]
    if join.residual is not None:
        conditions.append(join.residual)
    pairs: Node = leaf(JOINED, output)
    for condition in conditions:
        pairs = Filter(pairs, condition)
    return Step(
        number,
        text,
        "the rows of both inputs",
        output,
        (left, right),
        ((1,), (0,)),
        frozenset({0, 1}),
        pairs,
        is_join=True,
    )
