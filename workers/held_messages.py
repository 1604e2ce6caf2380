"""Messages that wait in this process for a free thread, so that they can be passed on when it is to end."""

from __future__ import annotations

import threading


class HeldMessages:
    """Ids of jobs whose message came and which no thread has begun. Safe to share between threads.

    Celery acknowledges early and drops what waits in its pool when it stops: these are what would be lost.
    """

    def __init__(self) -> None:
        self._job_ids: dict[str, None] = {}
        self._lock = threading.Lock()

    def received(self, job_id: str) -> None:
        """A message came; once more for the same job makes no difference."""
        with self._lock:
            self._job_ids[job_id] = None

    def begun(self, job_id: str) -> None:
        """A thread has come to the job."""
        with self._lock:
            self._job_ids.pop(job_id, None)

    def take_all(self) -> tuple[str, ...]:
        """Those that wait, oldest first; they are the caller's now."""
        with self._lock:
            taken = tuple(self._job_ids)
            self._job_ids.clear()
        return taken
