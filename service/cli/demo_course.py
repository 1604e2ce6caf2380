"""Runs the demo: starts a separate service, writes the tables, runs the jobs, checks their results, and stops it.

The output is printed by the functions that the commands use for plans, skew and progress.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from service.cli.connection import Connection, read
from service.cli.database import upgrade_database
from service.cli.demo_data import JOBS, STUCK_TRANSPONDER, DemoJob, compare, write_tables
from service.cli.display import show_rules, show_skew
from service.cli.operations import Service
from service.cli.preparation import isolate, listen, locked, prepare_directories, read_settings, temporary_state_dir
from service.cli.processes import READY_SECONDS, WORKER, Stack
from service.cli.session import Output
from service.cli.terminal import CliError, ExitCode, StopSignals, program
from service.cli.waiting import follow, shown_progress
from service.client.requests import ARROW
from service.client.responses import Job, RunMetrics
from service.client.text import amount, size
from service.contract.enums import JobStatus
from service.contract.options import canonical_settings
from service.contract.reports import PlanReport, SkewReport

# pandas would convert integers with missing values to floats.
_INTEGER_TYPES = {pa.int32(): pd.Int32Dtype(), pa.int64(): pd.Int64Dtype()}

_ROWS_SHOWN = 5
_WAIT_SECONDS = 1
"""Interval in which the demo notices that a process has ended."""

_EXPLAIN_SECONDS = 120
"""The first explanation waits until Spark has started."""


def run_demo(state_dir: Path | None, *, keep: bool, reports: int) -> None:
    """Runs the demo. Raises CliError if a job fails or its result is wrong."""
    output = Output()
    began = time.monotonic()
    with _directory(state_dir, keep) as directory, StopSignals() as signals:
        # The demo ignores the configuration of the user's own service.
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
                output.say(f"Starting Evenkeel at {stack.address}, state in {directory}")
                _write_tables(output, settings.data_roots[0], reports)
                stack.wait_until_ready(READY_SECONDS, lambda part: output.say(f"Waiting for {part}"))
                with Connection(stack.address) as connection:
                    _Course(output, stack, Service(connection), settings.data_roots[0]).run()
            finally:
                stack.stop(lambda: signals.is_repeated)
    output.heading("Done")
    output.say(f"Every number agrees with pandas. It took {time.monotonic() - began:.0f} s. All processes are stopped.")
    if keep or state_dir is not None:
        output.say(f"Data, database, results and logs are in {directory}")
    if state_dir is not None:
        output.say(f"Start the service with them:  EVENKEEL_STATE_DIR={state_dir} {program()} up")


class _Course:
    """Runs the jobs of the demo, one after the other."""

    def __init__(self, output: Output, stack: Stack, service: Service, root: Path) -> None:
        self._output = output
        self._stack = stack
        self._service = service
        self._root = root

    def run(self) -> None:
        """Explains one job, runs all jobs, and runs the skewed one again with the advised setting."""
        self._output.heading(f"Plan, without running: {STUCK_TRANSPONDER.title}")
        plan = read(PlanReport, self._service.explain(STUCK_TRANSPONDER.spec()))
        self._output.indented(plan.after.text)
        for number, job in enumerate(JOBS, start=1):
            self._output.heading(f"Job {number}: {job.title}")
            self._output.say(job.about)
            self._output.indented(job.sql)
            if job.settings:
                self._output.say(f"  settings: {json.dumps(dict(job.settings))}")
            metrics = self._run(job, job.spec())
            if job is STUCK_TRANSPONDER:
                self._run_as_advised(job, metrics)

    def _run_as_advised(self, job: DemoJob, before: RunMetrics) -> None:
        skew = before.skew
        if not any(key.hot_keys for key in skew.keys):
            raise CliError(
                f"the skew report of {job.title!r} has no hot key, although 90% of the rows have the same key"
            )
        settings = advised_settings(job.settings, skew)
        if settings is None:
            return
        self._output.heading(f"Again, as advised: {skew.setting} = {skew.value}")
        after = self._run(job, job.spec(settings))
        self._output.say(
            f"Run time {before.execution_ms / 1000:.2f} s -> {after.execution_ms / 1000:.2f} s; rows shuffled "
            f"{_shuffled(before):,} -> {_shuffled(after):,}"
        )

    def _run(self, job: DemoJob, spec: Mapping[str, Any]) -> RunMetrics:
        began = time.monotonic()
        document, _ = self._service.submit(spec)
        job_id = read(Job, document).id
        with shown_progress(self._output.errors, self._output.note) as show_progress:

            def show(current: Job) -> None:
                self._stack.restart_ended(self._output.say)
                show_progress(current)

            ended = read(Job, follow(self._service, job_id, show, wait_seconds=_WAIT_SECONDS))
        if ended.status != JobStatus.SUCCEEDED:
            reason = ended.error.detail if ended.error else "without an error"
            raise CliError(
                f"the job {job.title!r} ended {ended.status}: {reason}",
                f"Run it again with --keep, then see {self._stack.log_of(WORKER)}",
            )
        metrics = read(RunMetrics, self._service.metrics(job_id))
        self._output.say(
            f"SUCCEEDED in {time.monotonic() - began:.2f} s "
            f"(planning {metrics.planning_ms / 1000:.2f} s, running {metrics.execution_ms / 1000:.2f} s)"
        )
        result = _result(self._service, job_id)
        _show_rows(self._output, result)
        comparison = compare(result, job.expected(self._root), job.key)
        if comparison.differences:
            raise CliError(f"{job.title}: the result differs from pandas: {'; '.join(comparison.differences)}")
        self._output.say(f"equal to pandas in all {comparison.values:,} values", "green")
        self._output.heading("Rules")
        show_rules(self._output, read(PlanReport, self._service.plan(job_id)).rules)
        self._output.heading("Skew")
        show_skew(self._output, metrics)
        return metrics


def advised_settings(settings: Mapping[str, Any], skew: SkewReport) -> dict[str, Any] | None:
    """Returns `settings` with the setting that the skew report advises; None if it advises none."""
    if skew.setting is None or skew.value is None:
        return None
    merged = canonical_settings(settings)
    for name, value in canonical_settings({skew.setting: skew.value}).items():
        merged[name] = {**merged.get(name, {}), **value} if isinstance(value, dict) else value
    return merged


def _write_tables(output: Output, root: Path, reports: int) -> None:
    began = time.monotonic()
    for table in write_tables(root, reports):
        files = amount(table.files, "file")
        output.say(f"  {table.name:<9}{table.rows:>10,} rows  {files:>8}  {size(table.bytes):>8}")
    output.say(f"Wrote the tables as Parquet in {time.monotonic() - began:.1f} s below {root}")


def _result(service: Service, job_id: str) -> pd.DataFrame:
    """Returns all rows of a job's result, in order. Raises CliError."""
    with service.result(job_id, ARROW) as response, pa.ipc.open_stream(response.read()) as reader:
        frame: pd.DataFrame = reader.read_all().to_pandas(types_mapper=_INTEGER_TYPES.get)
    return frame


def _show_rows(output: Output, frame: pd.DataFrame) -> None:
    numbers = [str(name) for name, kind in frame.dtypes.items() if pd.api.types.is_numeric_dtype(kind)]
    rows = [[_cell(value) for value in row] for row in frame.head(_ROWS_SHOWN).itertuples(index=False)]
    output.table([str(name) for name in frame.columns], rows, numbers=numbers, indent=2)
    if len(frame) > _ROWS_SHOWN:
        output.say(f"  … and {len(frame) - _ROWS_SHOWN:,} more rows")


def _cell(value: object) -> str:
    if pd.isna(value):  # type: ignore[call-overload]
        return "NULL"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _shuffled(metrics: RunMetrics) -> int:
    return sum(stage.shuffle_write_rows for stage in metrics.stages)


@contextmanager
def _directory(given: Path | None, keep: bool) -> Iterator[Path]:
    """Yields the given directory, which must be empty, or a temporary one, which is removed at the end of the block."""
    if given is not None:
        directory = given.expanduser().absolute()
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            advice = (
                f"Name a new one. To start the service of an earlier demo: EVENKEEL_STATE_DIR={given} {program()} up"
            )
            raise CliError(f"{directory} is not an empty directory", advice, code=ExitCode.USAGE)
        yield directory
        return
    with temporary_state_dir(keep=keep) as directory:
        yield directory
