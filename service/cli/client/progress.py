"""How far a job is: a bar on a terminal, a line for every state and quarter elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from service.cli.client.answers import JobSummary
from service.cli.client.safe_text import safe_line, shortened

_WAITS = {
    "slot": "until a worker is free",
    "worker": "no worker listens to its queue",
    "tenant": "until another of your jobs ends",
    "retry": "to be tried again",
}


@contextmanager
def shown_progress(console: Console, say: Callable[[str], None]) -> Iterator[Callable[[JobSummary], None]]:
    """While entered, shows the job that is handed to the given function as it stands: on the console where that is a
    terminal, else by `say`."""
    if not console.is_terminal:
        yield _LineByLine(say)
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description:<10}", markup=False),
        BarColumn(bar_width=None),
        TextColumn("{task.fields[done]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("QUEUED", total=None, done="")

        def see(job: JobSummary) -> None:
            total, done, text = _progress(job)
            state = shortened(safe_line(job.status), 20)
            bar.update(task, description=state, total=total, completed=done, done=text)

        yield see


class _LineByLine:
    """Progress for logs: a line for every state and every quarter of the tasks."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._said: tuple[str, int, str] | None = None

    def __call__(self, job: JobSummary) -> None:
        total, done, text = _progress(job)
        now = (job.status, 4 * done // total if total else 0, job.waiting_for or "")
        if now != self._said:
            self._said = now
            self._say(f"  {job.status} {text}".rstrip())


def _progress(job: JobSummary) -> tuple[int | None, int, str]:
    """Tasks in all (None while unknown), tasks done, and both as text."""
    if job.at_rest:
        return 1, 1, ""
    if job.waiting_for:
        return None, 0, _WAITS.get(job.waiting_for, shortened(safe_line(job.waiting_for), 30))
    progress = job.progress
    if progress is None or progress.tasks_total == 0:
        return None, 0, ""
    return progress.tasks_total, progress.tasks_done, f"{progress.tasks_done}/{progress.tasks_total} tasks"
