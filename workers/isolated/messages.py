"""What a worker and the process of an attempt send each other: one line of JSON for each message.

The worker writes to the standard input of the process: first the claim, later perhaps a reason to stop. The process
writes to its standard output. Its own log, and that of its JVM, go to standard error, which is that of the worker.
"""

from __future__ import annotations

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from service.store.attempts import Claim
from service.store.publication import Ending
from workers.jobs.outcome import HandBack, LeaseLost, Success, Verdict

ALIVE_SECONDS = 1.0
"""How often the process says that it is alive."""
_CLAIMS = TypeAdapter(Claim)


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Message:
    """A message of the process. Without any field, it says that the process is alive."""

    planning_ms: int | None = None
    """The plan is made, after so many milliseconds. Spark runs the query next, and has metrics from then on."""
    execution_ms: int | None = None
    """A run of the query has ended, after so many milliseconds."""
    ending: Ending | None = None
    hand_back: HandBack | None = None
    lease_lost: bool = False
    """The last message has one of `ending`, `hand_back` and `lease_lost`: the verdict about the attempt."""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict about the attempt; None if the message contains none."""
        return self.ending or self.hand_back or (LeaseLost() if self.lease_lost else None)


_MESSAGES = TypeAdapter(Message)


def message_of(verdict: Verdict) -> Message:
    """Returns the message with the verdict about an attempt of a batch job."""
    match verdict:
        case Ending():
            return Message(ending=verdict)
        case Success():
            return Message(ending=verdict.measured())
        case HandBack():
            return Message(hand_back=verdict)
        case LeaseLost():
            return Message(lease_lost=True)
        case _:
            raise TypeError(f"{type(verdict).__name__} is of a stream")


def line_of(message: Message) -> bytes:
    """Returns a message as a line."""
    return _MESSAGES.dump_json(message, by_alias=True, exclude_defaults=True) + b"\n"


def message_in(line: bytes) -> Message:
    """Returns the message in a line. Raises pydantic's ValidationError for another line."""
    return _MESSAGES.validate_json(line)


def line_of_claim(claim: Claim) -> bytes:
    """Returns a claim as a line."""
    return _CLAIMS.dump_json(claim) + b"\n"


def claim_in(line: bytes) -> Claim:
    """Returns the claim in a line. Raises pydantic's ValidationError for another line."""
    return _CLAIMS.validate_json(line)
