"""Runs every check: `python -m tests.lint`. The exit code is 1 if one finds a violation."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.lint import generated, imports, layout, log_events, references, rules, words

ROOT = Path(__file__).parents[2]
CHECKS = (imports, layout, references, rules, log_events, generated, words)


def main() -> int:
    """Prints all violations and returns the exit code."""
    found = [violation for check in CHECKS for violation in check.check(ROOT)]
    for violation in found:
        sys.stderr.write(f"{violation}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
