"""The course of the demo: a service of its own, the tables, the jobs, the checks, and everything stopped again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from service.cli.client.answers import Job, read
from service.cli.client.connection import Connection
from service.cli.client.service import Service
from service.cli.client.waiting import follow
from service.cli.configuration import isolate, read_settings
from service.cli.demo.answers import explained, metrics_of, plan_of, result_of
from service.cli.demo.jobs import JOBS, STUCK_TRANSPONDER, DemoJob, compare
from service.cli.demo.landing import land
from service.cli.demo.view import View
from service.cli.directories import prepare_directories
from service.cli.errors import CliError, ExitCode
from service.cli.listening import listen
from service.cli.migrate import upgrade_database
from service.cli.signals import StopSignals
from service.cli.stack import Stack
from service.cli.state_lock import locked, temporary_state_dir
from service.cli.up import READY_SECONDS
from service.spec.options import canonical_settings
from service.spec.reports import MetricsReport, SkewReport
from service.spec.status import JobStatus

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
