"""`evenkeel keys`, and the first key."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner, Result

from service.cli.main import app
from service.cli.start import first_key_notice
from service.config.settings import Settings
from service.keys.verification import read_secret

pytestmark = pytest.mark.usefixtures("state_dir", "sqlite_database")


def keys(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["keys", *arguments])


def listed() -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(keys("list", "--json").output)
    return found


def test_a_key_is_printed_alone() -> None:
    result = keys("create", "nightly loads")
    assert result.exit_code == 0, result.output
    # For `KEY=$(evenkeel keys create …)`.
    assert read_secret(result.output.strip()) is not None
    (key,) = listed()
    assert (key["name"], key["tenant"], key["scopes"]) == ("nightly loads", "default", ["read", "submit"])


def test_a_key_for_what_is_wanted() -> None:
    result = keys(
        "create", "scraper", "--tenant", "ops", "--scope", "metrics", "--scope", "read", "--expires-in", "90d", "--json"
    )
    made = json.loads(result.output)
    assert (made["tenant"], made["scopes"]) == ("ops", ["read", "metrics"])
    assert made["expires_at"] is not None
    assert read_secret(made["key"]) is not None


def test_the_list_tells_of_each_without_its_secret() -> None:
    secret = keys("create", "[red]nightly[/red]").output.strip()
    keys("create", "gone", "--tenant", "sales")
    keys("revoke", str(listed()[1]["id"]))
    table = keys("list").output
    assert secret not in table
    assert "[red]nightly[/red]" in table
    assert "revoked" in table
    assert "no expiry" in table
    assert "gone" not in keys("list", "--tenant", "default").output


def test_a_key_is_revoked_by_its_id_or_itself() -> None:
    first, second = (keys("create", name).output.strip() for name in ("one", "other"))
    secret = read_secret(second)
    assert secret is not None
    assert "Revoked" in keys("revoke", first).output
    assert json.loads(keys("revoke", secret.id, "--json").output)["live"] is False
    assert [key["live"] for key in listed()] == [False, False]


def test_the_last_admin_key_too() -> None:
    key = keys("create", "admin", "--scope", "admin").output.strip()
    assert keys("revoke", key).exit_code == 0


def test_mistakes_are_told(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["create", ""], "name"),
        (["create", "x", "--tenant", "No/Such"], "tenant"),
        (["create", "x", "--scope", "root"], "scopes"),
        (["create", "x", "--expires-in", "soon"], "expires_in"),
        (["revoke", "nothing"], "nothing"),
    ]
    for arguments, told in cases:
        with subtests.test(arguments=arguments, told=told):
            result = keys(*arguments)
            assert result.exit_code == 2
            assert told in result.output
            assert "Traceback" not in result.output


@pytest.fixture
def key_settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("EVENKEEL_API_AUTHENTICATION", "on")
    return Settings()


def test_the_first_key_is_shown_once(key_settings: Settings) -> None:
    notice = first_key_notice(key_settings)
    found = re.search(r"ek_\S+", notice)
    assert found is not None
    assert read_secret(found[0]) is not None
    assert first_key_notice(key_settings) == ""


def test_where_nobody_needs_a_first_key_there_is_none(key_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_API_AUTHENTICATION", "off")
    assert first_key_notice(Settings()) == ""
    monkeypatch.setenv("EVENKEEL_API_AUTHENTICATION", "on")
    assert "ek_" in first_key_notice(key_settings)
