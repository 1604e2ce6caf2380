"""Tests that Redocly and Spectral find no errors in openapi.yaml, but find planted ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.node import run_node

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "openapi.yaml"
CONFIGURATIONS = Path(__file__).parent


def redocly(document: Path) -> list[tuple[str, str]]:
    """Returns Redocly's findings: rule and message."""
    run = run_node(["redocly", "lint", f"--config={CONFIGURATIONS / 'redocly.yaml'}", "--format=json", document])
    assert run.stdout, run.stderr
    return [(found["ruleId"], found["message"]) for found in json.loads(run.stdout)["problems"]]


def spectral(document: Path) -> list[tuple[str, str]]:
    """Returns Spectral's findings: rule and message."""
    ruleset = CONFIGURATIONS / "spectral.yaml"
    run = run_node(["spectral", "lint", f"--ruleset={ruleset}", "--format=json", "--quiet", document])
    assert run.returncode in (0, 1), run.stderr
    # Spectral prints another line after the list, or instead of an empty list.
    found, _ = json.JSONDecoder().raw_decode(run.stdout) if run.stdout.startswith("[") else ([], 0)
    return [(each["code"], each["message"]) for each in found]


LINTERS = {"redocly": redocly, "spectral": spectral}


@pytest.mark.parametrize("linter", LINTERS)
def test_linter_finds_nothing(linter: str) -> None:
    assert LINTERS[linter](COMMITTED) == []


@pytest.mark.parametrize(
    ("linter", "rules"),
    [
        (
            "redocly",
            {
                "no-invalid-media-type-examples",
                "operation-4xx-problem-details-rfc7807",
                "response-contains-header",
                "security-defined",
            },
        ),
        ("spectral", {"info-contact", "operation-description", "oas3-valid-media-example"}),
    ],
)
def test_linter_finds_planted_errors(linter: str, rules: set[str], tmp_path: Path) -> None:
    document = yaml.safe_load(COMMITTED.read_text(encoding="utf-8"))
    spoil(document)
    spoilt = tmp_path / "openapi.yaml"
    spoilt.write_text(yaml.safe_dump(document), encoding="utf-8")
    assert rules <= {found for found, _ in LINTERS[linter](spoilt)}


def spoil(document: dict[str, Any]) -> None:
    """Breaks one rule after the other."""
    del document["info"]["contact"]
    health = document["paths"]["/healthz"]["get"]
    del health["security"]
    del health["description"]
    del document["components"]["responses"]["unavailable"]["headers"]
    health["responses"]["200"]["content"]["application/json"]["example"]["status"] = 200
    answer = document["components"]["responses"]["job_not_found"]
    answer["content"] = {"application/json": answer["content"]["application/problem+json"]}
