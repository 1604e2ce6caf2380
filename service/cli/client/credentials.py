"""The API key that a command shows: from the environment or a file, never from the command line, which others see."""

from __future__ import annotations

import re
from pathlib import Path

from pydantic import SecretStr

from service.cli.errors import CliError, ExitCode
from service.client_settings import ClientSettings

_SHOWN = re.compile(r"[\x21-\x7e]{1,1000}")
_MOST_BYTES = 10_000


def api_key(settings: ClientSettings, key_file: Path | None) -> SecretStr | None:
    """The key of `key_file`, else of the settings; None where there is none. Raises CliError for what cannot be one."""
    if key_file is not None:
        return _checked(_read(key_file), f"The file {key_file}")
    if settings.api_key is not None:
        return _checked(settings.api_key.get_secret_value(), "EVENKEEL_API_KEY")
    if settings.api_key_file is not None:
        return _checked(_read(settings.api_key_file), f"The file {settings.api_key_file}")
    return None


def _read(file: Path) -> str:
    try:
        with file.expanduser().open("rb") as opened:
            return opened.read(_MOST_BYTES).decode()
    except OSError as error:
        raise CliError(f"the API key could not be read: {error}", code=ExitCode.USAGE) from None
    except UnicodeDecodeError:
        return ""


def _checked(text: str, place: str) -> SecretStr:
    if not _SHOWN.fullmatch(text.strip()):
        raise CliError(f"{place} holds no API key", "A key is one word that begins with ek_.", code=ExitCode.USAGE)
    return SecretStr(text.strip())
