"""What `evenkeel doctor` finds out about the workers that run: whether they listen to every queue."""

from __future__ import annotations

from contextlib import closing

from service.cli.checkup import Finding, Level
from service.cli.database_faults import WORTH_TELLING
from service.jobs.check_readiness import LISTEN_TO_IT, worker_silence_ms
from service.settings import Settings
from service.spec.queues import EXPECTED
from service.store import workers
from service.store.listeners import queues_listened_to
from service.store.migrate import require_current
from service.store.session import Database


def check_queues(settings: Settings) -> list[Finding]:
    """One finding for each queue that no worker listens to, or one for all; nothing while no worker runs.

    Nothing either where the database cannot tell: that is a finding of its own.
    """
    if settings.database.url is None and not (settings.state_dir / "evenkeel.db").exists():
        return []
    try:
        with closing(Database(settings.database_url, settings=settings.database)) as database:
            require_current(database)
            with database.read() as session:
                heard_since = database.now(session) - worker_silence_ms(settings)
                if not workers.count_alive(session, heard_since):
                    return []
                heard = queues_listened_to(session, heard_since)
    except WORTH_TELLING:
        return []
    unheard = [queue for queue in EXPECTED if queue not in heard]
    if not unheard:
        return [Finding("queues", Level.OK, "every queue has a worker that listens to it")]
    return [
        Finding(
            "queues",
            Level.WARN,
            f"no worker that takes jobs listens to the queue {queue}: its jobs wait",
            LISTEN_TO_IT.format(queue),
        )
        for queue in unheard
    ]
