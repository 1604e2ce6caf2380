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
    """Merges the two middle phases of a split distinct aggregate's four phases, so that values are counted by group.

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

    The four phases are the local and the global phase of the partial aggregate, by group and bucket, and of the final
    one, by group. When the values of a bucket are deduplicated, the final aggregate's local phase counts them by group
    directly. This saves Spark one aggregate over the buckets, and also one shuffle if it would otherwise shuffle by
    (group, bucket, value) and then by (group, bucket).

    Fires when:
        `incremental_agg` is true, and a final aggregate in two phases is above the result of
        `split_distinct_aggregate`: a partial aggregate per bucket that counts DISTINCT values, or values that are
        deduplicated below it.

    Does not fire when:
        - `incremental_agg` is false;
        - the partial aggregate has several sets of distinct values: AVG of a distinct BIGINT together with its COUNT;
        - `agg_phase` is ONE_PHASE: the final aggregate then has no local phase, and every value would be shuffled;
        - the partial aggregate's rows are bitmaps: Spark already runs its global phase and the final aggregate's local
          phase in one stage, and bits cannot be counted before bitmaps are merged.

    Why the result is the same:
        the buckets are disjoint in the distinct values, so the sum of their results is the result of all values; sums,
        counts, minimums and maximums of partial results are those of the whole.

    Settings read:
        incremental_agg, agg_phase
    """

    name = "incremental_aggregate"

    def match(self, node: Node, ctx: RuleContext, /) -> Match[Aggregate] | Skip | None:
        """Returns None for all nodes but the final aggregates of split distinct aggregates, and of bitmaps."""
        if not isinstance(node, Aggregate) or node.role is not AggregateRole.FINAL:
            return None
        partial = node.input.input if isinstance(node.input, Exchange) else node.input
        if not isinstance(partial, Aggregate):
            return None
        if any(call.function in BIT_SETTING for call in partial.calls):
            return Skip(
                "Spark already runs the global phase of the bitmaps and the local phase of their count in one stage: "
                "there is nothing to merge."
            )
        if not distinct_sets(partial) and not _is_over_values(partial):
            return None
        if len(distinct_sets(partial)) > 1:
            return Skip(
                "The partial aggregate has several sets of distinct values: Spark copies its rows for each set."
            )
        if not ctx.settings.incremental_agg:
            return Skip("incremental_agg is false.")
        if ctx.settings.agg_phase is AggPhase.ONE_PHASE or isinstance(node.input, Exchange):
            return Skip("agg_phase is ONE_PHASE: the final aggregate has no local phase to merge with.")
        return Match(node, MERGED, "The final aggregate's local phase counts the values of the buckets directly.")

    def rewrite(self, match: Match[Aggregate], _ctx: RuleContext, /) -> Node:
        """Returns the final aggregate over deduplicated values, as the example shows."""
        node, partial = match.node, match.node.input
        if not isinstance(partial, Aggregate):
            raise TypeError(f"{type(partial).__name__} is not the partial aggregate that was matched")
        if _is_over_values(partial):
            calls = tuple(_composed(call, partial) for call in node.calls)
            return replace(node, input=partial.input, calls=calls)
        return _with_values_as_keys(node, partial)


def _is_over_values(partial: Aggregate) -> bool:
    """Whether the values of the buckets are deduplicated in a separate aggregate."""
    return isinstance(partial.input, Aggregate) and partial.input.role is AggregateRole.PARTIAL


def _with_values_as_keys(node: Aggregate, partial: Aggregate) -> Aggregate:
    """Returns `node` over `partial` with its set of distinct values as additional keys; other calls do not change."""
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
    """Returns `call`, which is over a column of `partial`, as a call over the input of `partial`."""
    return _over(call, next(part for part in partial.calls if part.output.name == _source(call)))


def _over(call: Call, part: Call) -> Call:
    """Returns one call for `call` over `part`: SUM of COUNT is COUNT, f of f is f; a DECIMAL has the width of both."""
    arguments, of = part.arguments, part.output.type
    if part.function is AggregateFunction.SUM and of.name is TypeName.DECIMAL:
        arguments = (compose(f"CAST({{0}} AS {of})", arguments, of),)
    return replace(part, arguments=arguments, output=call.output)


def _source(call: Call) -> str | None:
    return call.arguments[0].column if call.arguments else None


def _column(call: Call) -> Scalar:
    return column(call.output.name, call.output.type)
