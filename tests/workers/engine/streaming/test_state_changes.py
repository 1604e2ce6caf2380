"""Changes of the state by partition, from a checkpoint as recorded from Spark 4.3.0."""

from __future__ import annotations

import json
from pathlib import Path

from workers.engine.streaming.state import StateChanges, bytes_of_changes, changes_of


def operator(checkpoint: Path, number: int, name: str) -> None:
    metadata = checkpoint / "state" / str(number) / "_metadata" / "metadata"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("v1\n" + json.dumps({"operatorInfo": {"operatorId": number, "operatorName": name}}))


def write(checkpoint: Path, path: str, size: int) -> None:
    target = checkpoint / "state" / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(b"x" * size)


def commit(checkpoint: Path, batch_id: int, ids: dict[str, list[list[str]]] | None) -> None:
    (checkpoint / "commits").mkdir(exist_ok=True)
    told = {"nextBatchWatermarkMs": 0, **({} if ids is None else {"stateUniqueIds": ids})}
    (checkpoint / "commits" / str(batch_id)).write_text("v2\n" + json.dumps(told))


def test_each_partition_counts_what_was_committed(tmp_path: Path) -> None:
    operator(tmp_path, 0, "stateStoreSave")
    operator(tmp_path, 1, "symmetricHashJoin")
    write(tmp_path, "0/0/6_a.changelog", 10)
    write(tmp_path, "0/0/6_lost.changelog", 1000)
    write(tmp_path, "0/0/5_c.changelog", 1000)
    write(tmp_path, "0/1/6_b.changelog", 30)
    write(tmp_path, "0/10/6_c.changelog", 20)
    for store, size in (("left-keyToNumValues", 1), ("right-keyToNumValues", 2)):
        write(tmp_path, f"1/0/{store}/6_{store}.changelog", size)
    ids = [["a"], ["b"], *[["none"]] * 8, ["c"]]
    commit(tmp_path, 5, {"0": ids, "1": [["left-keyToNumValues", "right-keyToNumValues"]]})
    assert changes_of(tmp_path, 5) == (
        StateChanges("stateStoreSave", (10, 30, 20)),
        StateChanges("symmetricHashJoin", (3,)),
    )
    assert StateChanges("stateStoreSave", (10, 30, 20)).skew == 1.5


def test_a_state_in_memory_leaves_files_too(tmp_path: Path) -> None:
    operator(tmp_path, 0, "dedupe")
    write(tmp_path, "0/0/6.delta", 10)
    commit(tmp_path, 5, None)
    assert changes_of(tmp_path, 5) == (StateChanges("dedupe", (10,)),)


def test_missing_files_give_no_changes(tmp_path: Path) -> None:
    operator(tmp_path, 0, "dedupe")
    write(tmp_path, "0/0/6_a.changelog", 10)
    write(tmp_path, "0/1/7_b.changelog", 10)
    commit(tmp_path, 5, {"0": [["a"], ["b"]]})
    assert changes_of(tmp_path, 5) == (None,)
    commit(tmp_path, 4, {})
    assert changes_of(tmp_path, 4) == (None,)


def test_an_operator_keeps_its_place_after_one_without_files(tmp_path: Path) -> None:
    operator(tmp_path, 0, "dedupe")
    operator(tmp_path, 1, "dedupe")
    write(tmp_path, "0/0/7_a.changelog", 10)
    write(tmp_path, "1/0/6_b.changelog", 20)
    commit(tmp_path, 5, {"0": [["a"]], "1": [["b"]]})
    assert changes_of(tmp_path, 5) == (None, StateChanges("dedupe", (20,)))


def test_a_new_state_is_as_large_as_all_its_changes(tmp_path: Path) -> None:
    operator(tmp_path, 0, "stateStoreSave")
    operator(tmp_path, 1, "symmetricHashJoin")
    operator(tmp_path, 2, "dedupe")
    operator(tmp_path, 10, "dedupe")
    for path, size in {
        "0/0/1_a.changelog": 10,
        "0/0/2_b.changelog": 20,
        # A second try of the same mini-batch.
        "0/0/2_lost.changelog": 15,
        "0/0/3_later.changelog": 1000,
        "0/0/.2_b.changelog.crc": 1000,
        "0/1/2_c.changelog": 30,
        "1/0/left-keyToNumValues/1_a.changelog": 1,
        "1/0/right-keyToNumValues/1_a.changelog": 2,
        "2/0/1.delta": 5,
        "10/0/1.changelog": 7,
    }.items():
        write(tmp_path, path, size)
    assert bytes_of_changes(tmp_path, 1) == (60, 3, None, 7)
    assert bytes_of_changes(tmp_path, 0) == (10, 3, None, 7)
    assert bytes_of_changes(tmp_path / "none", 0) == ()
