"""Runs commands of the CLI in this process against an API that listens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from typer.testing import CliRunner, Result

from service.cli.main import app as commands
from service.config.settings import Settings
from service.store.session import Database

Evenkeel = Callable[..., Result]


def evenkeel(*arguments: str, text: str | None = None) -> Result:
    """Runs a command; `text` is its standard input."""
    result = CliRunner().invoke(commands, list(arguments), input=text)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@dataclass(frozen=True)
class Served:
    """An API that listens, with its database and settings. Commands find it by EVENKEEL_URL."""

    url: str
    database: Database
    settings: Settings
