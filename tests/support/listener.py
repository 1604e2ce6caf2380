"""A worker without Spark: Celery, the task and the broker are those of every worker, and a job writes a line to a file.

`python -P listener.py ARRIVED GATE` appends the job id of each message to the file ARRIVED. A job whose id begins with
`wait` then occupies its thread until the file GATE exists.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

from celery import Celery
from celery.signals import setup_logging

from service.config.processes import die_with_parent
from service.config.settings import Settings
from service.monitoring.logs import configure_logging
from workers.process.queue_consumer import RunJob, worker_config


def main() -> None:
    """Consumes messages until it is stopped."""
    die_with_parent()
    arrived, gate = map(Path, sys.argv[1:])
    settings = Settings()

    def run(job_id: str) -> None:
        with arrived.open("a") as file:
            file.write(f"{job_id}\n")
        while job_id.startswith("wait") and not gate.exists():
            time.sleep(0.02)

    setup_logging.connect(lambda **_: configure_logging(settings.log), weak=False)
    app = Celery("evenkeel")
    app.conf.update(worker_config(settings))
    app.register_task(RunJob(SimpleNamespace(run=run)))
    options = ("--pool", "threads", "--loglevel", "INFO", "--without-gossip", "--without-mingle")
    app.worker_main(["worker", *options])


if __name__ == "__main__":
    main()
