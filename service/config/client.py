"""The service that the commands of the API and the Python client call, and their API key."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr

from . import SettingsGroup, bounded

DEFAULT_URL = "http://127.0.0.1:8080"


class ClientSettings(SettingsGroup, env_prefix="EVENKEEL_"):
    """Settings of the Python client and of the commands of the API, such as `evenkeel submit`."""

    url: str = Field(
        default=DEFAULT_URL,
        max_length=2000,
        description="URL of the service that the commands of the API and the Python client call, without user and "
        "password. `--url` overrides it.",
    )
    api_key: SecretStr | None = Field(default=None, description="Their API key.")
    api_key_file: Path | None = Field(
        default=None,
        description="File that contains the key, if `EVENKEEL_API_KEY` is not set. `--key-file` overrides it.",
    )
    insecure_http: bool = Field(
        default=False,
        description="Whether they send the key over `http` to other machines, where others may read it.",
    )
    retry_seconds: float = bounded(
        60, 0, 86_400, "How long they retry if a service that has answered before does not answer or is busy."
    )
    timeout_seconds: float = bounded(
        60, 1, 3600, "How long they wait for an answer; 5 min longer for plans and profiles."
    )
