"""The one message that workers listen to: there is a job."""

from __future__ import annotations

from typing import Protocol

from celery import Task

from service.messages import RUN_JOB


class Runner(Protocol):
    """Brings jobs to their end."""

    def run(self, job_id: str) -> None: ...


class RunJob(Task):  # type: ignore[misc]
    """Brings the job of the given id to an end, unless another worker has it. The message holds nothing else."""

    name = RUN_JOB
    ignore_result = True
    # Acknowledged before it runs: what a killed worker leaves behind is found in the database, not in the broker.
    acks_late = False

    def __init__(self, worker: Runner) -> None:
        self._worker = worker

    def run(self, job_id: str, *_: object, **__: object) -> None:
        """What the next version may add to the message is ignored: a job that this one cannot run, it does not claim.

        Never raises for what a job does; what the database does is logged by Celery and made good by the sweeper."""
        self._worker.run(job_id)
