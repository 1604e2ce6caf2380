"""Tests that programs with the generated TypeScript types receive every documented problem."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients.acting import acting
from tests.clients.acts import Acts
from tests.clients.provoked import LAST, LATE, idle_service
from tests.clients.specification import documented
from tests.clients.typescript_client import TYPESCRIPT, check_types, generate_types, run_program
from tests.support.production import Production

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

PROVOCATIONS = TYPESCRIPT / "provocations.ts"
NOT_PROVOKED = {"host_not_allowed": "fetch does not let a program choose the Host"}
EARLY = [*sorted(documented().difference(LATE, LAST, NOT_PROVOKED)), *LAST]


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the generated types."""
    directory = tmp_path_factory.mktemp("typescript-problems")
    generate_types(directory)
    shutil.copy(PROVOCATIONS, directory)
    return directory


@pytest.fixture(scope="module")
def met(types: Path, production: Production, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The status and the problem by code, or the reason why there is none."""
    found = provoked(types, production, LATE)
    with idle_service(tmp_path_factory.mktemp("idle-typescript")) as idle:
        return found | provoked(types, idle, EARLY)


def provoked(types: Path, production: Production, codes: Sequence[str]) -> dict[str, Any]:
    acts = Acts(production)
    with acting(acts) as address:
        run = run_program(types, PROVOCATIONS.name, acts.address, address, acts.admin, *codes)
    assert run.returncode == 0, run.stdout + run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def test_compiler_accepts_each_problem(types: Path) -> None:
    assert check_types(types, PROVOCATIONS) == []


def test_every_documented_problem_is_provoked() -> None:
    known = set(re.findall(r"^  (\w+): (?:async )?\(\) =>", PROVOCATIONS.read_text(encoding="utf-8"), re.MULTILINE))
    assert known == {*EARLY, *LATE}
    assert known | NOT_PROVOKED.keys() == documented()


@pytest.mark.parametrize("code", [*EARLY, *LATE])
def test_problems_are_typed(code: str, met: dict[str, Any]) -> None:
    answer = met[code]
    assert "failure" not in answer, answer["failure"]
    problem = answer["problem"]
    assert (problem["code"], problem["type"], problem["status"]) == (code, f"/problems/{code}", answer["status"])
    assert problem["detail"]
    assert problem["title"]
