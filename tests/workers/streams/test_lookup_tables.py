"""Which versions of lookup tables mini-batches use."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import pytest

from service.contract.tables import TableSource
from tests.support.processes import wait_for
from workers.jobs.attempt import AttemptStopped
from workers.streams.lookup_table_polling import SETTLE_SECONDS, CopySlot, FollowedTable, NotUsed, TableChecks
from workers.streams.lookup_table_versions import KEPT, BatchVersions, TableVersions
from workers.streams.lookup_tables import LookupTables, OtherVersionsError

EVERY = 60.0


class Job:
    """Two tables that are followed, `u` and `w`, and a checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.now = 0.0
        self.jitter = 1.0
        self.directory = directory
        self.places = threading.BoundedSemaphore(1)
        self.check: Callable[[], object] = lambda: None
        """Called while files are copied."""
        self._fence = 0
        self._written = 0
        for name in ("u", "w"):
            (directory / "roots" / name).mkdir(parents=True)
            self.write(name, "1")

    def write(self, name: str, text: str) -> None:
        """Writes another state of a table, with another time."""
        path, before = self.directory / "roots" / name / "0.csv", self._written
        while self._written <= before:
            path.write_text(f"{text}\n")
            self._written = path.stat().st_mtime_ns

    def opened(self, in_sink: int | None = None) -> LookupTables:
        """Returns the lookup tables of a new attempt, whose sink has the mini-batches up to `in_sink`."""
        self._fence += 1
        checks = TableChecks(lambda: self.check(), self.places)
        tables = [
            FollowedTable(
                name,
                TableSource.model_validate({"format": "csv", "path": f"{name}/", "schema": "k INT"}),
                [self.directory / "roots"],
                TableVersions(self.directory / name, name, self._fence),
                checks.check,
            )
            for name in ("u", "w")
        ]
        decided = BatchVersions(self.directory / "versions", self._fence)
        lookup_tables = LookupTables(
            tables, decided, self.directory / "checkpoint", EVERY, checks, lambda: self.now, lambda: self.jitter
        )
        lookup_tables.open(lambda _: None)
        lookup_tables.set_committed(in_sink)
        return lookup_tables

    @contextmanager
    def slow(self, table: str = "u") -> Iterator[threading.Event]:
        """Inside, a copy of the table stops after its first bytes; the event is set then."""
        begun, go_on = threading.Event(), threading.Event()

        def check() -> None:
            if threading.current_thread() is not threading.main_thread() and any(
                (self.directory / table).glob(".draft-*")
            ):
                begun.set()
                assert go_on.wait(60)

        self.check = check
        try:
            yield begun
        finally:
            go_on.set()
            self.check = lambda: None

    def commit(self, batch_id: int) -> None:
        """Writes what Spark writes when it commits a mini-batch."""
        path = self.directory / "checkpoint" / "commits" / str(batch_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def kept(self, name: str) -> list[str]:
        """Returns the existing versions of a table."""
        return sorted(path.name for path in (self.directory / name).iterdir())


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def poll(lookup_tables: LookupTables) -> bool:
    """Checks the tables and adopts new versions."""
    lookup_tables.poll()
    return lookup_tables.adopt_newest()


def versions(u: int, w: int = 1) -> Mapping[str, int]:
    return {"u": u, "w": w}


def test_a_mini_batch_in_the_sink_runs_again_with_the_same_versions(job: Job) -> None:
    job.opened().begin(0, versions(1))
    job.write("u", "2")
    later = job.opened(in_sink=0)
    assert (later.newest, later.of_next_batch()) == (versions(2), versions(1))
    with pytest.raises(OtherVersionsError):
        later.begin(0, versions(2))
    later.begin(0, versions(1))
    with pytest.raises(OtherVersionsError):
        later.begin(1, versions(1))
    job.commit(0)
    assert later.of_next_batch() == versions(2)
    later.begin(1, versions(2))
    assert (later.of_batch(0), later.of_batch(1)) == (versions(1), versions(2))


def test_a_mini_batch_that_has_not_begun_uses_the_newest_versions(job: Job) -> None:
    # Spark planned it, and no attempt came to run it.
    job.opened().begin(0, versions(1))
    job.commit(0)
    job.write("u", "2")
    assert job.opened().of_next_batch() == versions(2)


def test_a_mini_batch_not_in_the_sink_runs_again_with_the_newest_versions(job: Job) -> None:
    # Perhaps that is why the table was changed: with the version of before it could not be done.
    job.opened().begin(0, versions(1))
    job.commit(0)
    job.opened(in_sink=0).begin(1, versions(1))
    job.write("u", "2")
    second = job.opened(in_sink=0)
    assert second.of_next_batch() == versions(2)
    second.begin(1, versions(2))
    assert job.opened(in_sink=1).of_next_batch() == versions(2)
    job.write("u", "3")
    assert job.opened(in_sink=1).of_next_batch() == versions(2)
    assert job.opened(in_sink=0).of_next_batch() == versions(3)


def test_a_late_attempt_does_not_change_the_decision(job: Job) -> None:
    late = job.opened()
    job.write("u", "2")
    newer = job.opened()
    late.begin(0, versions(1))
    assert newer.of_next_batch() == versions(2)
    newer.begin(0, versions(2))
    with pytest.raises(OtherVersionsError):
        late.begin(0, versions(1))
    assert job.opened(in_sink=0).of_next_batch() == versions(2)


def test_old_versions_are_removed_once_no_mini_batch_needs_them(job: Job) -> None:
    job.opened().begin(0, versions(1))
    job.write("u", "2")
    later = job.opened(in_sink=0)
    later.tidy(versions(2))
    assert job.kept("u") == ["v1", "v2"]
    job.commit(0)
    # The plan at hand may be that of before, until the next one begins.
    later.tidy(versions(1))
    assert job.kept("u") == ["v1", "v2"]
    later.tidy(versions(2))
    assert (job.kept("u"), job.kept("w")) == (["v2"], ["v1"])


def test_old_versions_are_removed_while_no_mini_batch_begins(job: Job) -> None:
    lookup_tables = job.opened()
    for number in range(2, 5):
        job.write("u", str(number))
        assert [poll(lookup_tables), poll(lookup_tables)] == [False, True]
        lookup_tables.tidy(lookup_tables.newest)
        assert job.kept("u") == [f"v{number}"]


def test_a_late_attempt_removes_no_versions(job: Job) -> None:
    late = job.opened()
    job.write("u", "2")
    newer = job.opened()
    assert newer.newest == versions(2)
    job.write("u", "3")
    assert [poll(late), poll(late), late.newest] == [False, True, versions(3)]
    late.tidy(late.newest)
    assert job.kept("u") == ["v2", "v3"]
    newer.tidy(newer.newest)
    assert job.kept("u") == ["v2", "v3"]


def test_tables_are_checked_sooner_after_a_change(job: Job) -> None:
    lookup_tables = job.opened()
    assert not lookup_tables.is_due
    job.now += EVERY
    assert lookup_tables.is_due
    assert not poll(lookup_tables)
    assert not lookup_tables.is_due
    job.write("w", "2")
    job.now += EVERY
    assert not poll(lookup_tables)
    job.now += SETTLE_SECONDS
    assert lookup_tables.is_due
    assert poll(lookup_tables)
    assert lookup_tables.newest == versions(1, 2)
    job.now += SETTLE_SECONDS
    assert not lookup_tables.is_due


def test_a_check_that_fails_is_retried_with_backoff(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    lookup_tables, failing = job.opened(), True
    poll, polled = FollowedTable.poll, Counter[str]()

    def poll_or_fail(table: FollowedTable, slot: CopySlot = nullcontext) -> bool:
        polled[table.name] += 1
        if failing and table.name == "u":
            raise RuntimeError("Arrow fails")
        return poll(table, slot)

    def check_fails() -> bool:
        try:
            lookup_tables.step()
        except RuntimeError:
            return True
        return False

    monkeypatch.setattr(FollowedTable, "poll", poll_or_fail)
    job.now += EVERY
    delays = []
    for _ in range(8):
        assert wait_for("a check that fails", check_fails)
        begun = job.now
        while not lookup_tables.is_due:
            job.now += 0.5
        delays.append(job.now - begun)
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]
    assert polled == {"u": 8, "w": 8}

    job.jitter = 0.0
    assert wait_for("another check that fails", check_fails)
    job.now += EVERY / 2
    assert lookup_tables.is_due

    failing = False
    assert wait_for("a check that succeeds", lambda: lookup_tables.step() is False)
    assert not lookup_tables.is_due
    failing, job.jitter = True, 1.0
    job.now += EVERY
    assert wait_for("a check that fails after that", check_fails)
    job.now += 1
    assert lookup_tables.is_due, "the delay is the first one again"


def test_only_the_next_copy_waits_for_a_copy(job: Job, tmp_path: Path) -> None:
    another = Job(tmp_path / "another")
    another.places = job.places
    slow, other = job.opened(), another.opened()
    for each in (job, another):
        each.write("u", "2")
        each.now += EVERY
    assert wait_for("the first look", lambda: slow.step() is False)
    assert wait_for("the first look of the other", lambda: other.step() is False)
    for each in (job, another):
        each.now += SETTLE_SECONDS
    with job.slow() as begun:
        assert slow.step() is None
        assert begun.wait(30)
        assert (slow.step(), slow.newest, other.step()) == (None, versions(1), None)
        assert not job.places.acquire(blocking=False), "the other one waits for its place"
        slow.tidy(versions(1))
        slow.begin(0, versions(1))
    assert wait_for("the copy", slow.step)
    assert (slow.newest, slow.report(versions(2))[0]["bytes"]) == (versions(2), 2)
    assert wait_for("the copy of the other", other.step)
    # Its look may be about to end.
    assert True not in [slow.step() for _ in range(5)], "it is told once"


def test_a_new_version_of_one_table_does_not_wait_for_another_table(job: Job) -> None:
    lookup_tables = job.opened()
    lookup_tables.begin(0, versions(1))
    job.commit(0)
    job.write("u", "2")
    job.write("w", "2")
    job.now += EVERY
    assert wait_for("the first look", lambda: lookup_tables.step() is False)
    job.now += SETTLE_SECONDS
    with job.slow("w") as begun:
        assert lookup_tables.step() is None
        assert begun.wait(30)
        # It runs with what it was planned with until the other version is taken up.
        lookup_tables.begin(1, versions(1))
        lookup_tables.tidy(versions(1))
        assert (lookup_tables.step(), lookup_tables.step(), lookup_tables.newest) == (True, None, versions(2))
        job.commit(1)
        with pytest.raises(OtherVersionsError):
            lookup_tables.begin(2, versions(1))
        lookup_tables.begin(2, versions(2))
        job.commit(2)
        assert job.kept("u") == ["v1", "v2"]
    assert wait_for("the other table", lookup_tables.step)
    assert lookup_tables.newest == versions(2, 2)


def test_revert_does_not_wait_for_a_copy(job: Job) -> None:
    lookup_tables, refused = job.opened(), NotUsed("unreadable_file", "Spark cannot read it.")
    job.write("u", "2")
    assert [poll(lookup_tables), poll(lookup_tables), lookup_tables.newest] == [False, True, versions(2)]
    job.write("u", "3")
    job.now += EVERY
    assert wait_for("a look", lambda: lookup_tables.step() is False)
    job.now += SETTLE_SECONDS
    with job.slow() as begun:
        assert lookup_tables.step() is None
        assert begun.wait(30)
        assert lookup_tables.revert(versions(1), refused)
        assert (lookup_tables.step(), lookup_tables.newest) == (None, versions(1))
    assert wait_for("the copy", lookup_tables.step)
    assert (lookup_tables.of_next_batch(), lookup_tables.report(lookup_tables.newest)[0]["not_taken"]) == (
        lookup_tables.newest,
        None,
    )


def test_a_table_is_checked_while_others_are_copied(job: Job) -> None:
    lookup_tables = job.opened()
    job.write("u", "2")
    job.now += EVERY
    assert job.places.acquire(blocking=False)
    assert wait_for("the first look", lambda: lookup_tables.step() is False)
    job.places.release()
    job.now += SETTLE_SECONDS
    assert wait_for("the copy", lookup_tables.step)


def test_a_copy_ends_with_its_attempt(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("workers.streams.lookup_table_polling._END_SECONDS", 0.0)
    lookup_tables = job.opened()
    job.write("u", "2")
    assert poll(lookup_tables) is False
    job.now += EVERY
    with job.slow() as begun:
        assert lookup_tables.step() is None
        assert begun.wait(30)
        assert [path.name for path in job.directory.glob("u/.draft-*")] == [".draft-1"]
        lookup_tables.end()
    assert wait_for("its end", lambda: lookup_tables.step() is False)
    assert (job.kept("u"), lookup_tables.newest) == (["v1"], versions(1))


def test_a_copy_is_stopped_with_its_attempt(job: Job) -> None:
    lookup_tables = job.opened()
    job.write("u", "2")
    assert poll(lookup_tables) is False
    job.now += EVERY

    def stopped() -> None:
        raise AttemptStopped("stop_requested")

    job.check = stopped
    assert wait_for("its end", lambda: lookup_tables.step() is False)
    assert job.kept("u") == ["v1"]


def test_a_version_that_no_plan_can_use_is_reverted(job: Job) -> None:
    lookup_tables, refused = job.opened(), NotUsed("unreadable_file", "Spark cannot read it.")
    lookup_tables.begin(0, versions(1))
    job.commit(0)
    job.write("u", "2")
    assert [poll(lookup_tables), poll(lookup_tables), lookup_tables.of_next_batch()] == [False, True, versions(2)]
    assert lookup_tables.revert(versions(1), refused)
    assert (lookup_tables.of_next_batch(), job.kept("u")) == (versions(1), ["v1"])
    assert [poll(lookup_tables), poll(lookup_tables)] == [False, False]
    told = lookup_tables.report(versions(1))
    assert [table["not_taken"] for table in told] == [{"code": refused.code, "detail": refused.detail}, None]
    # It was planned with these versions: that is no reason to do so again.
    assert not lookup_tables.revert(versions(1), refused)
    lookup_tables.begin(1, versions(1))
    job.write("u", "3")
    assert [poll(lookup_tables), poll(lookup_tables), lookup_tables.newest] == [False, True, versions(2)]
    assert lookup_tables.report(versions(1))[0]["not_taken"] is None


@pytest.mark.not_quick
def test_reported_versions_are_null_once_they_are_removed(job: Job) -> None:
    lookup_tables = job.opened()
    for number in range(KEPT + 1):
        lookup_tables.begin(number, versions(1))
    assert (lookup_tables.reported_versions(0), lookup_tables.reported_versions(1)) == (None, versions(1))


def test_the_report_has_the_versions_in_use_and_since_when(job: Job) -> None:
    lookup_tables = job.opened()
    assert [
        (table["table"], table["version"], table["since_batch"]) for table in lookup_tables.report(versions(1))
    ] == [
        ("u", 1, None),
        ("w", 1, None),
    ]
    for number in range(3):
        lookup_tables.begin(number, versions(1))
        job.commit(number)
    job.write("u", "2")
    (job.directory / "roots" / "w" / "0.csv").unlink()
    later = job.opened()
    later.begin(3, versions(2))
    told = later.report(versions(2))
    assert [(table["version"], table["since_batch"], table["files"], table["bytes"]) for table in told] == [
        (2, 3, 1, 2),
        (1, 0, 1, 2),
    ]
    assert told[0]["not_taken"] is None
    assert told[1]["not_taken"]["code"] == "empty_directory"
