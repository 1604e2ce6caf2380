"""The directories of a service."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli.configuration import read_settings
from service.cli.directories import prepare_directories
from service.cli.errors import CliError


@pytest.mark.parametrize("name", ["a?b", "a,b", 'a"b', "a#b", "a%20b"])
def test_a_path_that_would_be_read_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path / name))
    with pytest.raises(CliError, match="the path of the state directory holds"):
        prepare_directories(read_settings())
    assert not list(tmp_path.iterdir())
