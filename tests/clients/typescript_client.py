"""Generates the TypeScript client from openapi.yaml, checks programs with `tsc`, and bundles them for Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.support.node import node_packages, run_node

ROOT = Path(__file__).parents[2]
TYPESCRIPT = Path(__file__).parent / "typescript"


def generate_types(directory: Path) -> None:
    """Writes `evenkeel.d.ts` to a directory in which programs can import the packages of `tests/node`."""
    (directory / "node_modules").symlink_to(node_packages(), target_is_directory=True)
    options = ("--default-non-nullable=false", "-o", directory / "evenkeel.d.ts")
    run = run_node(("openapi-typescript", ROOT / "openapi.yaml", *options))
    assert run.returncode == 0, run.stdout + run.stderr


def check_types(directory: Path, *programs: Path) -> list[str]:
    """Copies the programs next to the types and returns the errors of `tsc --strict`, one per line."""
    shutil.copy(TYPESCRIPT / "tsconfig.json", directory)
    for program in programs:
        shutil.copy(program, directory)
    settings = {"extends": "./tsconfig.json", "files": [program.name for program in programs]}
    (directory / "tsconfig.programs.json").write_text(json.dumps(settings), encoding="utf-8")
    run = run_node(
        ["tsc", "--strict", "--noEmit", "--pretty", "false", "--project", "tsconfig.programs.json"], cwd=directory
    )
    assert run.returncode == 0 or run.stdout, run.stderr
    return [line for line in run.stdout.splitlines() if not line.startswith(" ")]


def run_program(directory: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Bundles the program in the directory and runs it."""
    bundle = ["esbuild", name, "--bundle", "--platform=node", "--format=esm", "--outfile=program.mjs"]
    bundled = run_node(bundle, cwd=directory)
    assert bundled.returncode == 0, bundled.stderr
    return run_node(["node", "program.mjs", *arguments], cwd=directory, seconds=300)
