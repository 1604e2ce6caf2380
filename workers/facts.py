"""What a worker says of itself with every sign of life."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable

from service.settings import Settings
from service.spec.workers import SparkState
from service.store.workers import WorkerFacts
from workers.memory import Resident
from workers.spark_condition import SparkCondition

_LONGEST = 255
_USER = re.compile(r"//[^/?#]*@")


class Facts:
    """Gathers them anew for every heartbeat. Neither `condition` nor `memory` may wait for anything."""

    def __init__(
        self, settings: Settings, condition: Callable[[], SparkCondition], memory: Callable[[], Resident]
    ) -> None:
        self._host = socket.gethostname()[:_LONGEST]
        self._concurrency = settings.worker.concurrency
        self._queues = settings.worker.queues
        self._cluster = without_secrets(settings.spark.master)[:_LONGEST]
        self._condition = condition
        self._memory = memory

    def __call__(self) -> WorkerFacts:
        """As everything is now."""
        spark = self._condition()
        return WorkerFacts(
            host=self._host,
            pid=os.getpid(),
            concurrency=self._concurrency,
            queues=self._queues,
            cluster=self._cluster,
            app_id=spark.app_id,
            spark_state=spark.state.value,
            spark_fault=spark.fault if spark.state is SparkState.UNAVAILABLE else None,
            slots=spark.slots,
            memory_bytes=self._memory().total,
        )


def without_secrets(url: str) -> str:
    """A URL without user, password and query: where it leads, and nothing else."""
    return _USER.sub("//", url).partition("?")[0]
