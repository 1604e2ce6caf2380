"""Runs every check: `python -m tests.lint`. Exit code 1 where one finds a violation."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.lint import generated, imports, layout, log_events, rules, words

ROOT = Path(__file__).parents[2]
CHECKS = (imports, layout, rules, log_events, generated, words)


def main() -> int:
    """Prints all violations."""
    found = [violation for check in CHECKS for violation in check.check(ROOT)]
    for violation in found:
        sys.stderr.write(f"{violation}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
