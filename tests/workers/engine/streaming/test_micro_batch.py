"""The steps of a mini-batch, also of a repeated one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame

from service.contract.problems import SpecError
from workers.engine.streaming.query import BatchDone, BatchFunction, Stage
from workers.engine.streaming.sinks.base import FenceLostError, Staged


@dataclass
class Story:
    """Stands for all parts of a mini-batch and writes down what is asked of them; `fails` names what raises."""

    newest: int | None = None
    fails: str = ""
    told: list[str] = field(default_factory=list)
    done: list[BatchDone] = field(default_factory=list)

    def _tell(self, what: str) -> None:
        self.told.append(what)
        if what.split()[0] == self.fails:
            raise FenceLostError(what)

    # The guard

    def begin(self, batch_id: int) -> None:
        self._tell(f"begin {batch_id}")

    def finish(self, done: BatchDone) -> None:
        self._tell(f"finish {done.batch_id}")
        self.done.append(done)

    # What is run within

    @contextmanager
    def reading(self, batch_id: int) -> Iterator[None]:
        self.told.append(f"look {batch_id}")
        yield
        self.told.append(f"look again {batch_id}")
        if self.fails == "look":
            raise SpecError.of("path_outside_data_roots", "It is a link.")

    # The stage

    def write(self, frame: DataFrame, batch_id: int) -> Staged:
        self._tell(f"write {batch_id}")
        return Staged((Path("part"),), 5, 50)

    def remove(self, batch_id: int) -> None:
        self._tell(f"remove {batch_id}")

    # The sink

    def prepare(self) -> None:
        raise AssertionError("whoever starts the stream prepares its sink")

    def committed(self) -> int | None:
        self._tell("committed")
        return self.newest

    def commit(self, batch_id: int, staged: Staged) -> int | None:
        self._tell(f"commit {batch_id} {staged.rows}")
        return 30 + batch_id

    def tidy(self) -> None:
        raise AssertionError("nothing is tidied within a mini-batch")

    def close(self) -> None:
        raise AssertionError("whoever opened the sink closes it")


class Frame:
    """Of which nothing but `write.format(…).mode(…).save()` may be asked."""

    def __init__(self, story: Story) -> None:
        self._story = story

    @property
    def write(self) -> Any:
        return self

    def format(self, name: str) -> Any:
        self._format = name
        return self

    def mode(self, name: str) -> Any:
        self._mode = name
        return self

    def save(self) -> None:
        self._story.told.append(f"save {self._format} {self._mode}")


def ticking() -> Callable[[], float]:
    times: Iterator[float] = iter((10.0, 10.25, 20.0, 20.5))
    return lambda: next(times)


def run(story: Story, batch_id: int) -> BatchFunction:
    function = BatchFunction(cast("Stage", story), story, story, ticking())
    function(cast("DataFrame", Frame(story)), batch_id)
    return function


def test_a_new_mini_batch_is_staged_committed_and_recorded() -> None:
    story = Story(newest=3)
    assert run(story, 4).failure is None
    assert story.told == ["begin 4", "committed", "write 4", "commit 4 5", "finish 4", "remove 4"]
    assert story.done == [BatchDone(4, rows=5, elapsed_ms=250, sink_version=34)]


def test_an_empty_sink_commits_the_first_mini_batch() -> None:
    story = Story()
    run(story, 0)
    assert "commit 0 5" in story.told


@pytest.mark.parametrize("newest", [4, 5])
def test_a_mini_batch_in_the_sink_still_updates_the_state(newest: int) -> None:
    story = Story(newest=newest)
    run(story, 4)
    assert story.told == ["begin 4", "committed", "save noop append", "finish 4", "remove 4"]
    assert story.done == [BatchDone(4, rows=None, elapsed_ms=250, sink_version=None)]


@pytest.mark.parametrize(
    ("fails", "last"),
    [("begin", "begin 4"), ("write", "write 4"), ("commit", "commit 4 5"), ("finish", "finish 4")],
)
def test_a_failure_ends_the_mini_batch_and_is_kept(fails: str, last: str) -> None:
    story = Story(fails=fails)
    function = BatchFunction(cast("Stage", story), story, story, ticking())
    with pytest.raises(FenceLostError) as caught:
        function(cast("DataFrame", Frame(story)), 4)
    assert function.failure is caught.value
    assert story.told[-1] == last


@pytest.mark.parametrize(
    ("newest", "told"),
    [
        (None, ["begin 4", "committed", "look 4", "write 4", "look again 4", "remove 4"]),
        (4, ["begin 4", "committed", "look 4", "save noop append", "look again 4"]),
    ],
)
def test_rows_that_may_be_confidential_reach_no_sink(newest: int | None, told: list[str]) -> None:
    story = Story(newest=newest, fails="look")
    function = BatchFunction(cast("Stage", story), story, story, ticking(), story.reading)
    with pytest.raises(SpecError) as caught:
        function(cast("DataFrame", Frame(story)), 4)
    assert function.failure is caught.value
    assert story.told == told
