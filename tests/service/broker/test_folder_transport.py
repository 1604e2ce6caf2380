"""Messages through folders: whole, once and in order, with many processes at once."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Empty

import pytest
from kombu.connection import Connection
from kombu.entity import Exchange, Queue

from service.broker.transports import RUN_JOB, FolderTransport

WRITERS, READERS, EACH = 4, 4, 100
ONE = Queue("one", Exchange("one", type="direct"), routing_key="one")


@pytest.fixture(autouse=True)
def nothing_declared() -> None:
    """The transport caches bindings for the whole process, and each test has its own folder."""
    FolderTransport.global_state.clear()


@contextmanager
def connection(folder: Path) -> Iterator[Connection]:
    for name in ("messages", "control"):
        (folder / name).mkdir(exist_ok=True)
    options = {
        "data_folder_in": str(folder / "messages"),
        "data_folder_out": str(folder / "messages"),
        "control_folder": str(folder / "control"),
        "store_processed": False,
    }
    with Connection(transport=FolderTransport, transport_options=options) as opened:
        yield opened


def send(folder: Path, numbers: range) -> None:
    with connection(folder) as opened:
        producer = opened.Producer(serializer="json")
        for number in numbers:
            producer.publish(
                ([str(number)], {}, {}),
                headers={"task": RUN_JOB, "id": str(number)},
                exchange=ONE.exchange,
                routing_key="one",
                declare=[ONE],
            )


def receive(folder: Path, done: Path) -> list[int]:
    """Receives messages until there is none and `done` is set."""
    found: list[int] = []
    with connection(folder) as opened, opened.SimpleQueue(ONE) as queue:
        while True:
            is_last_look = done.exists()
            try:
                message = queue.get(timeout=0.2)
            except Empty:
                if is_last_look:
                    return found
                continue
            message.ack()
            found.append(int(message.payload[0][0]))


@pytest.mark.not_quick
def test_every_message_arrives_once_and_whole(tmp_path: Path) -> None:
    done = tmp_path / "done"
    # Bound once before: within one process, kombu takes a binding for made as soon as it is begun.
    send(tmp_path, range(1))
    with ThreadPoolExecutor(WRITERS + READERS) as pool:
        reading = [pool.submit(receive, tmp_path, done) for _ in range(READERS)]
        writing = [pool.submit(send, tmp_path, range(1 + n * EACH, 1 + (n + 1) * EACH)) for n in range(WRITERS)]
        for writer in writing:
            writer.result(60)
        done.touch()
        found = [number for reader in reading for number in reader.result(60)]
    assert sorted(found) == list(range(1 + WRITERS * EACH))
    assert list((tmp_path / "messages").iterdir()) == []


def test_messages_keep_their_order(tmp_path: Path) -> None:
    send(tmp_path, range(20))
    (tmp_path / "done").touch()
    assert receive(tmp_path, tmp_path / "done") == list(range(20))


def test_a_message_is_not_read_while_it_is_written(tmp_path: Path) -> None:
    send(tmp_path, range(1))
    (tmp_path / "messages" / ".00_x.one.msg.part").write_text("")
    (tmp_path / "done").touch()
    assert receive(tmp_path, tmp_path / "done") == [0]


def test_bindings_that_are_created_at_once_are_all_stored(tmp_path: Path) -> None:
    def bind(number: int) -> None:
        with connection(tmp_path) as opened:
            queue = Queue(f"q{number}", Exchange("shared", type="direct"), routing_key=str(number))
            queue(opened.default_channel).declare()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(bind, range(24)))
    bound = json.loads((tmp_path / "control" / "shared.exchange").read_text())
    assert sorted(queue for _, _, queue in bound) == sorted(f"q{number}" for number in range(24))


def test_an_empty_queue_is_empty(tmp_path: Path) -> None:
    with connection(tmp_path) as opened, opened.SimpleQueue(ONE) as queue, pytest.raises(Empty):
        queue.get_nowait()


def test_files_that_are_no_messages_are_dropped(tmp_path: Path) -> None:
    send(tmp_path, range(1))
    for number, content in enumerate((b"{", b"\xff", b"null", b'{"no": "envelope"}')):
        (tmp_path / "messages" / f"{number:020d}_x.one.msg").write_bytes(content)
    (tmp_path / "done").touch()
    assert receive(tmp_path, tmp_path / "done") == [0]
    assert list((tmp_path / "messages").iterdir()) == []


@pytest.mark.parametrize("age_seconds", [0, 3600])
def test_a_message_is_found_right_after_the_folder_was_empty(tmp_path: Path, age_seconds: int) -> None:
    with connection(tmp_path) as opened, opened.SimpleQueue(ONE) as queue:
        for number in range(50):
            changed = time.time() - age_seconds
            os.utime(tmp_path / "messages", (changed, changed))
            for _ in range(2):
                with pytest.raises(Empty):
                    queue.get_nowait()
            send(tmp_path, range(number, number + 1))
            message = queue.get_nowait()
            message.ack()
            assert message.payload[0][0] == str(number)


def test_an_empty_folder_is_not_listed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with connection(tmp_path) as opened, opened.SimpleQueue(ONE) as queue:
        os.utime(tmp_path / "messages", (1, 1))
        with pytest.raises(Empty):
            queue.get_nowait()
        monkeypatch.setattr(Path, "iterdir", lambda _: pytest.fail("listed"))
        with pytest.raises(Empty):
            queue.get_nowait()
