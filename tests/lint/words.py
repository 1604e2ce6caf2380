"""Checks that words which a technical writer would not use do not become more frequent in the product.

`words.json` has the number of each word. `python -m tests.lint.words` writes the numbers after some have fallen.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.lint.sources import product_files

COUNTS = Path("tests/lint/words.json")

INSTEAD = {
    "told": "say what is returned, shown, reported or known",
    "tell": "returns, shows, reports",
    "tells": "returns, shows, reports",
    "reckon": "compute, expect",
    "anew": "again",
    "beside": "next to, in addition to",
    "behind": "after",
    "mend": "fix, repair",
    "mended": "fixed, repaired",
    "amid": "during",
    "lay": "stop, put",
    "asker": "caller",
    "stranger": "another caller",
    "deaf": "unresponsive",
    "doorbell": "announcer",
    "sign of life": "heartbeat",
    "parted": "split",
    "patience": "timeout",
    "doubt": "uncertainty, or what is not known",
    "cannot be had": "is not available",
    "as many as may": "the limit",
}
"""Word or phrase -> what to write instead."""

_FINDERS = {word: re.compile(rf"(?<![a-z]){word}(?![a-z])", re.IGNORECASE) for word in INSTEAD}


def check(root: Path) -> Iterator[str]:
    """Yields a sentence for every word that the product's files use more often than `words.json` says."""
    known: dict[str, int] = json.loads((root / COUNTS).read_text(encoding="utf-8"))
    found = counted(root)
    for word, instead in INSTEAD.items():
        if found[word] > known.get(word, 0):
            yield f'"{word}" is used {found[word]} times, {known.get(word, 0)} before. Write: {instead}.'


def counted(root: Path) -> Counter[str]:
    """Counts each word in the product's files, names included."""
    found: Counter[str] = Counter()
    for path in product_files(root):
        text = (root / path).read_text(encoding="utf-8")
        found.update({word: len(finder.findall(text)) for word, finder in _FINDERS.items()})
    return found


if __name__ == "__main__":
    here = Path(__file__).parents[2]
    (here / COUNTS).write_text(json.dumps(counted(here), indent=1, sort_keys=True) + "\n", encoding="utf-8")
