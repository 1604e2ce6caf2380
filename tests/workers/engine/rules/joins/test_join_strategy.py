"""`join_strategy`: when it fires, and what it makes. Whole plans are in `tests/golden`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from service.contract.options import JobSettings, JoinLocal, JoinShip, JoinSkew
from service.contract.query import JoinKind
from service.contract.reports import HotKey
from service.sql.expressions.scalar import column
from service.sql.types.data_types import BIGINT, BINARY, BOOLEAN, STRING, DataType, Field, TypeName
from tests.support.applied_rules import matched, skipped
from tests.support.plan_parts import ORDERS, USERS
from tests.support.scalars import scalar
from workers.engine.plan import nodes
from workers.engine.plan.nodes import Filter, Join, Node, Scan
from workers.engine.planner import apply_rules
from workers.engine.rules.joins.join_strategy import JoinStrategy
from workers.engine.rules.joins.strategy_cost import NOT_FORCED, forced_strategy
from workers.engine.rules.rule import Match, RuleContext
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

RULE = JoinStrategy()
LEFT_TO_SPARK = (
    "No broadcast costs clearly less than sort-merge and is certain to fit in memory: the join is left to Spark."
)
LEFT_TO_ADAPTIVE_EXECUTION = "Spark is expected to find during the run that a side is small, and to broadcast it."
KEYS = ((column("o.uid", BIGINT), column("u.uid", BIGINT)),)
FEW = Filter(USERS, scalar("`u.uid` < 9", BOOLEAN))


def join(kind: JoinKind = JoinKind.INNER, right: Node = USERS, **strategy: Any) -> Join:
    keys = () if kind is JoinKind.CROSS else KEYS
    return Join(ORDERS, right, kind, keys, strategy=nodes.JoinStrategy(**strategy))


def context(
    orders: int = 20_000_000,
    users: int = 400_000,
    hot: float = 0.0,
    exact: bool = True,
    memory: int = 128 << 20,
    users_keys: int | None = None,
    **settings: Any,
) -> RuleContext:
    tables = {
        "o": TableSize("o", 8, orders * 100, orders, exact),
        "u": TableSize("u", 8, users * 100, users, exact),
    }
    hottest = (HotKey(value="7", share=hot, estimated_rows=round(hot * users)),) if hot else ()
    keys: dict[tuple[str, ...], KeySketch] = {
        ("o.uid",): KeySketch("o", ("o.uid",), 60_000, orders if users_keys is None else users_keys, 0.0, ()),
        ("u.uid",): KeySketch("u", ("u.uid",), 60_000, users if users_keys is None else users_keys, 0.0, hottest),
    }
    return RuleContext(JobSettings.model_validate(settings), Statistics(tables, keys, slots=16, task_memory=memory))


def choice(node: Node, ctx: RuleContext) -> str:
    """The way it takes; where it takes none, why, without the hint at another."""
    found = RULE.match(node, ctx)
    assert found is not None
    return found.choice if isinstance(found, Match) else found.reason.partition(" With join.ship")[0]


def test_texts_that_were_measured_may_be_broadcast() -> None:
    ctx, named = context(users=300_000), Scan("users", "u", (*USERS.columns, (Field("u.name", STRING), "name")))
    assert choice(join(right=named), ctx) == LEFT_TO_SPARK
    measured = replace(ctx, statistics=replace(ctx.statistics, widths={"u.name": 15.0}))
    assert choice(join(right=named), measured) == "BROADCAST_RIGHT"
    wide = replace(ctx, statistics=replace(ctx.statistics, widths={"u.name": 150.0}))
    assert choice(join(right=named), wide) == LEFT_TO_SPARK


def test_spark_is_kept_from_broadcasting_what_does_not_fit() -> None:
    ctx = context(users=4_000_000)
    small = {**ctx.statistics.tables, "u": TableSize("u", 1, 9 << 20, 4_000_000, True)}
    known = replace(ctx, statistics=replace(ctx.statistics, tables=small))
    match = matched(RULE, join(), known)
    assert match.choice == "SORT_MERGE"
    assert match.reason == (
        "Spark would broadcast the right side (its files are below 10 MB), but its 4,000,000 rows do not fit in memory."
    )
    turned = Join(USERS, ORDERS, JoinKind.INNER, tuple((user, uid) for uid, user in KEYS))
    assert matched(RULE, turned, known).reason == match.reason.replace("right", "left")
    roomy = replace(known, statistics=replace(known.statistics, task_memory=1 << 30))
    assert choice(join(), roomy).startswith("Spark broadcasts a side by itself")
    # What a condition leaves may fit.
    assert choice(join(right=FEW), known).startswith("Spark broadcasts a side by itself")


def test_joining_hot_keys_separately_may_cost_less_than_a_broadcast() -> None:
    many = context(orders=40_000_000, users=1_500_000, memory=1 << 30)
    hot = HotKey(value="7", share=0.2, estimated_rows=8_000_000)
    literals = ((scalar("7L", BIGINT),),)
    sketch = KeySketch("o", ("o.uid",), 60_000, 30_000_000, 0.0, (hot,), literals=literals)
    known = replace(many.statistics, keys={**many.statistics.keys, ("o.uid",): sketch})
    few_slots, slots = (replace(many, statistics=replace(known, slots=count)) for count in (16, 1024))
    assert choice(join(), few_slots) == "BROADCAST_RIGHT"
    assert choice(join(), slots).startswith(
        "Broadcasting the right side costs more than joining the hot keys separately"
    )
    # Whoever wants no parts gets the broadcast, as does a key that cannot be named.
    assert choice(join(skew=JoinSkew.NONE), slots) == "BROADCAST_RIGHT"
    unnamed = {**known.keys, ("o.uid",): replace(sketch, literals=())}
    assert choice(join(), replace(slots, statistics=replace(slots.statistics, keys=unnamed))) == "BROADCAST_RIGHT"


@pytest.mark.parametrize("skew", [JoinSkew.ISOLATE, JoinSkew.SALT])
def test_auto_broadcasts_no_side_if_join_skew_is_forced(skew: JoinSkew) -> None:
    plain = context()
    hot = HotKey(value="7", share=0.2, estimated_rows=4_000_000)
    named = KeySketch("o", ("o.uid",), 60_000, 20_000_000, 0.0, (hot,), literals=((scalar("7L", BIGINT),),))
    known = replace(plain.statistics, keys={**plain.statistics.keys, ("o.uid",): named})
    orders = replace(ORDERS, columns=(*ORDERS.columns, (Field("o.n", BIGINT), "n")))
    for node, settings in ((join(skew=skew), {}), (join(), {"join": {"skew": skew.value}})):
        wide = replace(node, left=orders)
        ctx = replace(plain, statistics=known, settings=JobSettings.model_validate(settings))
        assert choice(replace(wide, strategy=nodes.JoinStrategy()), plain) == "BROADCAST_RIGHT"
        skip = skipped(RULE, wide, ctx)
        assert skip.reason.startswith(f"join.skew is {skew}: broadcasting the right side would cost less, but")
        plan = apply_rules(wide, ctx)
        assert [trace.outcome.value for trace in plan.trace if trace.rule == "skewed_join"] == ["fired"]
        # A key without a name is not parted, and undoes nothing.
        unnamed = {**known.keys, ("o.uid",): replace(named, literals=())}
        assert choice(wide, replace(ctx, statistics=replace(known, keys=unnamed))) == "BROADCAST_RIGHT"
        assert choice(replace(wide, strategy=nodes.JoinStrategy(JoinShip.BROADCAST_RIGHT)), ctx) == "BROADCAST_RIGHT"
        if skew is JoinSkew.ISOLATE:
            # Where a hash table is demanded, it is built behind a shuffle.
            hashed = replace(wide, strategy=replace(wide.strategy, local=JoinLocal.HASH_RIGHT))
            assert choice(hashed, ctx) == "HASH_RIGHT"
            free = replace(wide, strategy=nodes.JoinStrategy(local=JoinLocal.HASH_RIGHT, skew=JoinSkew.NONE))
            assert choice(free, ctx) == "BROADCAST_RIGHT"


def test_a_broadcast_that_a_rule_requested_is_undone_unless_it_is_certain_to_fit() -> None:
    kept = join(ship=JoinShip.BROADCAST_RIGHT, forced=NOT_FORCED)
    skip = skipped(RULE, kept, context())
    assert skip.reason == (
        "The right side, now aggregated, is still broadcast, as by Spark itself: its files are below 10 MB."
    )
    for known in (context(users=1_000_000), context(exact=False)):
        match = matched(RULE, kept, known)
        assert match.choice == "SORT_MERGE"
        assert "do not fit in memory" in match.reason
    # What is demanded is done.
    assert choice(join(ship=JoinShip.BROADCAST_RIGHT), context(users=1_000_000)) == "BROADCAST_RIGHT"


@pytest.mark.parametrize(
    ("own", "settings", "demand"),
    [
        ({}, {}, NOT_FORCED),
        ({"local": JoinLocal.HASH_RIGHT}, {}, (JoinShip.AUTO, JoinLocal.HASH_RIGHT)),
        ({}, {"ship": "REPARTITION"}, (JoinShip.REPARTITION, JoinLocal.AUTO)),
        ({"local": JoinLocal.HASH_RIGHT}, {"ship": "REPARTITION"}, (JoinShip.REPARTITION, JoinLocal.HASH_RIGHT)),
        ({"ship": JoinShip.REPARTITION}, {"ship": "BROADCAST_LEFT"}, (JoinShip.REPARTITION, JoinLocal.AUTO)),
    ],
)
def test_a_join_keeps_what_was_forced_for_it(
    own: dict[str, Any], settings: dict[str, str], demand: tuple[JoinShip, JoinLocal]
) -> None:
    ctx, before = context(join=settings), join(**own)
    after = RULE.rewrite(Match(before, "HASH_RIGHT", ""), ctx)
    assert isinstance(after, Join)
    assert (after.strategy.ship, after.strategy.local) == (JoinShip.REPARTITION, JoinLocal.HASH_RIGHT)
    assert after.strategy.forced == demand
    assert forced_strategy(before, ctx.settings.join) == forced_strategy(after, ctx.settings.join) == demand


def test_it_is_about_joins_with_keys() -> None:
    assert RULE.match(ORDERS, context()) is None
    assert RULE.match(join(JoinKind.CROSS), context()) is None


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (JoinKind.INNER, "BROADCAST_RIGHT"),
        (JoinKind.LEFT, "BROADCAST_RIGHT"),
        (JoinKind.LEFT_SEMI, "BROADCAST_RIGHT"),
        (JoinKind.LEFT_ANTI, "BROADCAST_RIGHT"),
        (JoinKind.RIGHT, LEFT_TO_SPARK),
        (JoinKind.FULL, LEFT_TO_SPARK),
    ],
)
def test_auto_broadcasts_if_the_kind_of_join_and_the_memory_allow_it(kind: JoinKind, expected: str) -> None:
    assert choice(join(kind), context()) == expected


def test_auto_leaves_to_spark_what_is_not_sure_to_fit() -> None:
    assert choice(join(), context(memory=20 << 20)) == LEFT_TO_ADAPTIVE_EXECUTION
    # The files tell no number of rows.
    assert choice(join(), context(exact=False)) == LEFT_TO_ADAPTIVE_EXECUTION
    # A condition may leave few of them, or all.
    assert choice(join(right=FEW), context()) == "BROADCAST_RIGHT"
    assert choice(join(right=FEW), context(users=1_000_000)) == LEFT_TO_ADAPTIVE_EXECUTION


def test_auto_leaves_to_spark_a_join_that_multiplies_its_rows() -> None:
    # Each of 20 M rows has 4 partners, or 100.
    assert choice(join(), context(users_keys=100_000)) == "BROADCAST_RIGHT"
    assert choice(join(), context(users_keys=4_000)).startswith(
        "20,400,000 rows become about 2,000,000,000. So many matches take longer in a hash table of the whole"
    )


@pytest.mark.parametrize("type_", [STRING, BINARY, DataType(TypeName.OTHER, text="ARRAY<INT>")], ids=str)
def test_auto_broadcasts_no_text_whose_length_nothing_bounds(type_: DataType) -> None:
    """Twenty long texts that repeat take a bit a row in a file, and all of their length in memory."""
    texts = Scan("users", "u", (*USERS.columns, (Field("u.status", type_), "status")))
    known = context(users=300_000, memory=1 << 30)
    small = {**known.statistics.tables, "u": TableSize("u", 1, 11 << 20, 300_000, True)}
    ctx = replace(known, statistics=replace(known.statistics, tables=small))
    assert choice(join(), ctx) == "BROADCAST_RIGHT"
    assert choice(join(right=texts), ctx) == LEFT_TO_SPARK
    assert choice(join(right=texts, ship=JoinShip.BROADCAST_RIGHT), ctx) == "BROADCAST_RIGHT"
    assert choice(join(JoinKind.FULL, texts, ship=JoinShip.REPARTITION), ctx) == "SORT_MERGE"


def test_for_a_forced_shuffle_a_hash_table_is_taken_where_it_surely_fits() -> None:
    def chosen(right: Node = USERS, **known: Any) -> str:
        return choice(join(JoinKind.FULL, right, ship=JoinShip.REPARTITION), context(**known))

    assert chosen() == "HASH_RIGHT"
    assert chosen(users=3_000_000) == "HASH_RIGHT"
    assert chosen(FEW, users=3_000_000) == "SORT_MERGE"
    # Adaptive execution may broadcast a side that takes less than twice what it broadcasts unasked.
    assert chosen(users=350_000) == "SORT_MERGE"
    # All of a task's memory would go to one key.
    assert chosen(users=3_000_000, hot=0.5) == "SORT_MERGE"
    assert chosen(memory=1 << 20) == "SORT_MERGE"
    assert chosen(exact=False) == "SORT_MERGE"
    assert chosen(right=FEW) == "SORT_MERGE"


def test_auto_leaves_to_spark_what_it_broadcasts_itself_and_what_is_small() -> None:
    assert choice(join(), context(users=50_000)) == "Spark broadcasts a side by itself: its files are below 10 MB."
    assert "too few for a decision" in choice(join(), context(orders=300_000, users=200_000))
    unknown = RuleContext(JobSettings(), Statistics({}, {}, slots=4))
    assert choice(join(), unknown) == "The size of a side is not known: the join is left to Spark."


def test_what_is_forced_is_done_whatever_it_costs() -> None:
    assert choice(join(ship=JoinShip.BROADCAST_LEFT), context()) == "BROADCAST_LEFT"
    assert choice(join(local=JoinLocal.SORT_MERGE), context()) == "SORT_MERGE"
    assert choice(join(), context(join={"local": "HASH_LEFT"})) == "HASH_LEFT"
    assert choice(join(ship=JoinShip.REPARTITION), context(memory=1 << 20)) == "SORT_MERGE"
    assert choice(join(JoinKind.CROSS, ship=JoinShip.BROADCAST_LEFT), context()) == "BROADCAST_LEFT"
    # The join's own word before the settings'.
    assert choice(join(ship=JoinShip.REPARTITION), context(join={"ship": "BROADCAST_RIGHT"})) != "BROADCAST_RIGHT"


def test_a_kind_that_a_rule_has_changed_to_is_not_forced() -> None:
    found = skipped(RULE, join(JoinKind.FULL, ship=JoinShip.BROADCAST_LEFT), context())
    assert found.reason.startswith(
        "BROADCAST_LEFT is not supported for this join: a full join cannot broadcast its left side"
    )


def test_the_join_keeps_what_it_says_of_skew() -> None:
    before = join(skew=JoinSkew.SALT)
    after = RULE.rewrite(Match(before, "HASH_LEFT", ""), context())
    assert after == replace(
        before, strategy=nodes.JoinStrategy(JoinShip.REPARTITION, JoinLocal.HASH_LEFT, JoinSkew.SALT)
    )
    crossed = RULE.rewrite(Match(join(JoinKind.CROSS), "BROADCAST_LEFT", ""), context())
    assert isinstance(crossed, Join)
    assert crossed.strategy == nodes.JoinStrategy(JoinShip.BROADCAST_LEFT)


def test_every_algorithm_is_in_the_trace_with_its_cost() -> None:
    found = matched(RULE, join(JoinKind.LEFT), context())
    assert [(way.name, way.chosen) for way in found.alternatives] == [
        ("SORT_MERGE", False),
        ("HASH_LEFT", False),
        ("HASH_RIGHT", False),
        ("BROADCAST_RIGHT", True),
    ]


def told(node: Node, ctx: RuleContext) -> tuple[str, dict[str, bool]]:
    """The reason, and the ways that are told with their costs; the one that runs is True."""
    found = RULE.match(node, ctx)
    assert found is not None
    assert all(way.cost > 0 for way in found.alternatives)
    return found.reason, {way.name: way.chosen for way in found.alternatives}


def test_the_trace_of_a_join_that_is_left_to_spark_has_all_costs() -> None:
    ways = dict.fromkeys(["SORT_MERGE", "HASH_LEFT", "HASH_RIGHT", "BROADCAST_LEFT", "BROADCAST_RIGHT"], False)
    _, of_few = told(join(), context(orders=300_000, users=200_000))
    assert of_few == {**ways, "SORT_MERGE": True}
    for node in (join(), join(ship=JoinShip.BROADCAST_RIGHT, forced=NOT_FORCED)):
        _, sent = told(node, context(users=50_000))
        # Spark's choice is none of ours.
        assert sent == ways
    assert told(join(), RuleContext(JobSettings(), Statistics({}, {}, slots=4)))[1] == {}


@pytest.mark.parametrize(("kind", "users"), [(JoinKind.FULL, 400_000), (JoinKind.FULL, 3_000_000), (JoinKind.FULL, 9)])
@pytest.mark.parametrize("memory", [1 << 20, 128 << 20])
def test_the_hint_at_a_forced_shuffle_is_what_comes_of_one(kind: JoinKind, users: int, memory: int) -> None:
    ctx = context(users=users, memory=memory)
    reason, _ = told(join(kind), ctx)
    by_force = choice(join(kind, ship=JoinShip.REPARTITION), ctx)
    hint = f" With join.ship REPARTITION the choice would be {by_force}."
    assert reason.endswith(hint) is (by_force != "SORT_MERGE")
    assert ("REPARTITION" in reason) is (by_force != "SORT_MERGE")


def test_the_trace_warns_of_a_forced_broadcast_that_is_not_expected_to_fit() -> None:
    forced = join(ship=JoinShip.BROADCAST_RIGHT)
    assert told(forced, context())[0] == "BROADCAST_RIGHT is forced for this join."
    assert told(forced, context(users=4_000_000))[0] == (
        "BROADCAST_RIGHT is forced for this join, but its right side is not expected to fit in memory: about 4,000,000 "
        "rows take at least 214 MB; the limit of a broadcast is 32 MB."
    )
    by_settings = context(users=4_000_000, join={"ship": "BROADCAST_LEFT"})
    assert "its left side is not expected to fit in memory: about 20,000,000 rows" in told(join(), by_settings)[0]
    # What joins below send is held beside it.
    few = context(users=500_000)
    tables, chain = dict(few.statistics.tables), forced
    assert "not expected" not in told(chain, few)[0]
    for alias in "vw":
        tables[alias] = replace(tables["u"], alias=alias)
        further = Scan("users", alias, ((Field(f"{alias}.uid", BIGINT), "uid"),))
        keys = ((column("o.uid", BIGINT), column(f"{alias}.uid", BIGINT)),)
        chain = replace(chain, left=chain, right=further, keys=keys)
    known = replace(few, statistics=replace(few.statistics, tables=tables))
    assert "not expected" not in told(chain.left, known)[0]
    assert told(chain, known)[0].endswith(
        "at least 27 MB, in addition to 54 MB for the joins below; the limit of a broadcast is 32 MB."
    )
    assert told(forced, RuleContext(JobSettings(), Statistics({}, {}, slots=4)))[0].endswith("is forced for this join.")
