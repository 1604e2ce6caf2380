"""What the demo reads of the service's answers, over the same client as the commands: the reports, and rows as pandas
has them.

What the demo shows: live in a terminal, line by line elsewhere.

The course of the demo: a service of its own, the tables, the jobs, the checks, and everything stopped again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table

from service.cli.demo.data import JOBS, STUCK_TRANSPONDER, Comparison, DemoJob, compare, land
from service.cli.maintenance import upgrade_database
from service.cli.processes import Stack
from service.cli.start import READY_SECONDS
from service.cli.startup import isolate, listen, locked, prepare_directories, read_settings, temporary_state_dir
from service.client.connection import Connection
from service.client.operations import ARROW, Service
from service.client.responses import Job, read
from service.client.terminal import CliError, ExitCode, StopSignals
from service.client.waiting import follow, shown_progress
from service.contract.enums import JobStatus
from service.contract.options import canonical_settings
from service.contract.reports import MetricsReport, PlanReport, RuleOutcome, SkewReport

# pandas turns whole numbers with gaps into floats unless told not to.
_WHOLE_NUMBERS = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}


def explained(service: Service, spec: Mapping[str, Any]) -> PlanReport:
    """The plan of a job that is not run. Raises CliError, as all of these do."""
    return read(PlanReport, service.explain(spec))


def plan_of(service: Service, job_id: str) -> PlanReport:
    """How a job was planned."""
    return read(PlanReport, service.plan(job_id))


def metrics_of(service: Service, job_id: str) -> MetricsReport:
    """What was measured while a job ran."""
    return read(MetricsReport, service.metrics(job_id))


def result_of(service: Service, job_id: str) -> pd.DataFrame:
    """All rows of a job's result, in its order."""
    with service.result(job_id, ARROW) as answer, pa.ipc.open_stream(answer.read()) as reader:
        frame: pd.DataFrame = reader.read_all().to_pandas(types_mapper=_WHOLE_NUMBERS.get)
    return frame


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


_WIDTH_OF_LOGS = 120
_WAIT_SECONDS = 1  # so often, processes that died are noticed
_EXPLAIN_SECONDS = 120  # the first thing to be explained waits for Spark to start


def run_demo(state_dir: Path | None, *, keep: bool, reports: int) -> None:
    """Runs all of it. Raises CliError where anything does not come out as it should."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_OF_LOGS
    view = View(console)
    began = time.monotonic()
    with _directory(state_dir, keep) as directory, StopSignals() as signals:
        # What the user has configured for a service that is in earnest is none of the demo's business.
        os.environ.setdefault("EVENKEEL_WORKER_DRAIN_SECONDS", "0")
        isolated = {**isolate(os.environ, directory), "EVENKEEL_API_EXPLAIN_TIMEOUT_SECONDS": str(_EXPLAIN_SECONDS)}
        os.environ.clear()
        os.environ.update(isolated)
        settings = read_settings()
        prepare_directories(settings)
        with locked(settings.state_dir), listen(settings) as listener:
            upgrade_database(settings)
            stack = Stack(settings, listener, isolated)
            try:
                stack.start()
                view.say(f"Starting Evenkeel at {stack.address}, state in {directory}")
                _land(view, settings.data_roots[0], reports)
                stack.wait_until_ready(READY_SECONDS, lambda part: view.say(f"Waiting for {part}"))
                with Connection(stack.address) as connection:
                    _Course(view, stack, Service(connection), settings.data_roots[0]).run()
            finally:
                stack.stop(lambda: signals.hurried)
    view.heading("Done")
    view.say(f"Every number agrees with pandas. It took {time.monotonic() - began:.0f} s; nothing is left running.")
    if keep or state_dir is not None:
        view.say(f"Data, database, results and logs are in {directory}")


class _Course:
    """The jobs, one after the other."""

    def __init__(self, view: View, stack: Stack, service: Service, root: Path) -> None:
        self._view = view
        self._stack = stack
        self._service = service
        self._root = root

    def run(self) -> None:
        """Explains one job, runs all of them, and the skewed one again as its report advises."""
        self._view.heading(f"Explain, without running: {STUCK_TRANSPONDER.title}")
        self._view.plan(explained(self._service, STUCK_TRANSPONDER.spec()))
        for number, job in enumerate(JOBS, start=1):
            self._view.job(number, job)
            metrics = self._run(job, job.spec())
            if job is STUCK_TRANSPONDER:
                self._run_as_advised(job, metrics)

    def _run_as_advised(self, job: DemoJob, before: MetricsReport) -> None:
        skew = before.skew
        if not any(key.hot_keys for key in skew.keys):
            raise CliError(f"the skew report of {job.title!r} names no hot key, and nine of ten rows have the same one")
        settings = advised_settings(job.settings, skew)
        if settings is None:
            return
        self._view.heading(f"Once more, as advised: {skew.setting} = {skew.value}")
        after = self._run(job, job.spec(settings))
        self._view.say(
            f"Run time {before.execution_ms / 1000:.2f} s -> {after.execution_ms / 1000:.2f} s; rows shuffled "
            f"{_shuffled(before):,} -> {_shuffled(after):,}"
        )

    def _run(self, job: DemoJob, spec: Mapping[str, Any]) -> MetricsReport:
        began = time.monotonic()
        document, _ = self._service.submit(spec)
        job_id = read(Job, document).id
        with self._view.progress() as show:

            def see(current: Job) -> None:
                self._stack.look_after(self._view.say)
                show(current)

            ended = read(Job, follow(self._service, job_id, see, wait_seconds=_WAIT_SECONDS))
        if ended.status != JobStatus.SUCCEEDED:
            reason = ended.error.detail if ended.error else "no reason was given"
            raise CliError(
                f"the job {job.title!r} ended {ended.status}: {reason}",
                f"Run it again with --keep, then see {self._stack.log_of('worker')}",
            )
        metrics = metrics_of(self._service, job_id)
        self._view.say(
            f"SUCCEEDED in {time.monotonic() - began:.2f} s "
            f"(planning {metrics.planning_ms / 1000:.2f} s, running {metrics.execution_ms / 1000:.2f} s)"
        )
        result = result_of(self._service, job_id)
        self._view.result(result)
        comparison = compare(result, job.expected(self._root), job.key)
        if comparison.differences:
            raise CliError(f"{job.title}: pandas disagrees: {'; '.join(comparison.differences)}")
        self._view.comparison(comparison)
        self._view.rules(plan_of(self._service, job_id))
        self._view.skew(metrics)
        return metrics


def advised_settings(settings: Mapping[str, Any], skew: SkewReport) -> dict[str, Any] | None:
    """`settings` with the one that the skew report advises; None where it advises none."""
    if skew.setting is None or skew.value is None:
        return None
    merged = canonical_settings(settings)
    for name, value in canonical_settings({skew.setting: skew.value}).items():
        merged[name] = {**merged.get(name, {}), **value} if isinstance(value, dict) else value
    return merged


def _land(view: View, root: Path, reports: int) -> None:
    began = time.monotonic()
    landed = land(root, reports)
    for table in landed:
        view.say(f"  {table.name:<9}{table.rows:>10,} rows  {table.files:>2} files  {table.bytes / 1e6:>6.1f} MB")
    view.say(f"Landed as Parquet in {time.monotonic() - began:.1f} s below {root}")


def _shuffled(metrics: MetricsReport) -> int:
    return sum(stage.shuffle_write_rows for stage in metrics.stages)


@contextmanager
def _directory(given: Path | None, keep: bool) -> Iterator[Path]:
    """The directory to work in: the given one, which must be empty, or a temporary one, removed at the end."""
    if given is not None:
        directory = given.expanduser().absolute()
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise CliError(f"{directory} is not an empty directory", "Name a new one.", code=ExitCode.USAGE)
        yield directory
        return
    with temporary_state_dir(keep=keep) as directory:
        yield directory
