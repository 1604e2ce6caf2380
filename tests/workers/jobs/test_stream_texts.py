"""Paths of the service's own files are removed from Spark's messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from workers.jobs.outcome import StreamErrorTexts

OURS = Path("/var/my streams%é[1]")


@pytest.mark.parametrize(
    ("text", "is_told"),
    [
        (f"Error reading delta file {OURS}/job/g1/state/0/0/2.delta of HDFSStateStoreProvider", False),
        ("[FAILED_READ_FILE] file:///var/my%20streams%25é[1]/_input/default/s/1.parquet.", False),
        ("file:/var/my%20streams%25%c3%A9%5B1%5D/job/g1/checkpoint", False),
        (f"{OURS}: no space left", False),
        (f"{OURS}-of-others/1.csv cannot be read", True),
        ("[DIVIDE_BY_ZERO] Division by zero.", True),
        ("file:///data/clicks/1.csv", True),
    ],
)
def test_what_the_services_own_files_are_about_is_not_for_clients(text: str, is_told: bool) -> None:
    assert StreamErrorTexts(OURS)(text) == (text if is_told else None)


def test_paths_of_copies_are_replaced_for_clients() -> None:
    texts = StreamErrorTexts(OURS)
    texts.with_own_names = lambda text: text.replace(f"{OURS}/job/g1/dimensions/u/v1/00000.csv", "names/0.csv")
    assert texts(f"{OURS}/job/g1/dimensions/u/v1/00000.csv is broken") == "names/0.csv is broken"
    assert texts(f"{OURS}/job/g1/dimensions/u/v1/00000.csv is broken, {OURS}/job too") is None
