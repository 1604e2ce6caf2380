"""What can be told of the image without building it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

from tests.support.compose import ROOT, read_compose

LINES = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
INSTRUCTIONS = [line.split(maxsplit=1) for line in LINES if re.match(r"[A-Z]+ ", line)]


def arguments(instruction: str) -> list[str]:
    return [given for name, given in INSTRUCTIONS if name == instruction]


def test_the_linter_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    assert hadolint.exists(), "These tests need hadolint: pip install '.[test]'"
    done = subprocess.run(
        [hadolint, "--no-color", ROOT / "Dockerfile"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_is_ignored_for_a_reason_alone() -> None:
    for before, line in pairwise(LINES):
        if "hadolint ignore" in line:
            assert re.match(r"# [A-Z].+\.$", before), f"{line} needs its reason in the line above"


def test_bases_are_pinned_and_agree() -> None:
    build, postgres, final = (given.split()[0] for given in arguments("FROM"))
    assert build == final
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-bookworm", final)
    # The programs of a backup must not be older than the server.
    assert postgres == read_compose()["services"]["postgres"]["image"]


def test_it_runs_as_the_user_that_the_compose_file_names() -> None:
    users = {
        service["user"] for service in read_compose()["services"].values() if service["image"].startswith("evenkeel:")
    }
    assert users == set(arguments("USER")) == {"10001:10001"}


def test_signals_reach_the_process() -> None:
    for given in (*arguments("ENTRYPOINT"), *arguments("CMD")):
        assert isinstance(json.loads(given), list), "the exec form, without a shell in between"


def test_everything_it_copies_is_sent_to_the_builder() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    sent = {line.removeprefix("!") for line in ignored if line.startswith("!")}
    copied = {path for given in arguments("COPY") if "--from" not in given for path in given.split()[:-1]}
    assert copied == sent
    assert ignored[1] == "*", "all else stays out, secrets in .env above all"
    assert all((ROOT / path).exists() for path in copied)
