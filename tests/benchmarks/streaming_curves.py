"""Measures Evenkeel's streams with larger and smaller mini-batches, with small ones, and with ten times the input.

    python tests/benchmarks/streaming_curves.py [--data DIR] [--cases NAME,…] [--rounds 3] [--json FILE]
        sizes [--sizes 50000,…] [--scale 0.4]
        small [--files 60] [--rows 1000] [--against CHECKOUT]
        growth [--scale 0.4] [--times 10]

`sizes`: throughput, duration of a mini-batch, and state operations, by rows of a mini-batch. `small`: the duration and
processor time of small mini-batches that store their result, also with another checkout of the repository; the first
third is not counted in the durations. `growth`: processor time and wall time per row for an input and for one that is
`--times` as long, and the bytes of their checkpoints.

Each measurement has its own process, which runs the query twice and measures the second run with a warm JVM; compared
measurements alternate. The cases are those of `streaming.py`. Prints Markdown tables and writes all figures as JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.streaming import evenkeel, small_batches
from tests.benchmarks.streaming_cases import CASES, Case
from tests.support.machine import machine

_SIZES = "25000,50000,100000,250000,500000,1000000,2000000"

Output = dict[str, Any]


def main() -> None:
    """Measures, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sizes", "small", "growth"))
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "evenkeel-streaming-benchmark")
    parser.add_argument("--cases", default="", help="names, separated by commas; all of them by default")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=0.4)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--sizes", default=_SIZES)
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--json", type=Path, default=Path("streaming-curves.json"))
    arguments = parser.parse_args()
    chosen = arguments.cases.split(",") if arguments.cases else [case.name for case in CASES]
    head, measured = {"sizes": _sizes, "small": _small, "growth": _growth}[arguments.what](arguments)
    sys.stdout.write(head)
    found = {}
    for case in (case for case in CASES if case.name in chosen):
        found[case.name] = measured(case)
        arguments.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"\nscale {arguments.scale:g}, medians of {arguments.rounds} rounds; {machine()}\n")


def _sizes(arguments: argparse.Namespace) -> tuple[str, Any]:
    sizes = [int(size) for size in arguments.sizes.split(",")]

    def measured(case: Case) -> dict[str, list[Output]]:
        ways = {str(size): (arguments.scale, {"mini_batch": {"size": size}}) for size in sizes}
        found = _in_turns(case, ways, arguments)
        for size, rounds in found.items():
            batches = [batch for output in rounds for batch in output["mini_batches"][:-1] or output["mini_batches"]]
            speeds = [case.rows(arguments.scale) / output["seconds"][-1] / 1000 for output in rounds]
            cells = [
                case.about,
                f"{int(size):,}",
                _range(speeds, ".0f"),
                f"{statistics.median(batch['ms'] for batch in batches) / 1000:.2f} s",
                f"{statistics.median(batch['operations_per_row'] for batch in batches):.3f}",
            ]
            sys.stdout.write(f"| {' | '.join(cells)} |\n")
            sys.stdout.flush()
        return found

    head = "| case | rows a mini-batch | thousand rows a second | a mini-batch takes | state operations a row |\n"
    return f"{head}| --- | ---: | ---: | ---: | ---: |\n", measured


def _small(arguments: argparse.Namespace) -> tuple[str, Any]:
    checkouts = {"here": Path(__file__).parents[2]}
    if arguments.against is not None:
        checkouts["against"] = arguments.against

    def measured(case: Case) -> dict[str, list[Output]]:
        found: dict[str, list[Output]] = {name: [] for name in checkouts}
        for number in range(arguments.rounds):
            for name in list(checkouts)[:: -1 if number % 2 else 1]:
                made = small_batches(case, arguments.data, arguments.files, arguments.rows, checkouts[name])
                found[name].append(made)
        cells = [case.about, found["here"][-1]["shape"]]
        for figures in (_milliseconds, _processor_milliseconds):
            of_side = {name: [figures(output) for output in rounds] for name, rounds in found.items()}
            cells += [f"{_range(of_side[name], '.0f')} ms" for name in reversed(checkouts)]
            cells.append(f"{statistics.median(of_side['here']) / statistics.median(of_side[list(checkouts)[-1]]):.2f}x")
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
        sys.stdout.flush()
        return found

    figures = ("a mini-batch takes", "processor time of one")
    head = "".join(f" {figure}, {name} |" for figure in figures for name in (*reversed(checkouts), "ratio"))
    return f"| case | kept as |{head}\n| --- | --- |{' ---: |' * head.count('|')}\n", measured


def _milliseconds(output: Output) -> float:
    batches = output["mini_batches"]
    return float(statistics.median(batch["ms"] for batch in batches[len(batches) // 3 :]))


def _processor_milliseconds(output: Output) -> float:
    return float(1000 * output["cpu_seconds"][-1] / len(output["mini_batches"]))


def _growth(arguments: argparse.Namespace) -> tuple[str, Any]:
    def measured(case: Case) -> dict[str, list[Output]]:
        scales = {"once": arguments.scale, "grown": arguments.scale * arguments.times}
        found = _in_turns(case, {name: (scale, {}) for name, scale in scales.items()}, arguments)
        cells = [case.about, found["once"][-1]["shape"]]
        for figure, unit in (("cpu_seconds", "µs"), ("seconds", "µs")):
            per_row = {
                name: [output[figure][-1] / case.rows(scales[name]) * 1e6 for output in rounds]
                for name, rounds in found.items()
            }
            medians = {name: statistics.median(rounds) for name, rounds in per_row.items()}
            cells += [f"{_range(per_row[name], '.1f')} {unit}" for name in scales]
            cells.append(f"{medians['grown'] / medians['once']:.2f}x")
        cells += [f"{found[name][-1]['checkpoint_bytes'] / 1e6:.1f} MB" for name in scales]
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
        sys.stdout.flush()
        return found

    times = arguments.times
    head = (
        f"| case | kept as | processor time a row | with {times}x the input | ratio | wall time a row | "
        f"with {times}x | ratio | checkpoint | with {times}x |\n"
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n"
    )
    return head, measured


def _in_turns(
    case: Case, ways: Mapping[str, tuple[float, dict[str, Any]]], arguments: argparse.Namespace
) -> dict[str, list[Output]]:
    """Returns the output of each variant by round. A variant is a scale and a job's settings."""
    found: dict[str, list[Output]] = {name: [] for name in ways}
    names = list(ways)
    for number in range(arguments.rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            scale, settings = ways[name]
            found[name].append(evenkeel(case, arguments.data, scale, settings))
    return found


def _range(values: Sequence[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}-{max(values):{form}})"


if __name__ == "__main__":
    main()
