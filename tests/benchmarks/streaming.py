"""Compares Evenkeel's engine and Flink on streams, with the same CSV files and number of cores, and with checkpoints.

    python tests/benchmarks/streaming.py --flink FLINK_VENV [--data DIR] [--scale 1] [--rounds 3] [--cases NAME,…]
        [--settings NUMBER,…] [--backends rocksdb,hashmap] [--sink blackhole] [--line-by-line] [--json FILE]

With the backend `hashmap`, Evenkeel runs too with its state in memory (`state.provider`).

`FLINK_VENV` is an environment with `pip install apache-flink==2.3.0`; it needs Java 11 or 17. Every case runs on Flink
with each of its settings and backends, and on Evenkeel, in turn. Each run has its own process, which runs the query
twice and measures the second run with a warm JVM. Each of the `--rounds` rounds begins with another side. Flink's times
are the net run times of its jobs; Evenkeel's are from the start of the query to its end. Both discard their output;
with `--sink managed`, only Evenkeel stores its result, as a job does. Both read each file as a whole, in one task; with
`--line-by-line`, Evenkeel's tables are not `multi_line`, which is the default of jobs.

Prints a Markdown table with medians of thousand input rows per second, the range in parentheses, and the ratio of
Evenkeel to Flink's best setting on RocksDB. Writes all figures as JSON. The figures depend on the machine and its load.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.nexmark_cases import CASES as NEXMARK
from tests.benchmarks.streaming_cases import CASES, FLINK_SETTINGS, Case, generate, generate_files
from tests.support.machine import machine

_HERE = Path(__file__).parent
_EVENKEEL = "evenkeel"
_IN_MEMORY = "evenkeel in memory"
_HEAD = (
    "| case | to reach | Evenkeel | kept as | Flink, its best on RocksDB | with | ratio | "
    "Evenkeel in memory | Flink, heap | ratio |\n"
    "| --- | --- | ---: | --- | ---: | --- | ---: | ---: | ---: | ---: |\n"
)
_OWN_COMMAND = [sys.executable, str(_HERE / "streaming_evenkeel.py")]
_LIMIT_SECONDS = 900


def main() -> None:
    """Measures, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flink", type=Path, help="environment with apache-flink; without it Evenkeel alone is asked")
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "evenkeel-streaming-benchmark")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies rows")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cases", default="", help="names, separated by commas; all of them by default")
    parser.add_argument(
        "--settings", default=",".join(map(str, range(len(FLINK_SETTINGS)))), help="Flink's, by number, from 0"
    )
    parser.add_argument("--backends", default="rocksdb,hashmap")
    parser.add_argument("--sink", choices=("blackhole", "managed"), default="blackhole")
    parser.add_argument("--line-by-line", action="store_true", help="Evenkeel reads CSV as jobs do that set nothing")
    parser.add_argument("--job", type=json.loads, default={}, help="settings of Evenkeel's job, as JSON")
    parser.add_argument("--json", type=Path, default=Path("streaming.json"))
    arguments = parser.parse_args()
    chosen = arguments.cases.split(",") if arguments.cases else [case.name for case in (*CASES, *NEXMARK)]
    whole: dict[str, Any] = {"machine": machine(), "scale": arguments.scale, "rounds": arguments.rounds, "cases": []}
    sys.stdout.write(_HEAD)
    for case in (case for case in (*CASES, *NEXMARK) if case.name in chosen):
        found = measure(case, arguments)
        sys.stdout.write(line(case, found, case.rows(arguments.scale)))
        sys.stdout.flush()
        whole["cases"].append({"case": case.name, "about": case.about, "target": case.target, "sides": found})
        arguments.json.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"\nscale {arguments.scale:g}, medians of {arguments.rounds} rounds; {machine()}\n")


def measure(case: Case, arguments: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Returns the output of each side by round."""
    tables = _tables(case, arguments.data, arguments.scale)
    sides: list[tuple[str, list[str], dict[str, Any]]] = []
    with tempfile.TemporaryDirectory(dir=arguments.data) as scratch:
        asked = {"tables": tables, "sql": case.sql, "rounds": 2}
        own = {**asked, "work": f"{scratch}/evenkeel", "sink": arguments.sink, "settings": arguments.job}
        own["multi_line"] = not arguments.line_by_line
        sides.append((_EVENKEEL, _OWN_COMMAND, own))
        if "hashmap" in arguments.backends.split(","):
            settings = {**arguments.job, "state": {**arguments.job.get("state", {}), "provider": "memory"}}
            sides.append((_IN_MEMORY, _OWN_COMMAND, {**own, "settings": settings}))
        if arguments.flink is not None:
            command = [str(arguments.flink / "bin" / "python"), str(_HERE / "streaming_flink.py")]
            for number, name in enumerate(FLINK_SETTINGS):
                for backend in arguments.backends.split(",") if str(number) in arguments.settings.split(",") else ():
                    given = {**asked, "settings": FLINK_SETTINGS[name], "backend": backend}
                    sides.append((f"{name} on {backend}", command, {**given, "checkpoints": f"{scratch}/flink"}))
        found: dict[str, list[dict[str, Any]]] = {name: [] for name, _, _ in sides}
        for number in range(arguments.rounds):
            for name, command, given in sides[number % len(sides) :] + sides[: number % len(sides)]:
                found[name].append(_ask(command, given))
    return found


def small_batches(case: Case, data: Path, files: int, rows: int, checkout: Path) -> dict[str, Any]:
    """Runs the engine of a checkout of this repository, with a mini-batch for each file. Its result is managed."""
    tables = {
        name: {"columns": case.tables[name].columns, "path": str(generate_files(case.tables, name, data, files, rows))}
        for name in case.streams
    }
    command = [sys.executable, str(checkout / "tests" / "benchmarks" / "streaming_evenkeel.py")]
    with tempfile.TemporaryDirectory(dir=data) as scratch:
        asked = {"tables": tables, "sql": case.sql, "rounds": 2, "settings": {"mini_batch": {"enabled": False}}}
        return _ask(command, {**asked, "work": f"{scratch}/evenkeel", "sink": "managed"})


def evenkeel(case: Case, data: Path, scale: float, settings: dict[str, Any]) -> dict[str, Any]:
    """Runs Evenkeel's side in a process and returns its output. Raises as `subprocess.run` with `check`."""
    tables = _tables(case, data, scale)
    with tempfile.TemporaryDirectory(dir=data) as scratch:
        asked = {"tables": tables, "sql": case.sql, "rounds": 2, "settings": settings}
        return _ask(_OWN_COMMAND, {**asked, "work": f"{scratch}/evenkeel", "sink": "blackhole"})


def _tables(case: Case, data: Path, scale: float) -> dict[str, dict[str, str]]:
    return {
        name: {"columns": case.tables[name].columns, "path": str(generate(case.tables, name, data, scale))}
        for name in case.streams
    }


def line(case: Case, found: dict[str, list[dict[str, Any]]], rows: int) -> str:
    """Returns a row of the table."""
    speeds = {name: [rows / measured["seconds"][-1] / 1000 for measured in rounds] for name, rounds in found.items()}
    own = statistics.median(speeds[_EVENKEEL])
    best = _best(speeds, "rocksdb")
    heap = _best(speeds, "hashmap")
    cells = [
        case.about,
        "" if case.target is None else f">= {case.target:g}x",
        _speed(speeds[_EVENKEEL]),
        found[_EVENKEEL][-1]["shape"],
        "" if best is None else _speed(speeds[best]),
        "" if best is None else best.removesuffix(" on rocksdb"),
        "" if best is None else f"{own / statistics.median(speeds[best]):.2f}x",
        _speed(speeds[_IN_MEMORY]) if _IN_MEMORY in speeds else "",
        "" if heap is None else _speed(speeds[heap]),
        "" if heap is None else f"{statistics.median(speeds[_IN_MEMORY]) / statistics.median(speeds[heap]):.2f}x",
    ]
    return f"| {' | '.join(cells)} |\n"


def _best(speeds: dict[str, list[float]], backend: str) -> str | None:
    of_backend = [name for name in speeds if name.endswith(f" on {backend}")]
    return max(of_backend, key=lambda name: statistics.median(speeds[name]), default=None)


def _speed(rounds: Sequence[float]) -> str:
    return f"{statistics.median(rounds):.0f} k/s ({min(rounds):.0f}-{max(rounds):.0f})"


def _ask(command: Sequence[str], given: dict[str, Any]) -> dict[str, Any]:
    """Returns the last line that the child prints. Raises CalledProcessError and TimeoutExpired."""
    done = subprocess.run(
        [*command, json.dumps(given)], check=True, capture_output=True, text=True, timeout=_LIMIT_SECONDS
    )
    measured: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return measured


if __name__ == "__main__":
    main()
