"""Golden plans: one case a file, `tests/golden/<rule>/<case>.yaml`.

A file has two documents. The first is written by hand (`Given`): a query, its tables, what is known of them, the
settings. The second is what the planner makes of it (`Expected`): the plan before and after, and what the rule of the
folder did and why. The second is written by

    python tests/golden/test_golden.py            # every case
    python tests/golden/test_golden.py PATH…      # these

and is to be read before it is committed: it is the change that the commit makes. Unknown keys fail.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, ConfigDict, Field

from service.contract.options import JobSettings
from service.contract.reports import HotKey, RuleOutcome, RuleTrace
from service.sql.ddl import parse_schema
from service.sql.expressions.scalar import Scalar
from service.sql.resolve.bound import BoundQuery
from service.sql.types.data_types import INT, DataType
from tests.support.compiled import compiled
from workers.engine.plan.builder import build
from workers.engine.plan.explain import text_of
from workers.engine.plan.expressions import literal
from workers.engine.plan.nodes import Scan, output_of
from workers.engine.plan.traversal import walk_up
from workers.engine.planner import Plan, plan_query
from workers.engine.rules.rulebook import RULES
from workers.engine.statistics.cardinality import conditions_of, terms_by_table
from workers.engine.statistics.model import KeyOrder, KeySketch, OrderedKey, Statistics, TableSize, ValueRange

FOLDER = Path(__file__).parent
CASES = sorted(path.relative_to(FOLDER) for path in FOLDER.glob("*/*.yaml"))
BREAK = "\n---\n"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GivenTable(Strict):
    """`columns` is DDL; without sizes nothing is known of the table."""

    columns: str
    rows: int | None = None
    bytes: int = 0
    files: int = 1


class GivenKey(Strict):
    """Known of one key: its distinct values in the whole table, its frequent ones with their share of the rows (several
    columns' separated by `, `), and the share of those that have a NULL in them.
    """

    distinct: int
    hot: dict[str, float] = Field(default_factory=dict)
    nulls: float = 0.0


class Given(Strict):
    """The first document. Tables stand under their aliases; keys, and ranges of integers, under emitted
    columns: `o.uid, o.day`. Orders stand under the columns of a key and an INT column to order by, `o.uid, o.day`: for
    each hot key, the boundaries of its ranges. `shares` has the share of its rows that conditions on a table leave.
    """

    about: str
    tables: dict[str, GivenTable]
    sql: str
    settings: dict[str, Any] = Field(default_factory=dict)
    slots: int = 16
    keys: dict[str, GivenKey] = Field(default_factory=dict)
    ranges: dict[str, tuple[int, int]] = Field(default_factory=dict)
    widths: dict[str, float] = Field(default_factory=dict)
    shares: dict[str, float] = Field(default_factory=dict)
    orders: dict[str, dict[str, list[int]]] = Field(default_factory=dict)


class ExpectedAlternative(Strict):
    cost: float
    shuffled: int
    hottest_task: int
    chosen: bool


class ExpectedTrace(Strict):
    outcome: RuleOutcome
    node: str
    reason: str
    alternatives: dict[str, ExpectedAlternative] = Field(default_factory=dict)


class Expected(Strict):
    """The second document. `after` is `unchanged` where it is; `did` is the trace of the folder's rule."""

    before: str
    after: str
    did: tuple[ExpectedTrace, ...]


def read(path: Path) -> tuple[Given, Expected | None]:
    given, _, expected = (FOLDER / path).read_text(encoding="utf-8").partition(BREAK)
    return (
        Given.model_validate(yaml.safe_load(given)),
        Expected.model_validate(yaml.safe_load(expected)) if expected.strip() else None,
    )


def bound(given: Given) -> BoundQuery:
    return compiled({name: table.columns for name, table in given.tables.items()}, given.sql, name="golden")


def statistics(given: Given) -> Statistics:
    sizes = {
        name: TableSize(name, table.files, table.bytes, table.rows, True)
        for name, table in given.tables.items()
        if table.rows is not None
    }
    keys = {}
    for name, key in given.keys.items():
        columns = tuple(part.strip() for part in name.split(","))
        alias = columns[0].split(".")[0]
        rows = sizes[alias].rows
        hot = tuple(
            HotKey(value=value, share=share, estimated_rows=round(share * rows)) for value, share in key.hot.items()
        )
        types = _types(alias, given)
        literals = tuple(_literals(value, [types[column.split(".")[1]] for column in columns]) for value in key.hot)
        sampled = min(rows, 64_000)
        keys[columns] = KeySketch(alias, columns, sampled, key.distinct, key.nulls, hot, literals=literals)
    ranges = {name: ValueRange(low, high) for name, (low, high) in given.ranges.items()}
    orders = dict(_order(name, known, given) for name, known in given.orders.items())
    plan = build(bound(given))
    alias_of = {field.name: scan.alias for scan in walk_up(plan) if isinstance(scan, Scan) for field, _ in scan.columns}
    shares = {
        condition.sql: {
            alias: given.shares[alias] for alias in terms_by_table(condition, alias_of)[0].keys() & given.shares
        }
        for condition in conditions_of(plan)
    }
    return Statistics(sizes, keys, given.slots, ranges=ranges, widths=given.widths, orders=orders, table_shares=shares)


def _order(name: str, known: dict[str, list[int]], given: Given) -> tuple[KeyOrder, tuple[OrderedKey, ...]]:
    *columns, order = (part.strip() for part in name.split(","))
    types = _types(order.split(".")[0], given)
    found = (
        OrderedKey(
            _literals(value, [types[column.split(".")[1]] for column in columns]) or () if columns else (),
            _literals(", ".join(map(str, boundaries)), [INT] * len(boundaries)) or (),
            1 / (len(boundaries) + 1),
        )
        for value, boundaries in known.items()
    )
    return (tuple(columns), order), tuple(found)


def _types(alias: str, given: Given) -> dict[str, DataType]:
    return {field.name: field.type for field in parse_schema(given.tables[alias].columns, "/").fields}


def _literals(value: str, types: list[DataType]) -> tuple[Scalar, ...] | None:
    found = [literal(part, type_) for part, type_ in zip(value.split(", "), types, strict=True)]
    known = tuple(one for one in found if one is not None)
    return known if len(known) == len(found) else None


def planned(given: Given) -> Plan:
    return plan_query(bound(given), statistics(given), JobSettings.model_validate(given.settings))


def expected_of(plan: Plan, rule: str) -> Expected:
    after = "unchanged" if plan.after == plan.before else text_of(plan.after)
    did = tuple(_expected_trace(trace) for trace in plan.trace if trace.rule == rule)
    return Expected(before=text_of(plan.before), after=after, did=did)


def _expected_trace(trace: RuleTrace) -> ExpectedTrace:
    alternatives = {
        way.name: ExpectedAlternative(
            cost=way.cost, shuffled=way.rows_shuffled, hottest_task=way.rows_on_hottest_task, chosen=way.chosen
        )
        for way in trace.alternatives
    }
    return ExpectedTrace(outcome=trace.outcome, node=trace.node, reason=trace.reason, alternatives=alternatives)


@pytest.mark.parametrize("path", CASES, ids=str)
def test_the_plan_is_the_golden_one(path: Path) -> None:
    given, expected = read(path)
    plan = planned(given)
    assert expected_of(plan, path.parent.name) == expected
    assert output_of(plan.before) == bound(given).output.fields


def test_every_folder_is_a_rule_of_the_rulebook() -> None:
    folders = {path.name for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders == {rule.name for rule in RULES}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_cases_of_a_rule_show_it_fire_and_skip(rule: Any) -> None:
    traces = [expected.did for _, expected in map(read, CASES_OF[rule.name]) if expected]
    outcomes = {trace.outcome for did in traces for trace in did}
    assert outcomes == {RuleOutcome.FIRED, RuleOutcome.SKIPPED}


CASES_OF = {rule.name: [path for path in CASES if path.parent.name == rule.name] for rule in RULES}


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, in full width."""


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _text)


def update(path: Path) -> None:
    """Writes the second document of a case anew; the first stays as it was typed."""
    whole = FOLDER / path
    given_text = whole.read_text(encoding="utf-8").partition(BREAK)[0].rstrip("\n")
    given = Given.model_validate(yaml.safe_load(given_text))
    expected = expected_of(planned(given), path.parent.name).model_dump(mode="json", exclude_defaults=True)
    text = yaml.dump(expected, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    whole.write_text(f"{given_text}{BREAK}{text}", encoding="utf-8")


if __name__ == "__main__":
    for case in [Path(argument).absolute().relative_to(FOLDER) for argument in sys.argv[1:]] or CASES:
        update(case)
