"""The TypeScript client that openapi-typescript makes of openapi.yaml, against the running service."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.clients.typescript_client import TYPESCRIPT, check_types, generate_types, run_program
from tests.support.production import Production

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

JOURNEY = TYPESCRIPT / "journey.ts"

PROBLEMS = [
    ["unauthenticated", 401],
    ["invalid_request", 422],
    ["invalid_cursor", 400],
    ["job_not_found", 404],
    ["unknown_column", 422],
    ["idempotency_key_reused", 422],
    ["job_already_finished", 409],
    ["not_a_stream", 409],
    ["not_acceptable", 406],
    ["stream_differs", 409],
    ["stream_not_found", 404],
    ["invalid_rows", 422],
    ["unknown_worker", 404],
    ["key_not_found", 404],
]


@pytest.fixture(scope="module")
def types(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the generated types lie."""
    directory = tmp_path_factory.mktemp("typescript-client")
    generate_types(directory)
    return directory


def test_program_is_typed(types: Path) -> None:
    assert check_types(types, JOURNEY) == []


WRONG = {
    'agg_phase: "TWO_PHASE"': 'agg_phase: "THREE_PHASE"',
    "metrics.skew.advice": "metrics.skew.advise",
    "const problem: Problem = answer.error": "const problem: Job = answer.error",
    'if (typeof read === "string") throw new Error("a page was asked for");': "",
}


def test_unknown_fields_do_not_compile(types: Path, tmp_path: Path) -> None:
    text = JOURNEY.read_text(encoding="utf-8")
    programs = [tmp_path / f"wrong-{number}.ts" for number in range(len(WRONG))]
    for program, (right, wrong) in zip(programs, WRONG.items(), strict=True):
        assert right in text
        program.write_text(text.replace(right, wrong), encoding="utf-8")
    found = check_types(types, *programs)
    assert {line.partition("(")[0] for line in found} == {program.name for program in programs}, found


def test_program_from_job_to_result_with_problems(types: Path, production: Production) -> None:
    (api,) = production.apis
    shutil.copy(JOURNEY, types)
    run = run_program(types, JOURNEY.name, api.address, production.key(tenant="typescript"))
    assert run.returncode == 0, run.stdout + run.stderr
    seen = json.loads(run.stdout)
    assert seen["location"] == f"/v1/jobs/{seen['id']}"
    assert seen["status"] == "SUCCEEDED"
    assert [len(page) for page in seen["pages"]] == [20, 15]
    assert seen["pages"][0][0] == ["BOEING", 82912]
    assert seen["csv"] == ['"manufacturer","flights"', '"BOEING",82912']
    assert seen["fired"] == ["two_phase_aggregate"]
    assert seen["advice"]
    assert seen["events"][0] == seen["events"][-1] == "status"
    assert seen["problems"] == PROBLEMS
