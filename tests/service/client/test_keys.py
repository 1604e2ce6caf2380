"""`evenkeel keys` over the API."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.contract.enums import KeyScope
from service.keys.administration import KeyRequest, issue_key
from service.keys.verification import read_secret
from service.store.migrate import upgrade
from service.store.session import Database
from tests.support.served import Evenkeel, Served

pytestmark = pytest.mark.parametrize("authentication", ["on"])


@pytest.fixture
def admin(served: Served, monkeypatch: pytest.MonkeyPatch) -> str:
    """The key that the commands use. They cannot access the database."""
    issued = issue_key(served.database, KeyRequest(name="admin", scopes=tuple(KeyScope)), None)
    monkeypatch.setenv("EVENKEEL_API_KEY", issued.key)
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", "sqlite:////proc/no.db")
    return issued.id


def test_create_list_and_revoke(admin: str, evenkeel: Evenkeel) -> None:
    made = evenkeel("keys", "create", "[red]nightly", "--tenant", "sales", "--scope", "read", "--expires-in", "90d")
    secret = read_secret(made.stdout.strip())
    assert secret is not None
    table = evenkeel("keys", "list").stdout
    assert (secret.id in table, "[red]nightly" in table, secret.secret in table) == (True, True, False)
    assert admin not in evenkeel("keys", "list", "--tenant", "sales").stdout
    # By the key itself, whose secret stays here.
    assert "Revoked" in evenkeel("keys", "revoke", made.stdout.strip()).stdout
    listed = json.loads(evenkeel("keys", "list", "--json").stdout)
    assert {key["id"]: key["active"] for key in listed} == {admin: True, secret.id: False}


def test_list_reads_all_pages(admin: str, evenkeel: Evenkeel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.cli.operations.PAGE", 2)
    for number in range(4):
        evenkeel("keys", "create", f"key {number}")
    assert len(json.loads(evenkeel("keys", "list", "--json").stdout)) == 5


def test_refused_requests(admin: str, evenkeel: Evenkeel) -> None:
    assert evenkeel("keys", "create", "x", "--expires-in", "soon").exit_code == 2
    assert evenkeel("keys", "revoke", "mfrggzdfmztwq2lk").exit_code == 8
    last = evenkeel("keys", "revoke", admin)
    assert (last.exit_code, "[last_admin_key]" in last.stderr) == (11, True)


def test_missing_key_and_missing_scope(served: Served, evenkeel: Evenkeel, tmp_path: Path) -> None:
    assert evenkeel("keys", "list").exit_code == 9
    (tmp_path / "key").write_text(issue_key(served.database, KeyRequest(name="reader"), None).key)
    printed = evenkeel("keys", "create", "x", "--key-file", str(tmp_path / "key"))
    assert (printed.exit_code, "[missing_scope]" in printed.stderr) == (9, True)


def test_database_is_used_without_an_address(
    evenkeel: Evenkeel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, authentication: str
) -> None:
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", f"sqlite:///{tmp_path / 'own.db'}")
    database = Database(f"sqlite:///{tmp_path / 'own.db'}")
    upgrade(database)
    database.close()
    monkeypatch.setenv("EVENKEEL_API_KEY", "ek_of_no_service")
    assert read_secret(evenkeel("keys", "create", "x").stdout.strip()) is not None
