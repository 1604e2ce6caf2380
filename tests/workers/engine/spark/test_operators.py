"""Operators are read from the data of Spark's SQL page."""

from __future__ import annotations

from typing import Any

import pytest

from workers.engine.spark.monitor import amount, operators_of
from workers.engine.spark.status_store import MOST_OPERATORS, Execution


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("1,234,567", 1_234_567),
        ("-1", -1),
        ("1128.0 B", 1128),
        ("9.2 KiB", 9421),
        ("8.1 MiB", 8_493_466),
        ("2.0 TiB", 2 << 40),
        ("12 ms", 12),
        ("2.3 s", 2300),
        ("1.5 m", 90_000),
        ("1.50 h", 5_400_000),
        (
            "total (min, med, max (stageId: taskId))\n1871.8 KiB (625.0 KiB, 1246.8 KiB, 1.2 MiB (stage 5.0: task 9))",
            1916723,
        ),
        ("total (min, med, max (driver))\n7 ms (1 ms, 2 ms, 4 ms (driver))", 7),
        ("(min, med, max (stageId: taskId)):\n(1, 1, 1 (stage 3.0: task 4))", None),
        ("1.5", None),
        ("3 parsecs", None),
        ("", None),
        (None, None),
    ],
)
def test_amounts(text: str | None, value: int | None) -> None:
    assert amount(text) == value


def node(number: int, name: str, desc: str = "", **counts: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A node of a graph, and the values of its metrics, in whose names `_` stands for a blank."""
    metrics = [
        {"name": count.replace("_", " "), "accumulatorId": 100 * number + place, "metricType": "sum"}
        for place, count in enumerate(counts)
    ]
    values = {str(100 * number + place): value for place, value in enumerate(counts.values())}
    return {"id": number, "name": name, "desc": desc or name, "metrics": metrics}, values


def execution(
    *nodes: tuple[dict[str, Any], dict[str, str]], edges: list[tuple[int, int]], cut: bool = False
) -> Execution:
    values = {key: value for _, texts in nodes for key, value in texts.items()}
    return Execution(
        [one for one, _ in nodes], [{"fromId": child, "toId": parent} for child, parent in edges], values, cut
    )


def staged(total: str, stage: int) -> str:
    return f"total (min, med, max (stageId: taskId))\n{total} (1 ms, 1 ms, 1 ms (stage {stage}.0: task 7))"


FINAL = node(0, "AdaptiveSparkPlan", "AdaptiveSparkPlan isFinalPlan=true")


def test_operators_have_their_pipeline_and_the_stages_between_exchanges() -> None:
    cluster, took = node(2, "WholeStageCodegen (3)", duration="5 ms")
    inner, counted = node(3, "HashAggregate", number_of_output_rows="7", time_in_aggregation_build=staged("9 ms", 4))
    cluster["nodes"] = [inner]
    found = operators_of(
        execution(
            FINAL,
            node(1, "Execute InsertIntoHadoopFsRelationCommand", "Execute … /secret/path", number_of_output_rows="7"),
            (cluster, took | counted),
            node(
                4,
                "Exchange",
                shuffle_records_written="9",
                shuffle_bytes_written="1.0 KiB",
                fetch_wait_time=staged("8 ms", 4),
            ),
            node(
                5,
                "Scan parquet ",
                number_of_output_rows="60",
                scan_time=staged("3 ms", 2),
                size_of_files_read="2.0 KiB",
            ),
            edges=[(1, 0), (3, 1), (4, 3), (5, 4)],
        )
    )
    assert [(each.id, each.operator, each.inputs) for each in found] == [
        (1, "Execute InsertIntoHadoopFsRelationCommand", (3,)),
        (3, "HashAggregate", (4,)),
        (4, "Exchange", (5,)),
        (5, "Scan parquet", ()),
    ]
    write, aggregate, exchange, scan = found
    assert (write.detail, write.stage_ids) == ("", (4,))
    assert (aggregate.rows, aggregate.bytes, aggregate.time_ms) == (7, None, 9)
    assert (aggregate.pipeline, aggregate.pipeline_ms) == (3, 5)
    # It sends rows where its input runs; waiting for them is a stage later.
    assert (exchange.rows, exchange.bytes, exchange.time_ms, exchange.stage_ids) == (9, 1024, None, (2,))
    assert (scan.rows, scan.bytes, scan.time_ms, scan.stage_ids, scan.pipeline) == (60, 2048, 3, (2,), None)


def test_a_plan_that_was_not_final_has_no_operators() -> None:
    first = node(0, "AdaptiveSparkPlan", "AdaptiveSparkPlan isFinalPlan=false")
    assert operators_of(execution(first, node(1, "Scan parquet", number_of_output_rows="5"), edges=[(1, 0)])) == ()


def test_rows_that_are_counted_twice_are_left_out() -> None:
    found = operators_of(
        execution(
            node(1, "Sort"),
            node(2, "Exchange", "Exchange rangepartitioning(n#1 ASC, 4)", shuffle_records_written="3"),
            node(3, "HashAggregate", number_of_output_rows="6"),
            node(4, "Exchange", "Exchange hashpartitioning(k#1, 4)", shuffle_records_written="40"),
            node(5, "Scan parquet", number_of_output_rows="50"),
            edges=[(2, 1), (3, 2), (4, 3), (5, 4)],
        )
    )
    assert [each.rows for each in found] == [None, 3, None, 40, 50]


@pytest.mark.not_quick
def test_the_number_of_operators_is_limited() -> None:
    count = MOST_OPERATORS + 5
    nodes = [node(number, "Project") for number in range(count)]
    found = operators_of(execution(*nodes, edges=[(number + 1, number) for number in range(count - 1)], cut=True))
    assert len(found) == MOST_OPERATORS
    assert found[-1].inputs == ()
