"""`evenkeel keys` with the database, and the first key."""

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


def test_create_prints_only_the_key() -> None:
    result = keys("create", "nightly loads")
    assert result.exit_code == 0, result.output
    # For `KEY=$(evenkeel keys create …)`.
    assert read_secret(result.output.strip()) is not None
    (key,) = listed()
    assert (key["name"], key["tenant"], key["scopes"]) == ("nightly loads", "default", ["read", "submit"])


def test_create_with_options() -> None:
    result = keys(
        "create", "scraper", "--tenant", "ops", "--scope", "metrics", "--scope", "read", "--expires-in", "90d", "--json"
    )
    made = json.loads(result.output)
    assert (made["tenant"], made["scopes"]) == ("ops", ["read", "metrics"])
    assert made["expires_at"] is not None
    assert read_secret(made["key"]) is not None


def test_list_has_no_secrets() -> None:
    secret = keys("create", "[red]nightly[/red]").output.strip()
    keys("create", "gone", "--tenant", "sales")
    keys("revoke", str(listed()[1]["id"]))
    table = keys("list").output
    assert secret not in table
    assert "[red]nightly[/red]" in table
    assert "revoked" in table
    assert "no expiry" in table
    assert "gone" not in keys("list", "--tenant", "default").output


def test_revoke_accepts_an_id_or_a_key() -> None:
    first, second = (keys("create", name).output.strip() for name in ("one", "other"))
    secret = read_secret(second)
    assert secret is not None
    assert "Revoked" in keys("revoke", first).output
    assert json.loads(keys("revoke", secret.id, "--json").output)["active"] is False
    assert [key["active"] for key in listed()] == [False, False]


def test_last_admin_key_can_be_revoked() -> None:
    key = keys("create", "admin", "--scope", "admin").output.strip()
    assert keys("revoke", key).exit_code == 0


def test_invalid_options_are_usage_errors(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["create", ""], "name"),
        (["create", "x", "--tenant", "No/Such"], "tenant"),
        (["create", "x", "--scope", "root"], "scopes"),
        (["create", "x", "--expires-in", "soon"], "expires_in"),
        (["revoke", "nothing"], "nothing"),
    ]
    for arguments, expected in cases:
        with subtests.test(arguments=arguments, expected=expected):
            result = keys(*arguments)
            assert result.exit_code == 2
            assert expected in result.output
            assert "Traceback" not in result.output


@pytest.fixture
def key_settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("EVENKEEL_API_AUTHENTICATION", "on")
    return Settings()


def test_first_key_is_shown_once(key_settings: Settings) -> None:
    notice = first_key_notice(key_settings)
    found = re.search(r"ek_\S+", notice)
    assert found is not None
    assert read_secret(found[0]) is not None
    assert first_key_notice(key_settings) == ""


def test_no_first_key_without_authentication(key_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_API_AUTHENTICATION", "off")
    assert first_key_notice(Settings()) == ""
    monkeypatch.setenv("EVENKEEL_API_AUTHENTICATION", "on")
    assert "ek_" in first_key_notice(key_settings)
