"""Tests of dependencies: each is pinned to a final version, needed, and has a licence that allows shipping it.

Security advisories and withdrawn releases need a network. The documented audit command checks them; here, it runs
against a local index.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections import defaultdict
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.support import documents
from tests.support.package_index import package_index

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = [
    Requirement(line)
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    if not line.startswith("#")
]
PINNED: dict[str, Requirement] = {canonicalize_name(pin.name): pin for pin in PINS}
FREE = re.compile(
    r"(MIT|BSD|0BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla|Zlib|CC0|LGPL-3)[A-Za-z0-9.() -]*"
)
"""Prefixes of the licences that are compatible with an Apache-2.0 service."""


def requirements(name: str, extras: set[str]) -> list[Requirement]:
    """Returns the requirements of a package with these extras on all platforms; none if it is not installed here."""
    if name == PROJECT["name"]:
        optional = PROJECT["optional-dependencies"]
        return [
            Requirement(line) for line in (*PROJECT["dependencies"], *(r for extra in extras for r in optional[extra]))
        ]
    try:
        asked = [Requirement(line) for line in distribution(name).requires or ()]
    except PackageNotFoundError:
        return []
    return [one for one in asked if "extra" not in str(one.marker) or any(holds(one, extra) for extra in extras)]


def holds(one: Requirement, extra: str = "") -> bool:
    """Whether a requirement applies to this machine."""
    return one.marker is None or one.marker.evaluate({"extra": extra})


@cache
def needed(*extras: str, everywhere: bool = False) -> dict[str, list[Requirement]]:
    """Returns the needed packages with their requirements, on this machine or `everywhere`."""
    found: dict[str, list[Requirement]] = defaultdict(list)
    seen: set[tuple[str, str]] = set()
    ahead = [(PROJECT["name"], {*extras})]
    while ahead:
        name, own = ahead.pop()
        for one in requirements(name, own):
            asked = canonicalize_name(one.name)
            if not (everywhere or any(holds(one, extra) for extra in own | {""})):
                continue
            found[asked].append(one)
            if (asked, str(sorted(one.extras))) not in seen:
                seen.add((asked, str(sorted(one.extras))))
                ahead.append((asked, one.extras))
    # pip is part of the environment: it installs the pinned packages.
    for own_name in (PROJECT["name"], "pip"):
        found.pop(own_name, None)
    return found


def test_each_pin_is_a_final_version() -> None:
    assert [str(pin) for pin in PINS if not is_one_final_version(pin)] == []


def is_one_final_version(pin: Requirement) -> bool:
    (specifier,) = pin.specifier
    pinned = Version(specifier.version)
    return specifier.operator == "==" and not pinned.is_prerelease and pinned.local is None


def test_each_package_is_pinned_once() -> None:
    assert len(PINNED) == len(PINS)


def test_installed_versions_are_pinned_and_satisfy_requirements() -> None:
    wrong = []
    for name, asked in needed("test").items():
        installed = version(name)
        wrong += [f"{one}, but {installed} is installed" for one in asked if not one.specifier.contains(installed)]
        if str(PINNED[name].specifier) != f"=={installed}":
            wrong.append(f"{PINNED[name]}, but {installed} is installed")
    assert wrong == []


def test_every_pin_is_needed() -> None:
    assert set(PINNED) - set(needed("test", everywhere=True)) == set()


def test_licences_allow_shipping() -> None:
    found = {name: licences(name) for name in needed("worker", "demo")}
    refused = {name: own for name, own in found.items() if not own or not all(map(FREE.fullmatch, own))}
    assert refused == {}


def licences(name: str) -> list[str]:
    """Returns the licences in a package's metadata, from any of the three fields for them."""
    metadata = distribution(name).metadata
    classifiers = [line for line in metadata.get_all("Classifier", []) if line.startswith("License ::")]
    told = "".join(metadata.get_all("License-Expression", []))
    if not told and classifiers:
        return [line.rpartition("::")[2].strip() for line in classifiers]
    told = told or "".join(metadata.get_all("License", [])).partition("\n")[0]
    return [part.strip("() ") for part in re.split(r" AND | OR ", told) if part]


AUDITED = ("celery", "redis", "starlette")
ADVISORY = {
    "id": "PYSEC-2026-1",
    "aliases": [],
    "details": "It is made up.",
    "summary": "It is made up.",
    "fixed_in": ["99"],
    "withdrawn": None,
    "link": "https://example.org",
    "source": "osv",
}


class TestAudit:
    """The documented `pip-audit` command with some of the pins, against a local index."""

    def audit(self, tmp_path: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        command = documents.block("command: audit").strip()
        program, *options = shlex.split(command.rpartition(" && ")[2])
        assert program == ".venv/bin/pip-audit"
        (tmp_path / "constraints.txt").write_text("".join(f"{PINNED[name]}\n" for name in AUDITED))
        return subprocess.run(
            [sys.executable, "-m", "pip_audit", *options, "--cache-dir", str(tmp_path / "cache")],
            cwd=tmp_path,
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    @pytest.mark.not_quick
    @pytest.mark.parametrize(
        ("known", "code", "told"),
        [
            ({name: [] for name in AUDITED}, 0, "No known vulnerabilities found"),
            ({name: [] for name in AUDITED} | {"celery": [ADVISORY]}, 1, "PYSEC-2026-1"),
            # An index without advisories data must not count as a passed audit.
            ({}, 1, "could not be audited"),
        ],
        ids=["clean", "an advisory", "an empty index"],
    )
    def test_audit_fails_for_unknown_or_vulnerable_packages(
        self, tmp_path: Path, known: dict[str, list[Any]], code: int, told: str
    ) -> None:
        with package_index(lambda name: known.get(canonicalize_name(name)), tmp_path) as environment:
            done = self.audit(tmp_path, dict(environment))
        assert told in done.stdout + done.stderr
        assert done.returncode == code

    @pytest.mark.not_quick
    def test_audit_fails_without_a_network(self, tmp_path: Path) -> None:
        done = self.audit(tmp_path, {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": ""})
        assert done.returncode != 0
        assert "No known vulnerabilities" not in done.stdout + done.stderr
