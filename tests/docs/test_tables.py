"""The generated tables of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import command_tables, error_tables, service_tables, sql_tables, tables
from docs.operation_tables import compact
from service.cli.main import LOCAL, OVER_API
from service.cli.terminal import ExitCode
from service.config.settings import GROUPS
from service.contract.errors import ServiceError
from service.contract.job_errors import GROUPS as JOB_ERRORS
from service.contract.options import declared_settings
from service.contract.query import AggregateFunction
from service.monitoring.logs import LOG_EVENTS
from service.monitoring.metrics import API_METRICS, WORKER_METRICS
from service.sql.types.functions import FUNCTIONS

ROOT = Path(__file__).parents[2]
PAGE = "# Page\n\n<!-- table exit codes -->\nold\n<!-- end of table -->\n\nMore.\n"


def text_of(made: dict[str, tables.Table]) -> str:
    return "\n".join(make() for make in made.values())


def test_settings_and_variables_are_in_tables() -> None:
    text = text_of(service_tables.TABLES)
    for declared in declared_settings():
        assert text.count(f"</a>`{declared.key}` |") == 1
        assert all(f"`{alias}`" in text for alias in declared.aliases)
    assert set(service_tables.VARIABLES.values()) == set(GROUPS)
    names = [f"{group.model_config.get('env_prefix')}{name.upper()}" for group in GROUPS for name in group.model_fields]
    assert len(names) > 20
    assert all(f"</a>`{name}` |" in text for name in names)


def test_metrics_and_log_events_are_in_tables() -> None:
    text = text_of(service_tables.TABLES)
    assert all(f"| `{metric.name}` |" in text for metric in (*API_METRICS, *WORKER_METRICS))
    assert all(f"</a>`{event.name}` |" in text for event in LOG_EVENTS)


@pytest.mark.not_quick
def test_commands_and_exit_codes_have_sections_and_rows() -> None:
    text = text_of(command_tables.TABLES)
    for usage in ("submit [OPTIONS] [FILE]", "profile [OPTIONS] TABLE [KEY[,KEY2]...]", "keys create [OPTIONS]", "up"):
        assert f"\nevenkeel {usage}" in text
    names = [*(command.__name__ for command in (*OVER_API, *LOCAL)), "keys create", "keys list", "keys revoke"]
    assert text.count("### evenkeel ") == len(names)
    assert all(f"### evenkeel {name}\n" in text for name in names)
    assert all(f"| {int(code)} | " in text for code in ExitCode)


def test_every_error_has_a_meaning_and_a_remedy() -> None:
    errors = list(ServiceError.with_codes())
    assert len(errors) > 40
    text = text_of(error_tables.TABLES)
    for code in (*(error.code for error in errors), *(one.code for group in JOB_ERRORS.values() for one in group)):
        assert text.count(f'<a id="{code}"></a>') == 1
    assert "| |" not in text.replace("|  |", "| |")


def test_every_function_is_in_a_table() -> None:
    text = text_of(sql_tables.TABLES)
    assert all(f"`{name}`" in text for name in (*FUNCTIONS, *AggregateFunction))
    assert "| `substring`, `substr` | `(any, number[, number])` | STRING, or BINARY for BINARY |" in text
    assert "| `coalesce` | `(value, …)` | the common type of the arguments |" in text
    assert "| `current_date`, `curdate` | `()` | DATE |" in text


@pytest.mark.not_quick
def test_every_endpoint_has_a_section() -> None:
    from docs.operation_tables import operations

    text = "\n".join(tables.generated(name) for name in tables.TABLES if name.startswith("endpoints of "))
    assert len(operations()) > 25
    for one in operations():
        assert f"## {one.summary}\n\n`{one.method} {one.path}` · scope: " in text


@pytest.mark.not_quick
def test_pages_are_up_to_date_and_have_every_table() -> None:
    assert tables.missing_tables(ROOT) == []
    assert list(tables.outdated_pages(ROOT)) == []


def test_outdated_page_is_reported_and_updated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "TABLES", {"exit codes": lambda: "| new |"})
    tables.generated.cache_clear()
    page = tmp_path / "docs" / "reference" / "page.md"
    page.parent.mkdir(parents=True)
    page.write_text(PAGE)
    assert tables.main([], tmp_path) == 1
    assert page.read_text() == PAGE
    assert tables.main(["--write"], tmp_path) == 0
    assert page.read_text() == PAGE.replace("\nold\n", "\n\n| new |\n\n")
    assert tables.main([], tmp_path) == 0
    tables.generated.cache_clear()


def test_table_without_a_page_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tables, "TABLES", {"lost": lambda: ""})
    (tmp_path / "README.md").write_text("# Evenkeel\n")
    assert tables.main(["--write"], tmp_path) == 1
    assert "No page has the table lost" in capsys.readouterr().err


def test_unknown_table_and_missing_end_are_errors() -> None:
    with pytest.raises(ValueError, match="there is no table 'gone'"):
        tables.with_tables("<!-- table gone -->\n<!-- end of table -->\n")
    with pytest.raises(ValueError, match="has no <!-- end of table -->"):
        tables.with_tables("<!-- table exit codes -->\n")


def test_json_is_written_in_few_lines() -> None:
    value = {"a": [1, 2], "b": ["x" * 60, "y" * 60], "c": {}}
    assert compact(value).splitlines() == [
        "{",
        '  "a": [1, 2],',
        '  "b": [',
        f'    "{"x" * 60}",',
        f'    "{"y" * 60}"',
        "  ],",
        '  "c": {}',
        "}",
    ]
