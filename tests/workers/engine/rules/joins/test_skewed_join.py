"""Hot keys isolated or salted: the rows of plain Spark, for every kind of join and type of key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name every Spark program gives it

from service.contract.options import JobSettings, JoinLocal, JoinSettings, JoinShip, JoinSkew
from service.contract.query import JoinKind
from service.contract.reports import HotKey, RuleOutcome
from service.sql.expressions.scalar import column
from service.sql.joins import Side
from service.sql.types.data_types import BIGINT, BOOLEAN, DATE, DOUBLE, INT, STRING, TIMESTAMP, UNKNOWN, Field, decimal
from tests.support.applied_rules import matched, skipped
from tests.support.scalars import scalar
from workers.engine.plan.expressions import NULL_LITERAL, literal
from workers.engine.plan.nodes import (
    Exchange,
    Filter,
    Join,
    JoinStrategy,
    Limit,
    Node,
    Scan,
    Union,
    output_of,
    scanned_columns,
)
from workers.engine.plan.traversal import walk_up
from workers.engine.plan.validation import check
from workers.engine.planner import apply_rules
from workers.engine.rules.joins.skew_rewrite import HotPart, split_join
from workers.engine.rules.joins.skewed_join import ISOLATE, SALT, SkewedJoin
from workers.engine.rules.joins.strategy_cost import NOT_FORCED
from workers.engine.rules.rule import Match, RuleContext
from workers.engine.spark.lowering import lower, physical_plan
from workers.engine.statistics.cardinality import bytes_per_row, estimate_rows, profile_of
from workers.engine.statistics.model import KeySketch, Statistics, TableSize

RULE = SkewedJoin()
TYPES = {
    "k": BIGINT,
    "i": INT,
    "s": STRING,
    "m": decimal(10, 2),
    "da": DATE,
    "ts": TIMESTAMP,
    "q": BOOLEAN,
    "v": BIGINT,
    "x": DOUBLE,
}
KINDS = [kind for kind in JoinKind if kind is not JoinKind.CROSS]
HOT: dict[str, list[Any]] = {
    "k": [7, -8],
    "i": [7, -8],
    "s": ["it's", 'b"\\', "${x}", ""],
    "m": [Decimal("-1.50"), Decimal("99999999.99")],
    "da": [date(2013, 1, 2), date(1, 1, 1)],
    "ts": [datetime(2013, 1, 2, 12, 0, 0, 5, tzinfo=UTC), datetime(1969, 12, 31, 23, tzinfo=UTC)],
    "q": [True, False],
}
KEYS = [("k",), ("s",), ("k", "s"), ("m",), ("da",), ("ts",), ("q", "da"), ("s", "ts", "m")]


def scan(alias: str, *names: str) -> Scan:
    fields = [(Field(f"{alias}.{name}", TYPES[name]), name) for name in names or TYPES]
    return Scan(f"table_{alias}", alias, tuple(fields))


def join(kind: JoinKind, names: tuple[str, ...], residual: str | None = None) -> Join:
    keys = tuple((column(f"l.{name}", TYPES[name]), column(f"r.{name}", TYPES[name])) for name in names)
    extra = scalar(residual, BOOLEAN) if residual else None
    return Join(scan("l"), scan("r"), kind, keys, extra)


def sketch(alias: str, names: tuple[str, ...], shares: Mapping[int, float], nulls: float) -> KeySketch:
    """Hot keys by their number in `HOT`, with their shares."""
    hot, literals = [], []
    for number, share in shares.items():
        values = [HOT[name][number] for name in names]
        hot.append(HotKey(value=", ".join(map(str, values)), share=share, estimated_rows=round(100_000 * share)))
        found = [literal(value, TYPES[name]) for name, value in zip(names, values, strict=True)]
        literals.append(tuple(one for one in found if one is not None))
    columns = tuple(f"{alias}.{name}" for name in names)
    return KeySketch(alias, columns, 60_000, 50_000, nulls, tuple(hot), literals=tuple(literals))


def context(
    names: tuple[str, ...],
    left: Mapping[int, float],
    right: Mapping[int, float],
    *,
    skew: str = "AUTO",
    nulls: float = 0.0,
    mb: int = 20,
) -> RuleContext:
    sizes = {alias: TableSize(alias, 8, mb << 20, 100_000, True) for alias in ("l", "r")}
    sketches = (sketch("l", names, left, nulls), sketch("r", names, right, nulls))
    settings = JobSettings.model_validate({"join.skew": skew, "skew.threshold": 0})
    return RuleContext(settings, Statistics(sizes, {one.columns: one for one in sketches}, slots=4))


def rewritten(node: Join, ctx: RuleContext) -> Node | None:
    match = RULE.match(node, ctx)
    if not isinstance(match, Match):
        return None
    after = RULE.rewrite(match, ctx)
    check(after, RULE.name, output_of(node))
    return after


def reason(node: Node, ctx: RuleContext) -> str:
    found = skipped(RULE, node, ctx)
    return found.reason


def test_it_is_about_equi_joins_alone() -> None:
    ctx = context(("k",), {0: 0.9}, {}, skew="ISOLATE")
    assert RULE.match(scan("l"), ctx) is None
    assert RULE.match(Join(scan("l"), scan("r"), JoinKind.CROSS, ()), ctx) is None


def test_the_joins_own_strategy_comes_before_the_querys() -> None:
    node = Join(scan("l"), scan("r"), JoinKind.INNER, join(JoinKind.INNER, ("k",)).keys)
    apart = Join(node.left, node.right, node.kind, node.keys, strategy=JoinStrategy(skew=JoinSkew.NONE))
    assert reason(apart, context(("k",), {0: 0.9}, {}, skew="ISOLATE")) == "join.skew is NONE."
    salted = Join(node.left, node.right, node.kind, node.keys, strategy=JoinStrategy(skew=JoinSkew.SALT))
    match = matched(RULE, salted, context(("k",), {0: 0.9}, {}, skew="NONE"))
    assert match.choice == SALT


def test_what_stands_against_it() -> None:
    node, ctx = join(JoinKind.INNER, ("k",)), context(("k",), {0: 0.9}, {})
    broadcast = Join(node.left, node.right, node.kind, node.keys, strategy=JoinStrategy(ship=JoinShip.BROADCAST_RIGHT))
    assert "One side is broadcast" in reason(broadcast, ctx)
    assert "One side is broadcast" in reason(node, context(("k",), {0: 0.9}, {}, mb=9))
    limited = Join(Limit(node.left, 5), node.right, node.kind, node.keys)
    assert "has a LIMIT" in reason(limited, ctx)
    fractional = Join(node.left, node.right, node.kind, ((column("l.x", DOUBLE), column("r.x", DOUBLE)),))
    assert "one exact type" in reason(fractional, ctx)
    mixed = Join(node.left, node.right, node.kind, ((column("l.k", BIGINT), column("r.s", STRING)),))
    assert "one exact type" in reason(mixed, ctx)
    assert "no statistics" in reason(join(JoinKind.INNER, ("i",)), ctx)
    twice = Join(Union((node.left, node.left)), node.right, node.kind, node.keys)
    assert "A side is a union" in reason(twice, ctx)
    with pytest.raises(ValueError, match="SALT is not possible"):
        RULE.rewrite(Match(limited, SALT, ""), ctx)


@pytest.mark.parametrize(
    ("forced", "ways"),
    [
        ({}, [ISOLATE, SALT]),
        ({"ship": JoinShip.REPARTITION}, [SALT]),
        ({"ship": JoinShip.REPARTITION, "local": JoinLocal.SORT_MERGE}, [SALT]),
        ({"local": JoinLocal.HASH_RIGHT}, []),
    ],
)
def test_auto_does_not_override_a_strategy_that_the_query_forces(forced: dict[str, Any], ways: list[str]) -> None:
    """Who forces a shuffle may have seen broadcasts run out of memory."""
    node, ctx = join(JoinKind.INNER, ("k",)), context(("k",), {0: 0.3}, {0: 0.0001})
    by_settings = replace(ctx, settings=ctx.settings.model_copy(update={"join": JoinSettings(**forced)}))
    for joined, its in ((replace(node, strategy=JoinStrategy(**forced)), ctx), (node, by_settings)):
        found = RULE.match(joined, its)
        assert found is not None
        assert [one.name for one in found.alternatives if one.name in {ISOLATE, SALT}] == ways
        assert isinstance(found, Match) is bool(ways)
        if not ways:
            assert "is forced for this join" in found.reason
    matched(RULE, replace(node, strategy=JoinStrategy(**forced, skew=JoinSkew.ISOLATE)), ctx)


@pytest.mark.parametrize(
    ("local", "demanded", "ways"),
    [
        (JoinLocal.SORT_MERGE, NOT_FORCED, [ISOLATE, SALT]),
        (JoinLocal.HASH_RIGHT, (JoinShip.REPARTITION, JoinLocal.AUTO), [SALT]),
        (JoinLocal.HASH_RIGHT, (JoinShip.AUTO, JoinLocal.HASH_RIGHT), []),
        (JoinLocal.HASH_RIGHT, None, []),
    ],
)
def test_what_a_rule_has_chosen_for_a_join_forbids_nothing_for_its_hot_keys(
    local: JoinLocal, demanded: tuple[JoinShip, JoinLocal] | None, ways: list[str]
) -> None:
    """A side of small files and many rows is kept from a broadcast, and may have few rows of a hot key."""
    strategy = JoinStrategy(JoinShip.REPARTITION, local, forced=demanded)
    found = RULE.match(replace(join(JoinKind.INNER, ("k",)), strategy=strategy), context(("k",), {0: 0.3}, {0: 0.0001}))
    assert found is not None
    assert [one.name for one in found.alternatives if one.name in {ISOLATE, SALT}] == ways
    if not ways:
        told = "HASH_RIGHT" if demanded else "REPARTITION with HASH_RIGHT"
        assert f"but {told} is forced for this join" in found.reason


@pytest.mark.parametrize("local", [JoinLocal.HASH_LEFT, JoinLocal.HASH_RIGHT])
def test_no_key_is_salted_where_the_query_demands_a_hash_table(local: JoinLocal) -> None:
    """A setting for the whole query, and a hint for one of its joins: that one keeps to its own."""
    node, ctx = join(JoinKind.INNER, ("k",)), context(("k",), {0: 0.3}, {0: 0.0001}, skew=SALT)
    assert isinstance(rewritten(node, ctx), Union)
    for ship, told in ((JoinShip.AUTO, local.value), (JoinShip.REPARTITION, f"REPARTITION with {local}")):
        hinted = replace(node, strategy=JoinStrategy(ship, local))
        because = f"join.skew is SALT, but {told} is forced for this join, and salted keys require sort-merge."
        assert reason(hinted, ctx) == because
        plan = apply_rules(Join(hinted, scan("w"), JoinKind.CROSS, ()), ctx)
        assert because in [trace.reason for trace in plan.trace if trace.rule == RULE.name]
        assert not any(isinstance(part, Union) for part in walk_up(plan.after))
    # What a rule has chosen for the other rows, of which a shuffle alone was demanded, is no hindrance.
    chosen = JoinStrategy(JoinShip.REPARTITION, local, forced=(JoinShip.REPARTITION, JoinLocal.AUTO))
    assert isinstance(rewritten(replace(node, strategy=chosen), ctx), Union)


@pytest.mark.parametrize(
    ("kind", "skew", "left", "right", "nulls", "because"),
    [
        (JoinKind.LEFT, "AUTO", {}, {}, 0.9, "a column of the other side has a type to which NULL cannot be cast"),
        (JoinKind.LEFT_ANTI, SALT, {}, {}, 0.9, "no key in the sample can be written as a literal"),
        (JoinKind.FULL, SALT, {0: 0.5}, {}, 0.9, "a full join keeps the unmatched rows of both sides"),
        (JoinKind.LEFT, ISOLATE, {}, {0: 0.9}, 0.1, "a left join can split only the rows of its left side"),
        (JoinKind.LEFT, ISOLATE, {0: 0.9}, {0: 0.9}, 0.1, "there are too many rows to broadcast"),
        (JoinKind.INNER, ISOLATE, {0: 0.5}, {0: 0.9}, 0.0, "there are too many rows to broadcast"),
    ],
)
@pytest.mark.parametrize("ship", [JoinShip.AUTO, JoinShip.REPARTITION])
def test_it_says_why_there_is_no_plan(
    kind: JoinKind,
    skew: str,
    left: Mapping[int, float],
    right: Mapping[int, float],
    nulls: float,
    because: str,
    ship: JoinShip,
) -> None:
    right_side = scan("r")
    of_spark = replace(right_side, columns=(*right_side.columns, (Field("r.a", UNKNOWN), "a")))
    node = replace(join(kind, ("k",)), right=of_spark, strategy=JoinStrategy(ship))
    ctx = context(("k",), left, right, skew=skew, nulls=nulls)
    tight = replace(ctx, statistics=replace(ctx.statistics, task_memory=1 << 20))
    assert f", but {because}" in reason(node, tight)


def test_integers_of_two_types_are_compared_as_they_are() -> None:
    node = Join(scan("l"), scan("r"), JoinKind.INNER, ((column("l.k", BIGINT), column("r.i", INT)),))
    known = (sketch("l", ("k",), {0: 0.9}, 0.0), sketch("r", ("i",), {}, 0.0))
    sizes = context(("k",), {}, {}).statistics.tables
    ctx = RuleContext(JobSettings(), Statistics(sizes, {one.columns: one for one in known}, slots=4))
    unknown = Statistics(sizes, {one.columns: one for one in known[:1]}, slots=4)
    assert isinstance(
        rewritten(node, RuleContext(JobSettings.model_validate({"skew.threshold": 0}), ctx.statistics)), Union
    )
    assert "no statistics" in reason(node, RuleContext(JobSettings(), unknown))


def test_hot_values_without_literals_are_left_alone() -> None:
    ctx = context(("k",), {0: 0.9}, {}, skew="ISOLATE")
    bare = {
        key: KeySketch(*[getattr(one, name) for name in KeySketch.__match_args__[:6]])
        for key, one in ctx.statistics.keys.items()
    }
    known = Statistics(ctx.statistics.tables, bare, slots=4)
    assert "literal" in reason(join(JoinKind.INNER, ("k",)), RuleContext(ctx.settings, known))


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_sides_that_may_be_split_are_split(kind: JoinKind) -> None:
    """Hot on the left, hot on the right (of which semi and anti joins need only the key), and rows with NULL keys."""
    fired = {
        "left": rewritten(join(kind, ("k",)), context(("k",), {0: 0.9}, {})),
        "right": rewritten(join(kind, ("k",)), context(("k",), {}, {0: 0.9})),
        "nulls": rewritten(join(kind, ("k",)), context(("k",), {}, {}, nulls=0.9)),
    }
    assert {name for name, after in fired.items() if after is not None} == {
        JoinKind.INNER: {"left", "right"},
        JoinKind.LEFT: {"left", "nulls"},
        JoinKind.RIGHT: {"right", "nulls"},
        JoinKind.FULL: {"nulls"},
        JoinKind.LEFT_SEMI: {"left", "right"},
        JoinKind.LEFT_ANTI: {"left", "right", "nulls"},
    }[kind]


def test_it_says_that_a_condition_may_leave_fewer_rows_of_a_key() -> None:
    node, ctx = join(JoinKind.INNER, ("k",)), context(("k",), {0: 0.9}, {})
    filtered = replace(node, left=Filter(node.left, scalar("`l.v` > 1", BOOLEAN)))
    for joined, rows in ((node, "has 90,000 rows"), (filtered, "has up to 90,000 rows")):
        assert matched(RULE, joined, ctx).reason.startswith(f"Key 7 {rows} on the left and 2 rows on the right")


def test_keys_that_are_hot_on_different_sides_are_split_separately() -> None:
    after = rewritten(join(JoinKind.INNER, ("k",)), context(("k",), {0: 0.9}, {1: 0.9}))
    assert isinstance(after, Union)
    ships = [branch.strategy.ship for branch in after.inputs if isinstance(branch, Join)]
    assert ships == [JoinShip.AUTO, JoinShip.BROADCAST_RIGHT, JoinShip.BROADCAST_LEFT]


def test_probe_rows_with_many_matches_are_distributed_over_a_fixed_number_of_tasks() -> None:
    after = rewritten(join(JoinKind.INNER, ("k",)), context(("k",), {0: 0.05}, {0: 0.05}, skew="ISOLATE"))
    assert after is not None
    assert [(node.keys, node.partitions) for node in walk_up(after) if isinstance(node, Exchange)] == [((), 16)]


def chain(kind: JoinKind, above: JoinKind, name: str) -> tuple[Join, RuleContext]:
    """Two joins, the upper one by `name` of the left table as the lower one by `k`; both have a hot key there."""
    left, right, far = (
        Scan(f"table_{alias}", alias, tuple((Field(f"{alias}.{of}", TYPES[of]), of) for of in ("k", "s", "v")))
        for alias in ("l", "r", "w")
    )
    lower = Join(left, right, kind, ((column("l.k", BIGINT), column("r.k", BIGINT)),))
    upper = Join(lower, far, above, ((column(f"l.{name}", TYPES[name]), column(f"w.{name}", TYPES[name])),))
    ctx = context(("k",), {0: 0.9}, {})
    size, of_left = ctx.statistics.tables["l"], sketch("l", (name,), {0: 0.9}, 0.1)
    tables = {**ctx.statistics.tables, "w": replace(size, alias="w")}
    known = (of_left, sketch("w", (name,), {}, 0.0))
    keys = {**ctx.statistics.keys, **{one.columns: one for one in known}}
    # The lower join is computed again for each part of the upper one: on few slots that costs what the parts spare.
    return upper, replace(ctx, statistics=replace(ctx.statistics, tables=tables, keys=keys, slots=16))


@pytest.mark.parametrize("name", ["k", "s"])
@pytest.mark.parametrize("skew", ["AUTO", ISOLATE])
def test_hot_keys_of_two_nested_joins_are_both_joined_separately(name: str, skew: str) -> None:
    """By one key, which tells the parts of the lower join apart, and by one key each."""
    node, ctx = chain(JoinKind.LEFT, JoinKind.LEFT, name)
    settings = ctx.settings.model_copy(update={"join": JoinSettings(skew=JoinSkew(skew))})
    plan = apply_rules(node, replace(ctx, settings=settings))
    told = [trace for trace in plan.trace if trace.rule == RULE.name]
    assert [trace.outcome for trace in told] == [RuleOutcome.FIRED] * 2, [trace.reason for trace in told]
    assert all("1 hot key joined separately" in trace.reason for trace in told)
    assert isinstance(plan.after, Union)
    assert plan.after.replaces is not None
    upper = [branch for branch in plan.after.inputs if isinstance(branch, Join)]
    assert [branch.strategy.ship for branch in upper] == [JoinShip.AUTO, JoinShip.BROADCAST_RIGHT]
    lower = [part for branch in upper for part in walk_up(branch) if isinstance(part, Union)]
    assert len(lower) == 2
    # What is estimated of a join in parts is what is estimated of the join.
    assert estimate_rows(plan.after, ctx.statistics) == estimate_rows(node, ctx.statistics)
    assert scanned_columns(plan.after, ("l.k", "w.v")) == ("l.k", "w.v")
    assert bytes_per_row(plan.after, ctx.statistics) == bytes_per_row(node, ctx.statistics)
    assert profile_of(plan.after, ("l.k",), ctx.statistics) == profile_of(node, ("l.k",), ctx.statistics) is not None


def test_parts_do_not_multiply_without_end() -> None:
    """Each part of a join computes the joins below again, with all of their parts."""
    node, ctx = chain(JoinKind.LEFT, JoinKind.LEFT, "k")
    tables, keys = dict(ctx.statistics.tables), dict(ctx.statistics.keys)
    for alias in ("x", "y"):
        right = Scan(f"table_{alias}", alias, ((Field(f"{alias}.k", BIGINT), "k"),))
        tables[alias], keys[f"{alias}.k",] = replace(tables["w"], alias=alias), sketch(alias, ("k",), {}, 0.0)
        node = Join(node, right, JoinKind.LEFT, ((column("l.k", BIGINT), column(f"{alias}.k", BIGINT)),))
    known = replace(ctx.statistics, tables=tables, keys=keys)
    plan = apply_rules(node, RuleContext(JobSettings.model_validate({"join.skew": ISOLATE}), known))
    told = [trace for trace in plan.trace if trace.rule == RULE.name]
    assert [trace.outcome.value for trace in told] == ["fired", "fired", "skipped", "skipped"]
    assert told[-1].reason == (
        "2 nested joins below are already split: each part of this join would compute them again, so "
        "join.skew ISOLATE has no effect."
    )


@pytest.mark.parametrize("kind", [JoinKind.INNER, JoinKind.LEFT, JoinKind.LEFT_ANTI])
@pytest.mark.parametrize(("above", "name"), [(JoinKind.INNER, "k"), (JoinKind.LEFT, "s"), (JoinKind.LEFT_SEMI, "k")])
@pytest.mark.spark
def test_two_joins_in_parts_give_the_rows_of_plain_spark(
    scans: dict[str, DataFrame], kind: JoinKind, above: JoinKind, name: str
) -> None:
    node, ctx = chain(kind, above, name)
    after = apply_rules(node, replace(ctx, settings=JobSettings.model_validate({"join.skew": ISOLATE}))).after
    # The lower one is in each part of the upper one.
    assert sum(isinstance(part, Union) for part in walk_up(after)) >= 3
    far = scans["r"].select(*(F.col(f"`r.{of}`").alias(f"w.{of}") for of in ("k", "s", "v")))
    near = {alias: scans[alias].select(*(f"`{alias}.{of}`" for of in ("k", "s", "v"))) for alias in "lr"}
    same({**near, "w": far}, node, after)


@dataclass(frozen=True)
class Case:
    kind: JoinKind
    names: tuple[str, ...]
    skew: str
    residual: str | None
    left: Mapping[int, float]
    right: Mapping[int, float]


shares = st.dictionaries(st.sampled_from([0, 1]), st.sampled_from([0.4, 0.05]), max_size=2)
cases = st.builds(
    Case,
    kind=st.sampled_from(KINDS),
    names=st.sampled_from(KEYS),
    skew=st.sampled_from([ISOLATE, SALT, "AUTO"]),
    residual=st.sampled_from([None, None, "`l`.`v` > `r`.`v`", "100 / (`l`.`v` + 1000) > `r`.`v`"]).map(
        lambda text: text and text.replace("`l`.`v`", "`l.v`").replace("`r`.`v`", "`r.v`")
    ),
    left=shares,
    right=shares,
)


def rows(count: int, seed: int) -> list[tuple[Any, ...]]:
    """Most keys hot, many NULL, some that the other side has not."""
    random = Random(seed)

    def value(name: str, number: int) -> Any:
        if name in {"v", "x"}:
            return number if name == "v" else random.choice([None, 0.5, float("nan"), -0.0])
        if random.random() < 0.12:
            return None
        if random.random() < 0.8:
            return random.choice(HOT[name])
        return {
            "k": number,
            "i": number,
            "s": f"s{number}",
            "m": Decimal(number),
            "da": date(2020, 1, 1 + number % 28),
            "ts": datetime(2020, 1, 1, number % 24, tzinfo=UTC),
            "q": True,
        }[name]

    return [tuple(value(name, number) for name in TYPES) for number in range(count)]


@pytest.fixture(scope="module")
def scans(spark: SparkSession) -> Iterator[dict[str, DataFrame]]:
    changed = {
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    }
    ddl = {alias: ", ".join(f"`{alias}.{name}` {type_}" for name, type_ in TYPES.items()) for alias in "lr"}
    made = {alias: spark.createDataFrame(rows(60 if alias == "l" else 40, ord(alias)), ddl[alias]) for alias in "lr"}
    frames = {alias: frame.coalesce(2).cache() for alias, frame in made.items()}
    for key, setting in changed.items():
        spark.conf.set(key, setting)
    yield frames
    for key in changed:
        spark.conf.unset(key)
    for frame in frames.values():
        frame.unpersist()


def same(scans: Mapping[str, DataFrame], before: Node, after: Node) -> None:
    """Both plans at once; every row as often in one as in the other."""
    plans = [lower(plan, scans) for plan in (before, after)]
    assert [field.dataType for field in plans[0].schema] == [field.dataType for field in plans[1].schema]
    tagged = [plan.select("*", F.lit(number)) for number, plan in enumerate(plans)]
    found = [Counter[str](), Counter[str]()]
    for row in tagged[0].union(tagged[1]).collect():
        found[row[-1]][repr(tuple(row)[:-1])] += 1
    assert found[0] == found[1]


@pytest.mark.spark
@pytest.mark.parametrize("skew", [ISOLATE, SALT])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_rows_of_plain_spark(scans: dict[str, DataFrame], kind: JoinKind, skew: str) -> None:
    """Several hot keys with quotes in them, hot on both sides, and NULLs."""
    node = join(kind, ("k", "s"))
    after = rewritten(node, context(("k", "s"), {0: 0.3, 1: 0.05}, {0: 0.02, 1: 0.3}, skew=skew, nulls=0.1))
    if after is None:
        assert (kind, skew) == (JoinKind.FULL, SALT)
    else:
        same(scans, node, after)


@pytest.mark.spark
@examples(max_examples=15)
@given(case=cases)
def test_any_key_gives_the_rows_of_plain_spark(scans: dict[str, DataFrame], case: Case) -> None:
    node = join(case.kind, case.names, case.residual)
    after = rewritten(node, context(case.names, case.left, case.right, skew=case.skew, nulls=0.4))
    if after is not None:
        same(scans, node, after)


def told_twice(skew: str) -> RuleContext:
    """Key 7, as text files have it: `007` is hot on the left, `7` on the right."""
    known = context(("k",), {0: 0.05}, {0: 0.05}, skew=skew)
    left = known.statistics.keys["l.k",]
    padded = tuple(key.model_copy(update={"value": "007"}) for key in left.hot_keys)
    keys = {**known.statistics.keys, ("l.k",): replace(left, hot_keys=padded)}
    return replace(known, statistics=replace(known.statistics, keys=keys))


@pytest.mark.parametrize("skew", [ISOLATE, SALT])
def test_a_value_of_two_spellings_is_one_key(skew: str) -> None:
    after = rewritten(join(JoinKind.INNER, ("k",)), told_twice(skew))
    assert isinstance(after, Union)
    assert len(after.inputs) == 2


@pytest.mark.spark
def test_a_key_that_is_named_for_both_sides_is_joined_once(scans: dict[str, DataFrame]) -> None:
    """The parts are disjoint whatever keys they name: here the same one, as two texts of one instant would."""
    node = join(JoinKind.INNER, ("k", "s"))
    seven = tuple(one for one in (literal(7, BIGINT), literal("", STRING)) if one is not None)
    parts = (
        HotPart((seven,), Side.LEFT),
        HotPart((seven,), Side.RIGHT, tasks=2),
        HotPart((seven,), Side.LEFT, salts=2),
    )
    same(scans, node, split_join(node, parts, ()))


@pytest.mark.spark
@pytest.mark.parametrize("kind", [JoinKind.LEFT_SEMI, JoinKind.LEFT_ANTI])
@pytest.mark.parametrize("names", [("k",), ("k", "s")])
def test_only_the_keys_of_a_side_are_broadcast(
    scans: dict[str, DataFrame], kind: JoinKind, names: tuple[str, ...]
) -> None:
    hot = tuple(one for one in (literal(7, BIGINT), literal("", STRING))[: len(names)] if one is not None)
    null = (NULL_LITERAL,) * len(names)
    node = join(kind, names)
    same(scans, node, split_join(node, (HotPart((hot, null), Side.LEFT, tasks=2, distinct=True),), ()))


@pytest.mark.spark
def test_spark_keeps_to_the_exchanges_of_salted_keys(scans: dict[str, DataFrame]) -> None:
    after = rewritten(join(JoinKind.INNER, ("k",)), context(("k",), {0: 0.3}, {0: 0.01}, skew=SALT))
    assert after is not None
    plan = physical_plan(lower(after, scans))
    assert plan.count("REPARTITION_BY_NUM") == 2
    assert "ENSURE_REQUIREMENTS" not in plan  # the rest is broadcast: these rows are few
