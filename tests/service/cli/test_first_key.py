"""The first key: shown once, and only where keys are needed."""

from __future__ import annotations

import re

import pytest

from service.cli.first_key import first_key_notice
from service.keys.secrets import read_secret
from service.settings import Settings


@pytest.fixture
def key_settings(database_url: str, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", database_url)
    monkeypatch.setenv("EVENKEEL_API_AUTHENTICATION", "on")
    return Settings()


def test_it_is_shown_once(key_settings: Settings) -> None:
    notice = first_key_notice(key_settings)
    found = re.search(r"ek_\S+", notice)
    assert found is not None
    assert read_secret(found[0]) is not None
    assert first_key_notice(key_settings) == ""


@pytest.mark.one_database
def test_where_nobody_needs_a_key_there_is_none(key_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_API_AUTHENTICATION", "off")
    assert first_key_notice(Settings()) == ""
    monkeypatch.setenv("EVENKEEL_API_AUTHENTICATION", "on")
    assert "ek_" in first_key_notice(key_settings)
