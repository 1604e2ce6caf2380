"""Compares plain Spark, Evenkeel's engine and DuckDB on the cases that the engine was built for, on the same files.

    python tests/benchmarks/batch.py [--data DIR] [--scale 1] [--rounds 5] [--limit 300] [--cases NAME,…] [--cold]
        [--sides NAME,…] [--json FILE]

Generates the tables (cached below `--data`, some GB at scale 1) and runs all sides in turn: a warm-up round, in which
their results are compared, and then the measured rounds, each beginning with another side. Evenkeel has default
settings and, as on a worker, the statistics of the previous round (with `--cold`, it collects them in each round).
Plain Spark 4.3 has its defaults, with adaptive execution; tuned Spark has the number of shuffle partitions of an
Evenkeel worker; DuckDB has two threads. Every case runs in a child process with its own driver, so that no case profits
from another or fails with it. A side that exceeds `--limit` seconds is marked and not run again.

Hottest tasks and makespans come from one more run of each Spark side, with 256 partitions for 256 slots and without
coalescing. The makespan is simulated from the task times, stage by stage, longest task first.

Prints a Markdown table and writes all figures as JSON. The figures depend on the machine and its load.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.batch_cases import CASES, Case, generate
from tests.benchmarks.batch_figures import DUCKDB, ENGINE, HEAD, PLAIN, TUNED, Side, line, summary
from tests.support.machine import machine

_EVERY = (ENGINE, DUCKDB, TUNED, PLAIN)
"""In the order of the warm-up; plain Spark, which may not finish, is last."""
_WIDE = (ENGINE, PLAIN)
"""The sides that also run with partitions for many slots."""


def main() -> None:
    """Measures, prints and writes the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "evenkeel-benchmark")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies rows and keys")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for each run of a side")
    parser.add_argument("--memory", default="5g", help="of Spark's driver")
    parser.add_argument("--cases", default="", help="names, separated by commas; all of them by default")
    parser.add_argument("--sides", default=",".join(_EVERY), help="names, separated by commas; all of them by default")
    parser.add_argument("--cold", action="store_true", help="read the statistics again in every round")
    parser.add_argument("--json", type=Path, default=Path("batch.json"))
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.data.mkdir(parents=True, exist_ok=True)
    if arguments.child:
        _measure_here(arguments)
        return
    chosen = arguments.cases.split(",") if arguments.cases else [case.name for case in CASES]
    sys.stdout.write(HEAD)
    summaries = []
    for case in (case for case in CASES if case.name in chosen):
        sides = measure(case, arguments)
        sys.stdout.write(line(case.about, case.target, sides))
        sys.stdout.flush()
        summaries.append({"case": case.name, "about": case.about, "target": case.target, "sides": summary(sides)})
        whole = {"machine": machine(), "scale": arguments.scale, "rounds": arguments.rounds, "cold": arguments.cold}
        whole["cases"] = summaries
        arguments.json.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"\nscale {arguments.scale:g}, medians of {arguments.rounds} rounds; {machine()}\n")


def measure(case: Case, arguments: argparse.Namespace) -> dict[str, Side]:
    """Measures every side of a case in a child process; after a failure, the others in a second one."""
    generate(case, arguments.data, arguments.scale)
    wanted = [name for name in _EVERY if name in arguments.sides.split(",")]
    sides = _child(case, wanted, arguments)
    rest = [name for name in wanted if sides[name].trouble is None]
    if len(rest) < len(wanted):
        # A query that could not be stopped may still have run in the first child's driver.
        sides |= _child(case, rest, arguments) if rest else {}
    return sides


def _child(case: Case, names: Sequence[str], arguments: argparse.Namespace) -> dict[str, Side]:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        options = ["--data", arguments.data, "--scale", arguments.scale, "--rounds", arguments.rounds]
        options += ["--limit", arguments.limit, "--memory", arguments.memory, "--json", file.name]
        options += ["--cases", case.name, "--child", ",".join(names), *(["--cold"] if arguments.cold else [])]
        command = [sys.executable, str(Path(__file__)), *map(str, options)]
        done = subprocess.run(command, stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False)
        written = Path(file.name).read_text(encoding="utf-8")
    if done.returncode or not written:
        return {name: Side(trouble=f"ended with {done.returncode}") for name in names}
    return {name: Side(**side) for name, side in json.loads(written).items()}


def _measure_here(arguments: argparse.Namespace) -> None:
    """Measures one case in this process and writes each side of `--child` to `--json`."""
    from tests.benchmarks.batch_sides import Measured, Sides, UnfinishedError

    (case,) = (case for case in CASES if case.name == arguments.cases)
    names = arguments.child.split(",")
    root = generate(case, arguments.data, arguments.scale)
    asked = Sides(case, root, arguments.memory, arguments.limit, cold=arguments.cold)
    trouble: dict[str, str] = {}

    def ask(name: str, *, wide: bool = False) -> Measured | None:
        try:
            return asked.run(name, wide=wide)
        except UnfinishedError:
            trouble[name] = f"not in {arguments.limit:g} s"
        except Exception as error:  # noqa: BLE001 - a side that fails is a finding, not the end of the others
            trouble[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        return None

    runs: dict[str, list[Measured]] = {name: [] for name in names}
    answers = {}
    for name in names:
        if ask(name):
            answers[name] = asked.checksum()
    for name, answer in answers.items():
        if answer != next(iter(answers.values())):
            trouble[name] = f"gave another answer: {answer}"
    if not trouble:
        for number in range(arguments.rounds):
            for name in (*names[number % len(names) :], *names[: number % len(names)]):
                found = ask(name)
                runs[name] += [found] if found else []
    wide = {name: ask(name, wide=True) for name in names if name in _WIDE and not trouble}
    sides = {
        name: Side(
            [run.seconds for run in runs[name]],
            found.stages if (found := wide.get(name)) else [],
            trouble.get(name),
            runs[name][0].rules if runs[name] else [],
            found.reducing if found else [],
            found.rules if found else [],
        )
        for name in names
    }
    arguments.json.write_text(json.dumps({name: asdict(side) for name, side in sides.items()}), encoding="utf-8")
    # Without Spark's shutdown, which would wait for a query that could not be stopped.
    if trouble:
        sys.stdout.flush()
        os._exit(0)
    asked.close()


if __name__ == "__main__":
    main()
