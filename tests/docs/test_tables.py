"""The generated tables of the README, its commands, and the pinned versions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from service.cli.main import LOCAL, OVER_API
from service.cli.readme_tables import (
    README,
    commands_table,
    events_table,
    exit_codes_table,
    main,
    metrics_table,
    settings_table,
    variables_table,
    with_tables,
)
from service.client.terminal import ExitCode
from service.config.settings import GROUPS
from service.contract.options import declared_settings
from service.monitoring.logs import LOG_EVENTS
from service.monitoring.metrics import API_METRICS, WORKER_METRICS

ROOT = Path(__file__).parents[3]


def test_settings_and_variables_are_in_tables() -> None:
    settings, variables = settings_table(), variables_table()
    for declared in declared_settings():
        assert f"| `{declared.key}` |" in settings
        assert all(f"`{alias}`" in settings for alias in declared.aliases)
    names = [f"{group.model_config.get('env_prefix')}{name.upper()}" for group in GROUPS for name in group.model_fields]
    assert len(names) > 20
    assert all(f"| `{name}` |" in variables for name in names)


def test_metrics_and_log_events_are_in_tables() -> None:
    metrics, events = metrics_table(), events_table()
    assert all(f"| `{metric.name}` |" in metrics for metric in (*API_METRICS, *WORKER_METRICS))
    assert all(f"| `{event.name}` | {event.level} |" in events for event in LOG_EVENTS)


def test_commands_and_exit_codes_are_in_tables() -> None:
    commands, codes = commands_table(), exit_codes_table()
    for usage in ("submit FILE", "profile TABLE KEY[,KEY2]...", "events ID", r"keys create\|list\|revoke", "up"):
        assert f"| `evenkeel {usage}` |" in commands
    assert commands.count("| `evenkeel ") == len((*OVER_API, *LOCAL)) + 1
    assert all(f"| {int(code)} | {code.meaning} |" in codes for code in ExitCode)


def test_outdated_table_is_reported_and_updated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    current = with_tables((ROOT / README).read_text(encoding="utf-8"))
    README.write_text(current.replace("| `agg_phase` |", "| `old_name` |"))
    assert main([]) == 1
    assert main(["--write"]) == 0
    assert README.read_text() == current
    assert main([]) == 0


def test_readme_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="no markers for the table 'settings'"):
        with_tables("# Evenkeel\n")


PYTEST = ".venv/bin/pytest -n 2 --dist loadfile --no-loadscope-reorder"


@pytest.mark.parametrize(("name", "ends_with"), [("demo", ".venv/bin/evenkeel demo"), ("tests", PYTEST)])
def test_demo_and_test_commands_are_complete(name: str, ends_with: str) -> None:
    (command,) = re.findall(
        rf"<!-- command: {name} -->\n```sh\n(.*)\n```\n", (ROOT / README).read_text(encoding="utf-8")
    )
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install -c constraints.txt ")
    assert command.endswith(f"&& {ends_with}")


def test_every_version_is_pinned_without_an_index() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert len(pins) > 60
    assert all(re.fullmatch(r"[A-Za-z0-9_.-]+==[0-9][A-Za-z0-9.+!]*( ; .+)?", pin) for pin in pins)
