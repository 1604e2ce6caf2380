"""`evenkeel workers` and `evenkeel whoami`: who runs jobs there, and who asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.cli.client.options import AsJson, KeyFile, Url
from service.cli.errors import told_plainly

if TYPE_CHECKING:
    from service.cli.client.answers import Worker

_STYLES = (("READY", "green"), ("UNAVAILABLE", "red"), ("SILENT", "red"), ("DRAINING", "yellow"), ("STARTING", "cyan"))


@told_plainly
def workers(url: Url = None, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """List the workers of the service, with what each is at."""
    from service.cli.amounts import size
    from service.cli.client.answers import WorkerList, read
    from service.cli.client.session import opened

    with opened(url, key_file, as_json=as_json) as session:
        output = session.output
        document = session.service.workers()
        if as_json:
            output.document(document)
            return
        found = read(WorkerList, document).workers
        if not found:
            output.note("No worker has given a sign of life within the last hour.")
            return
        output.table(
            ("worker", "status", "queues", "jobs", "slots", "memory"),
            [
                (
                    worker.id,
                    worker.status,
                    ",".join(worker.queues),
                    _jobs(worker),
                    worker.slots,
                    None if worker.memory_bytes is None else size(worker.memory_bytes),
                )
                for worker in found
            ],
            numbers=("jobs", "slots", "memory"),
            whole=("status",),
            styles=_STYLES,
        )
        for worker in found:
            if worker.fault:
                output.say(f"{worker.id}: {worker.fault}", "red")


@told_plainly
def whoami(url: Url = None, key_file: KeyFile = None, as_json: AsJson = False) -> None:
    """Tell which service is asked, and as whom."""
    from service.cli.client.answers import Me, read
    from service.cli.client.session import opened

    with opened(url, key_file, as_json=as_json) as session:
        document = session.service.me()
        if as_json:
            session.output.document(document)
            return
        me = read(Me, document)
        session.output.pairs(
            (
                ("service", session.service.connection.url),
                ("tenant", me.tenant),
                ("scopes", " ".join(me.scopes)),
                ("key", me.key_id or "none is asked for"),
            )
        )


def _jobs(worker: Worker) -> str:
    at_hand = len(worker.jobs) + worker.other_jobs
    return str(at_hand) if worker.concurrency is None else f"{at_hand} of {worker.concurrency}"
