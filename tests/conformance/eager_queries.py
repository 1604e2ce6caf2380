"""Random queries over two small tables, and the rows of these, for `test_eager_aggregation.py`."""

from __future__ import annotations

import math
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

from hypothesis import strategies as st

from service.sql.types.data_types import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TINYINT,
    Field,
    Schema,
    decimal,
)

Json = dict[str, Any]

SCHEMA = Schema(
    (
        Field("k", INT),
        Field("t", STRING),
        Field("x", DOUBLE),
        Field("i", INT),
        Field("b", BIGINT),
        Field("m", decimal(10, 2)),
        Field("w", decimal(20, 6)),
        Field("f", FLOAT),
        Field("q", BOOLEAN),
        Field("d", DATE),
        Field("id", BIGINT),
    )
)


def rows(count: int, seed: int) -> list[tuple[Any, ...]]:
    """Returns rows with few keys, some NULL; NaN, both zeros and infinity; decimals of full precision; accents and
    case.
    """
    random = Random(seed)

    def maybe(value: Any) -> Any:
        return None if random.random() < 0.2 else value

    return [
        (
            maybe(random.randint(0, 4)),
            maybe(random.choice(["a", "A", "ä", "", "b c"])),
            maybe(random.choice([0.0, -0.0, math.nan, math.inf, 1.5, -2.25, 3.75])),
            maybe(random.randint(1, 9) * random.choice([1, -1])),
            maybe(random.choice([2**40, -(2**40), 7, -1, 2**50, -(2**50) + 1])),
            maybe(Decimal(random.choice([-9999999999, 9999999999, 5, 0, -125])) / 100),
            maybe(Decimal(random.choice([10**20 - 1, -(10**20) + 1, 3])) / 1_000_000),
            maybe(random.choice([0.0, -0.0, 0.5, -1.25])),
            maybe(random.random() < 0.5),
            maybe(date(2013, 1, random.randint(1, 3))),
            number,
        )
        for number in range(count)
    ]


def call(function: str, argument: str | None, where: str | None = None, distinct: bool = False) -> Json:
    """Returns an aggregate of a query, without its name."""
    ordered = function.endswith("VALUE")
    side = (argument or "l.id").split(".")[0][-1]
    return {
        "function": function,
        "arguments": [] if argument is None else [argument],
        "filter": where,
        "distinct": distinct,
        "order_by": f"{side}.id" if ordered else None,
    }


COLUMNS = ("k", "t", "x", "i", "b", "m", "w", "f", "q", "d")
SUMMABLE = ("x", "i", "b", "m", "f", "w")
EXPRESSIONS = ("1", "{0}.i + 1", "{0}.m * 2", "coalesce({0}.i, 7)", "{0}.x * 2", "10 / {0}.i", "{0}.m * (1 - {0}.m)")
PRODUCTS = (
    "l.i * r.i",
    "r.x * l.i",
    "l.m * r.m",
    "(l.x * 2) * r.x",
    "coalesce(l.i, 7) * r.m",
    "r.f * l.x",
    "l.i * coalesce(r.i, 7)",
    "l.m * r.w",
)
FURTHER = ("SUM v.i", "COUNT v.t", "SUM l.i * v.i", "SUM l.m * v.m", "MAX v.d", "SUM v.b")
KINDS = ("inner", "left", "right", "left_semi", "left_anti")
WHERES = (None, None, "l.i > 0", "r.t = 'a'", "l.i > r.i", "r.i IS NULL", "l.q AND r.i < 5", "coalesce(r.i, 1) > 0")
FILTERS = (None, None, "l.q", "r.q", "r.i IS NULL", "l.i < r.i", "r.t = 'a' OR r.i > 0", "10 / (l.k + 1) > 1")
RESIDUALS = (None, None, None, "l.i < r.i", "l.q", "r.d > '2013-01-01'", "r.i + l.i > 0 AND r.t <> 'a'")
GROUPS: tuple[list[str], ...] = (
    [],
    ["l.k"],
    ["l.k"],
    ["r.k"],
    ["l.t"],
    ["r.t"],
    ["l.x"],
    ["l.t", "r.q"],
    ["upper(l.t)"],
    ["r.d", "l.k", "r.k"],
    ["l.k", "l.t"],
    ["l.i % 3"],
)
ONS = (["k"], ["k"], ["k", "t"], ["x"], ["t"])


def one_sided(texts: tuple[str | None, ...]) -> list[str | None]:
    return [text for text in texts if text is None or "r." not in text]


def joined_further(kind: str, name: str) -> Json:
    """Returns the second join of a chain, with the left table's key."""
    right = {"kind": "table", "table": "few", "alias": "v"}
    return {"kind": kind, "right": right, "on": [{"left": f"l.{name}", "right": f"v.{name}"}]}


@st.composite
def queries(draw: st.DrawFn, kind: str) -> Json:
    """Draws an aggregate over a join of this kind, sometimes with a second join above it."""
    both = kind in {"inner", "left", "right"}
    sides = ("l", "r") if both else ("l",)

    def conditions(texts: tuple[str | None, ...]) -> st.SearchStrategy[str | None]:
        return st.sampled_from(list(texts) if both else one_sided(texts))

    def arguments(columns: tuple[str, ...]) -> st.SearchStrategy[str]:
        bare = [f"{side}.{name}" for side in sides for name in columns]
        return st.sampled_from(bare * 2 + [text.format(side) for side in sides for text in EXPRESSIONS])

    aggregates = []
    for _ in range(draw(st.integers(1, 4))):
        function = draw(st.sampled_from(["COUNT", "SUM", "AVG", "MIN", "MAX", "SUM", "FIRST_VALUE", "COUNT"]))
        ordered = function == "FIRST_VALUE"
        columns = COLUMNS if function not in {"SUM", "AVG"} else SUMMABLE if function == "SUM" else SUMMABLE[:-1]
        bare = st.sampled_from([f"{side}.{name}" for side in sides for name in columns])
        argument = draw(bare if ordered else arguments(columns))
        if both and function == "SUM" and draw(st.booleans()):
            argument = draw(st.sampled_from(PRODUCTS))
        distinct = not ordered and draw(st.sampled_from([False] * 5 + [True]))
        made = call(function, argument, draw(conditions(FILTERS)), distinct=distinct)
        aggregates.append(made)
    if draw(st.booleans()):
        aggregates.append(call("COUNT", None, draw(conditions(FILTERS))))
    further = draw(st.sampled_from([None, None, "inner", "left", "right", "left_semi"]))
    if further not in {None, "left_semi"}:
        function, _, argument = draw(st.sampled_from(FURTHER)).partition(" ")
        aggregates.append(call(function, argument))
    groups = [group for group in GROUPS if both or not any("r." in text for text in group)]
    on = draw(st.sampled_from(ONS))
    return {
        "source": {"kind": "table", "table": draw(st.sampled_from(["many", "many", "few", "empty"])), "alias": "l"},
        "joins": [
            {
                "kind": kind,
                "right": {
                    "kind": "table",
                    "table": draw(st.sampled_from(["few", "many", "few", "empty"])),
                    "alias": "r",
                },
                "on": [{"left": f"l.{name}", "right": f"r.{name}"} for name in on],
                "residual": draw(st.sampled_from(RESIDUALS)),
            },
            *(() if further is None else (joined_further(further, draw(st.sampled_from(["k", "t"]))),)),
        ],
        "where": draw(conditions(WHERES)),
        "group_by": [{"expression": text, "name": f"g{n}"} for n, text in enumerate(draw(st.sampled_from(groups)))],
        "aggregates": [{**made, "name": f"x{n}"} for n, made in enumerate(aggregates)],
    }


PRODUCT_SCHEMA = Schema(
    (
        Field("k", INT),
        Field("x", DOUBLE),
        Field("y", DOUBLE),
        Field("i", INT),
        Field("s", TINYINT),
        Field("b", BIGINT),
        Field("m", decimal(10, 2)),
        Field("f", FLOAT),
        Field("q", BOOLEAN),
    )
)
SUMS_OF_PRODUCTS = (
    ("l.x * r.x", None),
    ("l.x * r.x", "l.q"),
    ("r.x * l.i", None),
    ("l.f * (r.x * 2)", "l.i > r.i"),
    ("l.y * r.y", None),
    ("l.i * r.i", None),
    ("l.s * r.s", "r.q"),
    ("l.b * r.b", None),
    ("r.b * l.i", "l.q AND r.q"),
    ("l.m * r.m", None),
    ("r.m * (1 - l.m)", "l.q"),
)


def factors(side: str, seed: int, keys: int) -> list[tuple[Any, ...]]:
    """None to three rows of each of many keys, each key with a case of its own: of DOUBLEs that are not finite in `x`
    and whose sums are not in `y`, and of integers whose products nearly overflow.
    """
    random = Random(f"{side}{seed}")
    left = side == "l"

    def maybe(*values: Any) -> Any:
        return None if random.random() < 0.15 else random.choice(values)

    return [
        (
            key,
            maybe(0.0, -0.0, math.nan, math.inf, -math.inf, 1.5, 1.5, -2.25, -2.25, 3.75),
            maybe(1.7e308, 1e308, 5.0) if left else maybe(1e-10, 5e-4, 0.0),
            maybe(46340, -46340, 0, 1, -1),
            maybe(11, -11, 0, 7),
            maybe(10**9, -(10**9), 2**53 + 1, 7) if left else maybe(100, -100, 1, 0),
            maybe(Decimal("99999999.99"), Decimal("-99999999.99"), Decimal("0.01"), Decimal(0)),
            maybe(0.5, -0.0, 1.25, math.inf),
            maybe(True, True, False),
        )
        for key in range(keys)
        for _ in range(random.choice((0, 1, 1, 2, 3)))
    ]
