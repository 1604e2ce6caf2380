"""The rule `split_distinct_aggregate`."""

from __future__ import annotations

from dataclasses import replace

from service.contract.options import AggPhase, DistinctMethod, Toggle
from service.sql.expressions.scalar import Scalar, column
from service.sql.types.data_types import BIGINT, DOUBLE, INT
from workers.engine.plan.aggregates import (
    GROUPING_SETS,
    as_splittable,
    bucket_refusal,
    distinct_sets,
    final_of,
    is_undecided,
    key_columns,
    partial_of,
    refusal_of,
    spark_expands,
    split_call,
)
from workers.engine.plan.explain import call_text
from workers.engine.plan.expressions import compose, fresh_name
from workers.engine.plan.nodes import (
    Aggregate,
    AggregateRole,
    Exchange,
    Expand,
    Named,
    Node,
    Phases,
    Project,
    names_of,
)
from workers.engine.rules.cost import Choice, hot_group, input_tasks, key_profile, one_phase
from workers.engine.rules.distinct.cost import distinct_in_place, native_distinct, split_distinct, split_native
from workers.engine.rules.distinct.deduplication import deduplicate, names
from workers.engine.rules.distinct.methods import is_split_forced
from workers.engine.rules.rule import Match, RuleContext, Skip
from workers.engine.statistics.cardinality import KeyProfile, bytes_per_row
from workers.engine.statistics.partitioning import is_partitioned_by

NATIVE = "NATIVE"
SPLIT = "SPLIT"


class SplitDistinctAggregate:
    """Aggregates distinct values per bucket of their hash and then the buckets, so that many tasks share a hot group.

    >>> uid, category = column("o.uid", BIGINT), column("o.category", BIGINT)
    >>> orders = Scan("orders", "o", ((Field("o.uid", BIGINT), "uid"), (Field("o.category", BIGINT), "category")))
    >>> distinct = Call(AggregateFunction.COUNT, (category,), Field("n", BIGINT), distinct=True)
    >>> before = Aggregate(orders, (Named(uid, "uid"),), (distinct,))
    >>> print(text_of(before))
    Aggregate BY o.uid AS uid [COUNT(DISTINCT o.category) AS n]
      Scan orders AS o [o.uid, o.category]
    >>> settings = JobSettings.model_validate({"distinct_split.enabled": True, "distinct_split.bucket_num": 16})
    >>> ctx = RuleContext(settings, Statistics({}, {}, slots=4))
    >>> print(text_of(SplitDistinctAggregate().rewrite(Match(before, SPLIT, ""), ctx)))
    Project uid, coalesce($f0, 0L) AS n
      Aggregate FINAL TWO_PHASE BY uid [SUM($p0) AS $f0]
        Aggregate PARTIAL TWO_PHASE BY o.uid AS uid, pmod(xxhash64(o.category), 16) AS $bucket \
[COUNT(DISTINCT o.category) AS $p0]
          Scan orders AS o [o.uid, o.category]

    With several sets of distinct values, every row is copied for each set (`Expand`), and a copy is shuffled by the
    bucket of its set's values. There the values are deduplicated without DISTINCT, so that Spark does not copy them
    again, and a call counts the values of its own set.

    If the rows are already partitioned by group (one phase is forced, or a join on the group key is below), the rule
    adds an `Exchange` by group and bucket below the partial aggregate: otherwise Spark would reuse the partitioning by
    group for (group, bucket). The partial aggregate then has one phase. The final aggregate has two, or, if one phase
    is forced, one over an `Exchange` by group.

    Fires when:
        the aggregate has DISTINCT calls, all its calls can be split, and
        - `distinct_method` is split, or auto and `distinct_split.enabled` true, or
        - both are auto, there is one set of distinct values without a FILTER, the rows are partitioned by group, a
          group is hot (more rows than `skew.factor` times the other groups' rows per slot, and at least
          `skew.threshold` bytes), and the split costs less.

    Does not fire when:
        - `distinct_method` is another one, or auto and `distinct_split.enabled` false;
        - there are grouping sets;
        - DISTINCT changes nothing (MIN, MAX);
        - a call cannot be split (the table in `plan/aggregates.py` has the reasons), or equal distinct values may have
          different hashes, such as an array or a structure with fractions inside;
        - the distinct values are group keys: each group has one value, in one bucket;
        - it is auto and Spark itself shuffles by (group, value), which spreads a hot group just as well.

    Why the result is the same:
        equal distinct values of a group have equal buckets (-0.0 is converted to 0.0 before it is hashed; NULL has a
        bucket too), so the buckets of a group have disjoint values, and the final calls combine disjoint parts. The
        partial calls handle FILTER and NULLs as the original calls did. A global aggregate of no rows has no buckets;
        COUNT turns the missing sum into 0.

    Settings read:
        distinct_method, distinct_split.enabled, distinct_split.bucket_num, agg_phase, skew.factor, skew.threshold
    """

    name = "split_distinct_aggregate"

    def match(self, node: Node, ctx: RuleContext) -> Match[Aggregate] | Skip | None:
        """Returns None for all nodes but whole aggregates with a DISTINCT call whose phases are not decided."""
        if not isinstance(node, Aggregate) or not is_undecided(node) or not any(call.distinct for call in node.calls):
            return None
        obstacle = _obstacle(node, ctx)
        if obstacle is not None:
            return Skip(obstacle)
        if is_split_forced(ctx.settings):
            return _choice(node, ctx).match(node, SPLIT, _why_forced(node, ctx))
        return _choose_split_by_cost(node, ctx)

    def rewrite(self, match: Match[Aggregate], ctx: RuleContext, /) -> Node:
        """Returns a Project over FINAL over PARTIAL, as the example shows."""
        node = match.node
        if len(distinct_sets(node)) > 1:
            return _split_copies(node, ctx)
        taken = names_of(node) | names_of(node.input)
        bucket = Named(_bucket(node, None, ctx), fresh_name("$bucket", taken))
        partial_names, final_names = names("$p", taken), names("$f", taken)
        parts = tuple(split_call(call, partial_names, final_names) for call in node.calls)
        whole = Aggregate(node.input, (*node.keys, bucket), tuple(call for part in parts for call in part.partial))
        partial = partial_of(whole, spread=_is_partitioned_by_group(node, ctx))
        keys = key_columns(node)
        final = final_of(partial, keys, tuple(call for part in parts for call in part.final), ctx.settings.agg_phase)
        return Project(final, (*keys, *(part.result for part in parts)))


def _split_copies(node: Aggregate, ctx: RuleContext) -> Node:
    """Returns the plan for several sets: every row is copied for each set and shuffled by group and bucket; values are
    deduplicated and counted per bucket, and the counts are summed.
    """
    taken = names_of(node) | names_of(node.input)
    # Step 1: one copy of the rows for each set of distinct values, shuffled by the bucket of its values.
    branch = column(fresh_name("$branch", taken), INT)
    bucket = Named(_bucket(node, branch, ctx), fresh_name("$bucket", taken))
    grouped = (*node.keys, bucket)
    copies = Expand(node.input, len(distinct_sets(node)), branch.columns[0])
    sent = Exchange(copies, tuple(key.expression for key in grouped))
    # Step 2: a row for each value of a bucket, and the partial calls per bucket.
    deduplicated = deduplicate(node, sent, grouped, branch, taken)
    rows = replace(deduplicated.rows, phases=Phases.ONE_PHASE)
    partial_names, final_names = names("$p", taken), names("$f", taken)
    parts = tuple(split_call(as_splittable(call), partial_names, final_names) for call in deduplicated.calls)
    buckets = (*key_columns(node), Named(column(bucket.name, BIGINT), bucket.name))
    calls = tuple(call for part in parts for call in part.partial)
    partial = Aggregate(rows, buckets, calls, AggregateRole.PARTIAL, Phases.ONE_PHASE)
    # Step 3: combine the buckets, and restore the names and types of the columns.
    keys = key_columns(node)
    final = final_of(partial, keys, tuple(call for part in parts for call in part.final), ctx.settings.agg_phase)
    return Project(Project(final, (*keys, *(part.result for part in parts))), (*keys, *deduplicated.results))


def _obstacle(node: Aggregate, ctx: RuleContext) -> str | None:
    """Returns the reason why the aggregate cannot or must not be split, independent of costs; None if it can be."""
    if node.grouping_sets:
        return GROUPING_SETS
    method = ctx.settings.distinct_method
    if method not in {DistinctMethod.AUTO, DistinctMethod.SPLIT}:
        return f"distinct_method is {method.value}."
    if method is DistinctMethod.AUTO and ctx.settings.distinct_split.enabled is Toggle.FALSE:
        return "distinct_split.enabled is false."
    sets = distinct_sets(node)
    if not sets:
        return "MIN and MAX are the same with and without DISTINCT: there is nothing to split."
    for call in node.calls:
        refusal = refusal_of(call)
        if refusal is not None:
            return f"{call_text(call)} cannot be split: {refusal}."
    for value in (value for values in sets for value in values):
        unlike = bucket_refusal(value)
        if unlike is not None:
            return unlike
    keys = {key.expression.sql for key in node.keys}
    if all(value.sql in keys for values in sets for value in values):
        return "The distinct values are group keys: a group has only one value, and so only one bucket."
    return None


def _why_forced(node: Aggregate, ctx: RuleContext) -> str:
    by_method = ctx.settings.distinct_method is DistinctMethod.SPLIT
    forced = "distinct_method is split" if by_method else "distinct_split.enabled is true"
    sets = len(distinct_sets(node))
    return f"{forced}." if sets == 1 else f"{forced}: every row is copied for each of {sets} distinct arguments."


def _choose_split_by_cost(node: Aggregate, ctx: RuleContext) -> Match[Aggregate] | Skip:
    if spark_expands(node):
        return Skip(
            "Spark copies the rows for several distinct arguments, or one with a FILTER, and shuffles them by "
            "(group, value), which already spreads a hot group."
        )
    if not node.keys or not _is_partitioned_by_group(node, ctx):
        reason = "Spark's own plan shuffles by (group, value), which already spreads a hot group."
        return _choice(node, ctx).skip(reason)
    groups = _groups(node, ctx)
    if groups is None:
        return Skip("There are no statistics for the group keys: it is not known whether a group is hot.")
    skew, slots = ctx.settings.skew, ctx.statistics.slots
    hot = hot_group(groups, skew, slots, bytes_per_row(node.input, ctx.statistics))
    if hot is None:
        return Skip("No group is hot: the rows are already evenly distributed by group.")
    finding = f"Group {hot.value} {hot.share_text} of the rows, all on one task"
    choice = _choice(node, ctx)
    if choice.cheapest == NATIVE:
        return choice.skip(f"{finding}, but splitting it costs more.")
    return choice.match(node, SPLIT, f"{finding}.")


def _is_partitioned_by_group(node: Aggregate, ctx: RuleContext) -> bool:
    """Whether Spark would keep all rows of a group on one task while it deduplicates the values."""
    if spark_expands(node):
        return False
    if ctx.settings.agg_phase is AggPhase.ONE_PHASE:
        return True
    return is_partitioned_by(node.input, (key.expression for key in node.keys), ctx.statistics)


def _groups(node: Aggregate, ctx: RuleContext) -> KeyProfile | None:
    return key_profile(node.input, (key.expression for key in node.keys), ctx.statistics)


def _choice(node: Aggregate, ctx: RuleContext) -> Choice:
    """Returns the costs of Spark's plan and of the split; none with several sets, or without statistics of groups."""
    statistics, sets, groups = ctx.statistics, distinct_sets(node), _groups(node, ctx)
    if groups is None or len(sets) > 1:
        return Choice({}, NATIVE)
    keys = tuple(key.expression for key in node.keys)
    # Without statistics the worst case: every row has a different value.
    pairs = key_profile(node.input, (*keys, *sets[0]), statistics) or KeyProfile(groups.rows, groups.rows, ())
    slots, buckets = statistics.slots, ctx.settings.distinct_split.bucket_num
    if not _is_partitioned_by_group(node, ctx):
        tasks = input_tasks(node.input, statistics)
        native = native_distinct(groups, pairs, slots, tasks)
        split = split_native(groups, pairs, slots, tasks, buckets)
    else:
        in_place = is_partitioned_by(node.input, keys, statistics)
        native = distinct_in_place(groups, pairs, slots) if in_place else one_phase(groups, slots, pairs)
        split = split_distinct(groups, pairs, slots, buckets)
    return Choice({NATIVE: native, SPLIT: split}, NATIVE)


def _bucket(node: Aggregate, branch: Scalar | None, ctx: RuleContext) -> Scalar:
    hashes = tuple(_bucket_of(values, ctx.settings.distinct_split.bucket_num) for values in distinct_sets(node))
    if branch is None:
        return hashes[0]
    cases = " ".join(f"WHEN {number} THEN {{{number}}}" for number in range(1, len(hashes) + 1))
    return compose(f"CASE {{0}} {cases} END", (branch, *hashes), BIGINT)


def _bucket_of(values: tuple[Scalar, ...], buckets: int) -> Scalar:
    hashable = tuple(_hashable(value) for value in values)
    places = ", ".join(f"{{{index}}}" for index in range(len(hashable)))
    return compose(f"pmod(xxhash64({places}), {buckets})", hashable, BIGINT)


def _hashable(value: Scalar) -> Scalar:
    """Returns an expression that is equal, with an equal hash, for values that Spark groups together."""
    if value.type is not None and value.type.is_fractional:
        return compose("CAST({0} AS DOUBLE) + 0.0D", (value,), DOUBLE)
    return value
