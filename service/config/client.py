"""Which service the commands of the API talk to, and how they show who asks."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

DEFAULT_URL = "http://127.0.0.1:8080"


class ClientSettings(BaseSettings):
    """What `evenkeel submit` and the other commands of the API read; the service itself reads none of it."""

    model_config = SettingsConfigDict(
        env_prefix="EVENKEEL_", frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True
    )

    url: str = Field(
        default=DEFAULT_URL,
        max_length=2000,
        description="Service that commands of the API talk to, without a user or password in it; `--url` goes before.",
    )
    api_key: SecretStr | None = Field(default=None, description="API key that these commands show.")
    api_key_file: Path | None = Field(
        default=None, description="File with that key, where it is not in `EVENKEEL_API_KEY`; `--key-file` goes before."
    )
    insecure_http: bool = Field(
        default=False,
        description="Whether these commands show the key over `http` beyond loopback, where others may hear it.",
    )
    retry_seconds: float = Field(
        default=60,
        ge=0,
        le=86_400,
        description="How long these commands go on asking a service that has answered before and does not now, or is "
        "busy.",
    )
    timeout_seconds: float = Field(
        default=60,
        ge=1,
        le=3600,
        description="How long these commands wait for an answer; 5 min longer for plans and profiles.",
    )
