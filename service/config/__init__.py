"""Settings from the environment, properties of Spark, and helpers for threads, child processes and Java.
Settings of one job are in `service.contract.options`.
Start with `settings.py`; `client.py` is separate so that the commands of the API load quickly.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict


class SettingsGroup(BaseSettings):
    """A group of settings. A subclass names the prefix of its environment variables: `env_prefix="EVENKEEL_API_"`."""

    # Inputs are hidden because a wrong value may be a password or contain one.
    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True)


def bounded(default: float | None, at_least: float, at_most: float, description: str) -> Any:
    """Declares a number between two bounds, both included."""
    return Field(default=default, ge=at_least, le=at_most, description=description)


def refusal(fault: str) -> PydanticCustomError:
    """Returns the error of a setting that is refused. `fault` says what to write instead."""
    return PydanticCustomError("setting", "{fault}", {"fault": fault})
