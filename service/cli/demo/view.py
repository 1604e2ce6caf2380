"""What the demo shows: live in a terminal, line by line elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table

from service.cli.client.answers import Job
from service.cli.client.progress import shown_progress
from service.cli.demo.jobs import Comparison, DemoJob
from service.spec.reports import MetricsReport, PlanReport, RuleOutcome, SkewReport

_ROWS_SHOWN = 5
_KEYS_SHOWN = 3
_MARKS = {RuleOutcome.FIRED: "[green]fired  [/]", RuleOutcome.SKIPPED: "[yellow]skipped[/]"}


class View:
    """Writes to one console."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, text: str) -> None:
        """A line."""
        self.console.print(text, markup=False)

    def heading(self, text: str) -> None:
        """The start of a part."""
        self.console.print()
        self.console.rule(f"[bold]{escape(text)}", align="left")

    def job(self, number: int, job: DemoJob) -> None:
        """What is about to be submitted."""
        self.heading(f"Job {number}: {job.title}")
        self.say(job.about)
        self._indented(Syntax(job.sql, "sql", theme="ansi_dark", background_color="default", word_wrap=True))
        if job.settings:
            self.say(f"  settings: {dict(job.settings)}")

    @contextmanager
    def progress(self) -> Iterator[Callable[[Job], None]]:
        """While entered, shows the job that is handed to the given function as it stands."""
        with shown_progress(self.console, self.say) as see:
            yield see

    def result(self, frame: pd.DataFrame) -> None:
        """The first rows."""
        table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0))
        for name, kind in frame.dtypes.items():
            table.add_column(str(name), justify="right" if pd.api.types.is_numeric_dtype(kind) else "left")
        for row in frame.head(_ROWS_SHOWN).itertuples(index=False):
            table.add_row(*(_cell(value) for value in row))
        if len(frame) > _ROWS_SHOWN:
            table.add_row(f"… {len(frame) - _ROWS_SHOWN} more")
        self._indented(table)

    def comparison(self, comparison: Comparison) -> None:
        """The verdict of pandas, which is good."""
        self.console.print(f"[green]equal to pandas[/] in all {comparison.values:,} values")

    def rules(self, plan: PlanReport) -> None:
        """Which rules fired, which did not, and why."""
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for trace in plan.rules:
            table.add_row(_MARKS[trace.outcome], trace.rule, escape(trace.reason))
        self.say("Rules:")
        self._indented(table)

    def plan(self, plan: PlanReport) -> None:
        """The plan after the rules, as text."""
        self._indented(plan.after.text.rstrip(), markup=False)

    def skew(self, metrics: MetricsReport) -> None:
        """Whether the job was skewed, by which keys, what it cost, and what would change it."""
        skew = metrics.skew
        verdict = "[bold red]skewed[/]" if skew.skewed else "[green]not skewed[/]"
        self.console.print(f"Skew: {verdict}; {escape(skew.advice)}")
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for line in _skew_lines(skew):
            table.add_row(*(escape(cell) for cell in line))
        if table.row_count:
            self._indented(table)

    def _indented(self, what: str | Table | Syntax, *, markup: bool = True) -> None:
        self.console.print(Padding(what if not isinstance(what, str) or markup else escape(what), (0, 0, 0, 2)))


def _skew_lines(skew: SkewReport) -> Iterator[tuple[str, str, str]]:
    for key in skew.keys:
        for hot in key.hot_keys[:_KEYS_SHOWN]:
            name = ", ".join(key.columns)
            yield (
                f"hot {key.role}",
                f"{name} = {hot.value}",
                f"{hot.share:.1%} of the rows, about {hot.estimated_rows:,}",
            )
    for stage in skew.stages:
        yield (
            f"stage {stage.stage_id}",
            f"slowest task {stage.max_over_median:.1f}x the median",
            f"{stage.slowest_task_ms / 1000:.2f} s against {stage.median_task_ms / 1000:.2f} s; "
            f"{stage.lost_ms / 1000:.2f} s lost",
        )


def _cell(value: object) -> str:
    if pd.isna(value):  # type: ignore[call-overload]
        return "NULL"
    if isinstance(value, float):
        return f"{value:,.3f}"
    return f"{value:,}" if isinstance(value, Integral) else escape(str(value))
