"""Changes to a service that make its clients get problems, for clients in any language."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count

from sqlalchemy import update

from service.contract.enums import KeyScope
from service.store.tables import JobRow
from tests.support.processes import wait_for
from tests.support.production import Production

_NEWCOMER = (KeyScope.READ, KeyScope.SUBMIT, KeyScope.METRICS)
_TENANTS = count(1)
_NO_TIME = 2**60
"""Milliseconds after the last year that a date can represent."""
_UNKNOWN = "00000000-0000-4000-8000-000000000000"


class Acts:
    """Changes to a service with one API."""

    def __init__(self, production: Production) -> None:
        self._production = production
        (self._api,) = production.apis
        self.address = self._api.address
        self.admin = str(self._api.http.headers["Authorization"]).removeprefix("Bearer ")

    def newcomer(self) -> str:
        """Creates a key of a new tenant with all scopes except those for keys."""
        return self._production.key(tenant=f"tenant-{next(_TENANTS)}", scopes=_NEWCOMER)

    def reader(self) -> str:
        """Creates a key that can only read."""
        return self._production.key(tenant="readers", scopes=(KeyScope.READ,))

    @contextmanager
    def stuck(self) -> Iterator[None]:
        """Blocks the database with another write transaction."""
        path = self._production.database.engine.url.database
        # Another thread may end the transaction.
        with closing(sqlite3.connect(str(path), isolation_level=None, check_same_thread=False)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")

    def spoil(self, job_id: str) -> None:
        """Corrupts the stored data of a job."""
        with self._production.database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(submitted_at=_NO_TIME))

    def move_on(self, job_id: str) -> None:
        """Stores a job state of a newer version."""
        with self._production.database.write() as session:
            session.execute(update(JobRow).where(JobRow.id == job_id).values(status="PAUSED"))

    def lose(self, job_id: str) -> None:
        """Deletes a job's result files."""
        shutil.rmtree(self._production.results / job_id)

    def silent_worker(self) -> str:
        """Starts a worker, kills it and returns its id."""
        part = self._production.start_worker({"EVENKEEL_SPARK_WARM_UP": "false"})
        (worker,) = wait_for("the worker", lambda: self._api.http.get("/v1/workers").json()["workers"], 120)
        self._production.kill(part)
        path = f"/v1/workers/{worker['id']}"
        wait_for("the worker to be SILENT", lambda: self._api.http.get(path).json()["status"] == "SILENT", 60)
        return str(worker["id"])

    def stop(self) -> None:
        """Stops the API after all earlier requests have arrived."""
        self._api.http.get(f"/v1/jobs/{_UNKNOWN}")
        self._production.stop(self._api.part)

    def start_again(self) -> None:
        """Starts the API again at its address."""
        self._production.start_again(self._api.part)
