"""Where the API key comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.cli.client.credentials import api_key
from service.cli.errors import CliError, ExitCode
from service.client_settings import ClientSettings


def shown(key_file: Path | None = None) -> str | None:
    key = api_key(ClientSettings(), key_file)
    return None if key is None else key.get_secret_value()


def test_the_option_goes_before_the_variable_and_that_before_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("option", "variable"):
        (tmp_path / name).write_text(f"ek_of_{name}\n")
    assert shown() is None
    monkeypatch.setenv("EVENKEEL_API_KEY_FILE", str(tmp_path / "variable"))
    assert shown() == "ek_of_variable"
    monkeypatch.setenv("EVENKEEL_API_KEY", " ek_itself ")
    assert shown() == "ek_itself"
    assert shown(tmp_path / "option") == "ek_of_option"


@pytest.mark.parametrize("content", [b"", b"two words", b"a\r\nHost: evil", "ü".encode(), b"\xff"])
def test_what_is_no_key_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(CliError, match="holds no API key") as raised:
        shown(tmp_path / "key")
    assert raised.value.code == ExitCode.USAGE


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(CliError) as raised:
        shown(tmp_path / "key")
    assert raised.value.code == ExitCode.USAGE
