"""The progress of a job while a call waits: a bar in a terminal or a notebook, otherwise a line for each state."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, TextIO

from . import html
from .responses import JobSummary
from .text import safe_line, shortened

_BAR_CHARACTERS = 30
_WAITING_FOR = {
    "slot": "waiting for a free worker, or for Spark to start",
    "worker": "no worker listens to its queue",
    "tenant": "waiting for another of your jobs to end",
    "retry": "waiting to be retried",
}


def progress_of(job: JobSummary) -> tuple[int | None, int, str]:
    """Returns the total number of tasks (None if unknown), the number of finished tasks, and both as text."""
    if job.is_at_rest:
        return 1, 1, ""
    if job.waiting_for:
        return None, 0, _WAITING_FOR.get(job.waiting_for, shortened(safe_line(job.waiting_for), 30))
    progress = job.progress
    if progress is None or progress.tasks_total == 0:
        return None, 0, ""
    return progress.tasks_total, progress.tasks_done, f"{progress.tasks_done}/{progress.tasks_total} tasks"


def bar(job: JobSummary, seconds: float) -> str:
    """Returns the progress as one line, such as `RUNNING    [#####-----] 5/10 tasks 12 s`."""
    total, done, text = progress_of(job)
    filled = 0 if not total else min(done, total) * _BAR_CHARACTERS // total
    drawn = f"[{'#' * filled}{'-' * (_BAR_CHARACTERS - filled)}]"
    return f"{shortened(safe_line(job.status), 20):<10} {drawn} {text}{' ' if text else ''}{seconds:.0f} s"


def nothing_shown(_job: JobSummary) -> None:
    """Shows nothing."""


@contextmanager
def shown_progress(stream: TextIO | None = None) -> Iterator[Callable[[JobSummary], None]]:
    """Yields a function that shows the state of a job: below the cell of a notebook, or on `stream`, which is standard
    error by default.
    """
    began = time.monotonic()
    target = sys.stderr if stream is None else stream
    if _is_notebook():
        display: Any = import_module("IPython.display")
        area = display.display(display.HTML(""), display_id=True)

        def update(job: JobSummary) -> None:
            area.update(display.HTML(html.progress(job.status, *progress_of(job), time.monotonic() - began)))

        yield update
    elif target.isatty():
        try:
            yield lambda job: _redraw(target, bar(job, time.monotonic() - began))
        finally:
            target.write("\n")
            target.flush()
    else:
        last = ""

        def write(job: JobSummary) -> None:
            nonlocal last
            _, _, text = progress_of(job)
            line = f"{safe_line(job.name)} {safe_line(job.status)} {text if job.waiting_for else ''}".rstrip()
            if line != last:
                last = line
                target.write(line + "\n")
                target.flush()

        yield write


def _redraw(stream: TextIO, line: str) -> None:
    width = max(shutil.get_terminal_size().columns - 1, 10)
    stream.write("\r" + line[:width].ljust(width))
    stream.flush()


def _is_notebook() -> bool:
    """Whether this process is the kernel of a notebook. IPython is not imported for that."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None and hasattr(ipython, "get_ipython") else None
    return shell is not None and hasattr(shell, "kernel")
