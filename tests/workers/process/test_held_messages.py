"""Messages that wait for a thread."""

from __future__ import annotations

from workers.process.queue_consumer import HeldMessages


def test_what_no_thread_has_begun_is_held_once() -> None:
    held = HeldMessages()
    for job_id in ("a", "b", "a", "c"):
        held.received(job_id)
    held.begun("b")
    held.begun("never received")
    assert held.take_all() == ("a", "c")
    assert held.take_all() == ()
