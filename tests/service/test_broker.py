"""What the API and the workers agree on."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.broker import celery_config, is_embedded
from service.settings import Settings


def test_the_embedded_broker_reads_where_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path))
    options = celery_config(Settings())["broker_transport_options"]
    assert options["data_folder_in"] == options["data_folder_out"] == str(tmp_path / "broker" / "messages")
    assert options["polling_interval"] == 0.05


def test_redis_is_used_as_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_BROKER_URL", "redis://example:6379/1")
    settings = Settings()
    assert not is_embedded(settings)
    assert celery_config(settings)["broker_url"] == "redis://example:6379/1"
