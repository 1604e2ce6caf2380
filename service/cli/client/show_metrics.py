"""What a run measured, for people; first of all whether it was skewed, and what to change."""

from __future__ import annotations

from collections.abc import Iterator

from service.cli.amounts import amount, size
from service.cli.client.answers import EstimateError, RunMetrics, RunSavings
from service.cli.client.output import Output
from service.spec.reports import Quantiles, SkewReport

_KEYS_SHOWN = 5


def show_metrics(output: Output, metrics: RunMetrics, saved: RunSavings) -> None:
    """The stages of a run, its estimates, and its skew."""
    took = f"planning {_seconds(metrics.planning_ms)}, running {_seconds(metrics.execution_ms)}"
    rows = "" if metrics.result_rows is None else f"{metrics.result_rows:,}"
    output.pairs((("took", took), ("result rows", rows)))
    output.heading("Stages")
    output.table(
        ("stage", "tasks", "took", "read", "shuffled", "spilled", "task median", "task max"),
        [
            (
                stage.stage_id,
                f"{stage.tasks:,}" + (f" ({stage.failed_tasks} failed)" if stage.failed_tasks else ""),
                _seconds(stage.wall_ms),
                size(stage.input_bytes + stage.shuffle_read_bytes),
                f"{stage.shuffle_write_rows:,} rows" if stage.shuffle_write_rows else "",
                size(stage.spilled_bytes) if stage.spilled_bytes else "",
                *_median_and_max(stage.duration_ms),
            )
            for stage in metrics.stages
        ],
        numbers=("stage", "tasks", "took", "read", "shuffled", "spilled", "task median", "task max"),
        indent=2,
    )
    if metrics.estimates is not None:
        output.heading("Estimates")
        output.say(metrics.estimates.summary)
        for wrong in metrics.estimates.wrong:
            output.say(_wrong(wrong), "yellow")
    output.heading("Skew")
    show_skew(output, metrics.skew, saved)


def show_skew(output: Output, skew: SkewReport, saved: RunSavings) -> None:
    """Is it skewed, what is to be done, by which keys, what did it cost, and what would be saved."""
    verdict = "Skewed" if skew.skewed else "Not skewed"
    if skew.lost_ms:
        verdict += f", {_seconds(skew.lost_ms)} lost"
    output.say(verdict, "bold red" if skew.skewed else "green")
    output.say(skew.advice)
    if skew.setting is not None and skew.value is not None:
        output.say(f"Submit it again with  --set {skew.setting}={skew.value}", "bold")
    for line in _saved(saved):
        output.say(line)
    keys = list(_hot_keys(skew))
    if keys:
        output.say()
        output.table(("hot key", "as", "value", "share", "rows, about"), keys, numbers=("share", "rows, about"))
    if skew.stages:
        output.say()
        output.table(
            ("stage", "max / median", "slowest task", "median task", "of the stage", "lost"),
            [
                (
                    stage.stage_id,
                    f"{stage.max_over_median:.1f}x",
                    _seconds(stage.slowest_task_ms),
                    _seconds(stage.median_task_ms),
                    f"{stage.stage_impact:.0%}",
                    _seconds(stage.lost_ms),
                )
                for stage in skew.stages
            ],
            numbers=("stage", "max / median", "slowest task", "median task", "of the stage", "lost"),
        )


def _wrong(wrong: EstimateError) -> str:
    number = "" if wrong.node_id is None else f" of #{wrong.node_id}"
    node = "" if wrong.node is None else f"{number} {wrong.node}"
    rule = "" if wrong.rule is None else f", estimated by {wrong.rule}"
    is_high = wrong.estimated > wrong.measured
    # Of one operator among several, the measurements only say how many rows were possible.
    found = f"at most {wrong.measured:,} possible" if wrong.rule and is_high else f"{wrong.measured:,} measured"
    return (
        f"The estimate was wrong: {wrong.quantity.replace('_', ' ')}{node}{rule}: {wrong.estimated:,} estimated, "
        f"{found}, {wrong.factor:,.0f} times too {'high' if is_high else 'low'}."
    )


def _saved(saved: RunSavings) -> Iterator[str]:
    simulated, beside = saved.savings.simulated, saved.comparison
    if simulated is not None and simulated.as_is_ms > simulated.even_ms:
        slots, as_is, even = simulated.slots, _seconds(simulated.as_is_ms), _seconds(simulated.even_ms)
        yield f"On {amount(slots, 'slot')} its stages take {as_is}, and {even} with even tasks."
    if beside is not None and beside.before_ms is not None and beside.after_ms is not None:
        yield f"It ran for {_seconds(beside.after_ms)}, {beside.job_id} for {_seconds(beside.before_ms)}."


def _hot_keys(skew: SkewReport) -> Iterator[tuple[str, str, str, str, str]]:
    for key in skew.keys:
        for hot in key.hot_keys[:_KEYS_SHOWN]:
            yield ", ".join(key.columns), key.role, hot.value, f"{hot.share:.1%}", f"{hot.estimated_rows:,}"


def _median_and_max(quantiles: Quantiles | None) -> tuple[str, str]:
    return ("", "") if quantiles is None else (_seconds(quantiles.median), _seconds(quantiles.max))


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:,.2f} s"
