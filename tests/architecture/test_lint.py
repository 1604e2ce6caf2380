"""Tests that each check of `tests.lint` finds a violation in a small source tree."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lint import generated, imports, layout, log_events, references, rules, words
from tests.lint.__main__ import ROOT
from workers.engine.rules.joins.join_strategy import JoinStrategy

Check = Callable[[Path], Iterator[str]]


def planted(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("check", "path", "text", "expected"),
    [
        (
            imports.check,
            "service/contract/one.py",
            "from workers import process",
            "may not import workers.process",
        ),
        (imports.check, "service/client/one.py", "from service.contract import job", "service.contract relatively"),
        (imports.check, "service/sql/one.py", "from ..store import jobs", "may not import service.store.jobs"),
        (imports.check, "workers/process/one.py", "def f():\n    import pyspark", "may not import pyspark"),
        (imports.check, "workers/engine/plan/one.py", "import time", "may not import time"),
        (imports.check, "workers/engine/rules/one.py", "x = datetime.now()", "may not read the clock"),
        (imports.check, "service/jobs/one.py", "from sqlalchemy import select", "may not import sqlalchemy.select"),
        (references.check, "service/one.py", '"""See `sql/gone.py`."""', "no file sql/gone.py"),
        (references.check, "service/one.py", "# As service.store.gone.find does.", "no service.store.gone.find"),
        (references.check, "service/one.py", '"""As `service.one.gone`."""', "no service.one.gone"),
        (layout.check, "service/one.py", '"""Doc."""\n' + "x = 1\n" * 600, "more than 600 lines"),
        (layout.check, "service/one.py", "x = 1\n", "no docstring"),
        (layout.check, "service/one.py", '"""Doc."""\n# TODO: more\n', "unfinished work"),
        (layout.check, "tests/service/gone/test_one.py", "", "no package service/gone"),
    ],
)
def test_violation_is_found(tmp_path: Path, check: Check, path: str, text: str, expected: str) -> None:
    (violation,) = check(planted(tmp_path, {path: text}))
    assert expected in violation


@pytest.mark.parametrize(
    ("check", "path", "text"),
    [
        (imports.check, "workers/engine/spark/one.py", "import pyspark, time"),
        (imports.check, "workers/engine/statistics/one.py", "from datetime import date"),
        (imports.check, "service/store/one.py", "from sqlalchemy import select"),
        (references.check, "service/sql/one.py", '"""See `one.py`, `sql/one.py`."""\nf = 1  # service.sql.one.f'),
        (layout.check, "service/one.py", '"""Doc."""\nx = "TODO"\n# TODO(#12): more\n'),
        (layout.check, "service/empty/__init__.py", ""),
    ],
)
def test_allowed_code_is_not_reported(tmp_path: Path, check: Check, path: str, text: str) -> None:
    assert list(check(planted(tmp_path, {path: text}))) == []


def test_word_must_not_be_used_more_often(tmp_path: Path) -> None:
    root = planted(tmp_path, {"service/one.py": "# They are told.\n", "tests/lint/words.json": json.dumps({"told": 1})})
    assert list(words.check(root)) == []
    planted(root, {"service/two.py": "def told_of() -> None: ...\n"})
    (violation,) = words.check(root)
    assert violation.startswith('"told" is used 2 times, 1 before.')


@pytest.mark.not_quick
def test_outdated_document_is_found(tmp_path: Path) -> None:
    pages = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md")}
    pages["docs/reference/settings.md"] = pages["docs/reference/settings.md"].replace("`agg_phase`", "`old_name`")
    named = "See service/gone.py and `tests/e2e/test_jobs.py::test_gone`.\n"
    found = list(generated.check(planted(tmp_path, {**pages, "README.md": named, "openapi.yaml": ""})))
    assert "docs/reference/settings.md: its tables are out of date. Run python -m docs.tables --write" in found
    assert any("evenkeel openapi" in one for one in found)
    assert any("docs.rules --write" in one for one in found)
    assert "README.md: there is no file service/gone.py." in found
    assert "README.md: there is no test tests/e2e/test_jobs.py::test_gone." in found
    assert not any("no page has the table" in one for one in found)
    (tmp_path / "docs/reference/metrics.md").unlink()
    assert "docs: no page has the table metrics of the API." in list(generated.check(tmp_path))


def test_rule_without_a_test_is_found(tmp_path: Path) -> None:
    rulebook = (ROOT / rules.RULES_FOLDER / "rulebook.py").read_text(encoding="utf-8")
    folder = str(rules.RULES_FOLDER)
    stray = "class Stray:\n    def rewrite(self, match: Match[Join], ctx: RuleContext) -> Node: ...\n"
    files = {f"{folder}/rulebook.py": rulebook, f"{folder}/joins/stray.py": stray}
    found = list(rules.check(planted(tmp_path, files)))
    assert f"stray: it is a module below {folder} or a rule of the rulebook, and must be both." in found
    assert "join_strategy: tests/golden/join_strategy has no case." in found


def test_a_contract_without_settings_read_is_one_violation() -> None:
    class Stray(JoinStrategy):
        """One sentence.

        >>> 1

        Fires when: always.
        Does not fire when: never.
        Why the result is the same: it does nothing.
        """

    violations = list(rules._contract(Stray()))
    assert any("needs these sections" in one for one in violations)
    assert not any("not declared" in one for one in violations)


def test_undocumented_or_unused_log_event_is_found(tmp_path: Path) -> None:
    text = "_log.error('made_up')\nlog = _log.info if quiet else _log.warning\nlog('job_lost')\n"
    found = list(log_events.check(planted(tmp_path, {"service/one.py": text})))
    assert "log event made_up: an error is not documented." in found
    assert "log event attempt_failed: no code logs it at level error." in found
