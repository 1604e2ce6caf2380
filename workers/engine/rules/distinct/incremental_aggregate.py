"""The rule `incremental_aggregate`."""

from __future__ import annotations

from dataclasses import replace

from service.contract.options import AggPhase
from service.contract.query import AggregateFunction
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import TypeName
from workers.engine.plan.aggregates import distinct_set_of, distinct_sets
from workers.engine.plan.expressions import compose, fresh_name
from workers.engine.plan.nodes import Aggregate, AggregateRole, Call, Exchange, Node, names_of
from workers.engine.rules.distinct.bitmaps import BIT_SETTING
from workers.engine.rules.distinct.deduplication import flag_of, value_columns
from workers.engine.rules.rule import Match, RuleContext, Skip

MERGED = "MERGED"


class IncrementalAggregate:
    """Merges the middle two of a split distinct aggregate's four phases: distinct values are counted by group at once.

    >>> uid, category = column("o.uid", BIGINT), column("o.category", BIGINT)
    >>> orders = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"), (Field("o.category", BIGINT), "category")))
    >>> bucket = Named(compose("pmod(xxhash64({0}), 16)", (column("o.category", STRING),), BIGINT), "$bucket")
    >>> counted = Call(AggregateFunction.COUNT, (category,), Field("$p0", BIGINT), distinct=True)
    >>> partial = Aggregate(orders, (Named(uid, "uid"), bucket), (counted,), AggregateRole.PARTIAL, Phases.TWO_PHASE)
    >>> summed = Call(AggregateFunction.SUM, (column("$p0", BIGINT),), Field("$f0", BIGINT))
    >>> keys = (Named(column("uid", BIGINT), "uid"),)
    >>> before = Aggregate(partial, keys, (summed,), AggregateRole.FINAL, Phases.TWO_PHASE)
    >>> print(text_of(before))
    Aggregate FINAL TWO_PHASE BY uid [SUM($p0) AS $f0]
      Aggregate PARTIAL TWO_PHASE BY o.uid AS uid, pmod(xxhash64(o.category), 16) AS $bucket \
[COUNT(DISTINCT o.category) AS $p0]
        Scan orders AS o [o.uid, o.category]
    >>> ctx = RuleContext(JobSettings(), Statistics({}, {}, slots=4))
    >>> print(text_of(IncrementalAggregate().rewrite(Match(before, MERGED, ""), ctx)))
    Aggregate FINAL TWO_PHASE BY uid [COUNT($v0) AS $f0]
      Aggregate PARTIAL TWO_PHASE BY o.uid AS uid, pmod(xxhash64(o.category), 16) AS $bucket, o.category AS $v0 []
        Scan orders AS o [o.uid, o.category]

    The four phases are the partial aggregate's local and global one, by group and bucket, and the final one's, by
    group. Where the values of a bucket have been told apart, the final aggregate's local phase counts them by group
    right away. For Spark that is one aggregate less where the buckets are, and, where it would itself have shuffled
    by (group, bucket, value) and then by (group, bucket), one shuffle less.

    Fires when:
        `incremental_agg` is true, and a final aggregate in two phases is over what `split_distinct_aggregate` made: a
        partial one per bucket that counts DISTINCT values, or values that are told apart below it.

    Does not fire when:
        - `incremental_agg` is false;
        - the partial aggregate has several sets of distinct values: AVG of a distinct BIGINT beside its COUNT;
        - `agg_phase` is ONE_PHASE: the final aggregate then has no local phase, and every value would be sent;
        - the partial aggregate's rows are bitmaps: Spark runs its global phase and the final one's local phase in one
          stage already, and bits cannot be counted before they are united.

    Why the result is the same:
        buckets are disjoint in the distinct values, so that a sum over them of what their values give is what all
        values give; and sums of sums, counts, smallest and largest of partials are those of the whole.

    Settings read:
        incremental_agg, agg_phase
    """

    name = "incremental_aggregate"

    def match(self, node: Node, ctx: RuleContext, /) -> Match[Aggregate] | Skip | None:
        """As the class says; None for anything but the final aggregate of a split distinct one, or of bitmaps."""
        if not isinstance(node, Aggregate) or node.role is not AggregateRole.FINAL:
            return None
        partial = node.input.input if isinstance(node.input, Exchange) else node.input
        if not isinstance(partial, Aggregate):
            return None
        if any(call.function in BIT_SETTING for call in partial.calls):
            return Skip(
                "Spark runs the global phase of the bitmaps and the local phase of their count in one stage already, "
                "which leaves nothing to be merged."
            )
        if not distinct_sets(partial) and not _is_over_values(partial):
            return None
        if len(distinct_sets(partial)) > 1:
            return Skip("The partial aggregate tells several sets of values apart, which Spark copies its rows for.")
        if not ctx.settings.incremental_agg:
            return Skip("incremental_agg is false.")
        if ctx.settings.agg_phase is AggPhase.ONE_PHASE or isinstance(node.input, Exchange):
            return Skip("agg_phase is ONE_PHASE: the final aggregate has no local phase to be merged with.")
        return Match(node, MERGED, "The final aggregate's local phase counts the values of the buckets itself.")

    def rewrite(self, match: Match[Aggregate], _ctx: RuleContext, /) -> Node:
        """The final aggregate over values told apart, as the class shows."""
        node, partial = match.node, match.node.input
        if not isinstance(partial, Aggregate):
            raise TypeError(f"{type(partial).__name__} is not the partial aggregate that was matched")
        if _is_over_values(partial):
            calls = tuple(_composed(call, partial) for call in node.calls)
            return replace(node, input=partial.input, calls=calls)
        return _told_apart(node, partial)


def _is_over_values(partial: Aggregate) -> bool:
    """Whether the values of the buckets are told apart in an aggregate of their own."""
    return isinstance(partial.input, Aggregate) and partial.input.role is AggregateRole.PARTIAL


def _told_apart(node: Aggregate, partial: Aggregate) -> Aggregate:
    """`partial` with its one set of distinct values among its keys; its other calls stay, and so do those over them."""
    taken = names_of(node) | names_of(partial) | names_of(partial.input)
    slots, values = value_columns(distinct_sets(partial), None, taken)
    plain = tuple(call for call in partial.calls if not call.distinct)
    conditions = dict.fromkeys(call.filter for call in partial.calls if call.distinct and call.filter is not None)
    flags = {
        condition: flag_of(condition, fresh_name(f"$m{number}", taken)) for number, condition in enumerate(conditions)
    }
    rows = replace(partial, keys=(*partial.keys, *slots), calls=(*plain, *flags.values()))
    distinct = {
        call.output.name: replace(
            call,
            arguments=values[distinct_set_of(call)],
            distinct=False,
            filter=None if call.filter is None else _column(flags[call.filter]),
        )
        for call in partial.calls
        if call.distinct
    }
    counted = [(call, distinct.get(_source(call) or "")) for call in node.calls]
    return replace(node, input=rows, calls=tuple(call if part is None else _over(call, part) for call, part in counted))


def _composed(call: Call, partial: Aggregate) -> Call:
    """`call`, over a column of `partial`, as one over what `partial` reads."""
    return _over(call, next(part for part in partial.calls if part.output.name == _source(call)))


def _over(call: Call, part: Call) -> Call:
    """SUM of COUNT is COUNT, f of f is f; a DECIMAL is as wide as after both."""
    arguments, of = part.arguments, part.output.type
    if part.function is AggregateFunction.SUM and of.name is TypeName.DECIMAL:
        arguments = (compose(f"CAST({{0}} AS {of})", arguments, of),)
    return replace(part, arguments=arguments, output=call.output)


def _source(call: Call) -> str | None:
    return call.arguments[0].column if call.arguments else None


def _column(call: Call) -> Scalar:
    return column(call.output.name, call.output.type)
