"""The README's tour over HTTP, done as it is written there."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.cli.demo.landing import land
from tests.support.service import running_service

pytestmark = [pytest.mark.e2e, pytest.mark.long]

ROOT = Path(__file__).parents[2]
ADDRESS = "localhost:8080"
AN_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
CUT = ", …"
"""Where the README shows no more of a line."""


def steps(block: str) -> Iterator[tuple[str, list[str]]]:
    """Commands, which begin with `$ ` and go on until the shell takes them, with what they print."""
    lines = iter(block.splitlines())
    command, printed = "", list[str]()
    for line in lines:
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line[2:], []
            while subprocess.run(["bash", "-n", "-c", command], capture_output=True, check=False).returncode:
                command += "\n" + next(lines)
        else:
            printed.append(line)
    yield command, printed


def test_the_tour_leads_where_it_says(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"<!-- executed: tour -->\n```console\n(.*?)```\n", readme, re.DOTALL)
    told = AN_ID.findall(block)
    assert len(set(told)) == 1
    with running_service(tmp_path) as service:
        land(service.data, reports=1_000)
        job_id, assigned = told[0], ""
        tour = list(steps(block))
        assert len(tour) > 5
        for command, expected in tour:
            here = command.replace(ADDRESS, service.address.removeprefix("http://")).replace(told[0], job_id)
            if re.fullmatch(r"\w+=\S+", here):
                assigned += here + "\n"
                continue
            done = subprocess.run(
                ["bash", "-c", assigned + here], capture_output=True, text=True, timeout=120, check=False
            )
            assert done.returncode == 0, (command, done.stderr)
            printed = [line.rstrip("\r") for line in done.stdout.splitlines()]
            if command.startswith("curl -si"):
                job_id = AN_ID.findall(done.stdout)[0]
            for found, wanted in zip(printed, expected, strict=True):
                wanted = wanted.replace(told[0], job_id)
                whole = not wanted.endswith(CUT)
                assert found == wanted if whole else found.startswith(wanted.removesuffix(CUT)), command
