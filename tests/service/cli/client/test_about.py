"""`evenkeel workers` and `evenkeel whoami`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.keys.issue_key import KeyRequest, issue_key
from tests.support import lifecycle
from tests.support.served import Evenkeel, Served

pytestmark = pytest.mark.one_database


@pytest.mark.not_quick
def test_workers(served: Served, evenkeel: Evenkeel) -> None:
    assert "No worker" in evenkeel("workers").stderr
    lifecycle.beat(served.database)
    assert lifecycle.WORKER in evenkeel("workers").stdout
    assert json.loads(evenkeel("workers", "--json").stdout)["workers"][0]["id"] == lifecycle.WORKER


def test_nobody_in_particular(served: Served, evenkeel: Evenkeel) -> None:
    told = evenkeel("whoami").stdout
    assert served.url in told
    assert "none is asked for" in told


@pytest.mark.not_quick
@pytest.mark.parametrize("authentication", ["on"])
def test_the_bearer_of_a_key(
    served: Served, evenkeel: Evenkeel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    denied = evenkeel("whoami")
    assert (denied.exit_code, "[unauthenticated]" in denied.stderr) == (9, True)
    issued = issue_key(served.database, KeyRequest(name="x", tenant="sales"), None)
    (tmp_path / "key").write_text(issued.key)
    me = json.loads(evenkeel("whoami", "--key-file", str(tmp_path / "key"), "--json").stdout)
    assert (me["tenant"], me["key_id"]) == ("sales", issued.id)
    monkeypatch.setenv("EVENKEEL_API_KEY", issued.key)
    assert "sales" in evenkeel("whoami").stdout


def test_a_variable_that_is_wrong_is_named(evenkeel: Evenkeel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_RETRY_SECONDS", "soon")
    result = evenkeel("whoami")
    assert (result.exit_code, "EVENKEEL_RETRY_SECONDS" in result.stderr) == (2, True)


@pytest.mark.parametrize("url", ["localhost:8080", "http://me:hunter2@localhost"])
def test_an_address_that_is_wrong(evenkeel: Evenkeel, url: str) -> None:
    result = evenkeel("whoami", "--url", url)
    assert (result.exit_code, "hunter2" in result.output) == (2, False)
