"""Prints how far the estimated rows of operators were from the measured ones, in the file that `tpc.py` has written.

    python tests/benchmarks/tpc_estimates.py FILE

An estimate of 0 counts as 1, and so does a measured number of 0.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

OPERATORS = ("Join", "Filter", "Aggregate")
WITHIN = 10
PERCENTILES = (5, 25, 50, 75, 95)
_ALL = "all three"


@dataclass(frozen=True)
class Estimate:
    """The estimated and the measured number of rows that an operator returned."""

    operator: str
    estimated: int
    measured: int

    @property
    def factor(self) -> float:
        """The estimate divided by the measured number."""
        return max(self.estimated, 1) / max(self.measured, 1)


def summary(estimates: Sequence[Estimate]) -> str:
    """Returns a Markdown table: percentiles of estimated divided by measured rows, and the share within 10x."""
    columns = [f"p{percentile}" for percentile in PERCENTILES]
    lines = [f"| operator | number | {' | '.join(columns)} | within {WITHIN}x |"]
    lines.append("| --- " + "| ---: " * (len(columns) + 2) + "|")
    for name in (*OPERATORS, _ALL):
        wanted = OPERATORS if name == _ALL else (name,)
        factors = sorted(each.factor for each in estimates if each.operator in wanted)
        if factors:
            places = [round(percentile / 100 * (len(factors) - 1)) for percentile in PERCENTILES]
            shown = " | ".join(f"{factors[place]:.3g}" for place in places)
            share = sum(1 / WITHIN <= factor <= WITHIN for factor in factors) / len(factors)
            lines.append(f"| {name} | {len(factors)} | {shown} | {share:.0%} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Prints the table of a file."""
    found = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    sys.stdout.write(summary([Estimate(**each) for one in found.values() for each in one["estimates"]]))


if __name__ == "__main__":
    main()
