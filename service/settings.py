"""Configuration, read once from the environment: small typed groups, every variable prefixed `EVENKEEL_`.

One declaration a variable (default, bounds, description) feeds validation and the README's table.
"""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict


def _default_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "evenkeel"


class _Group(BaseSettings):
    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True)


class ApiSettings(_Group):
    """The HTTP side."""

    model_config = SettingsConfigDict(env_prefix="EVENKEEL_API_", frozen=True, env_ignore_empty=True)

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    insecure_bind: bool = Field(
        default=False,
        description="Allow an address other than loopback although callers are not authenticated.",
    )
    allowed_hosts: str = Field(
        default="127.0.0.1,localhost,[::1]",
        description="Host names that requests may name, separated by commas; guards against DNS rebinding.",
    )
    max_body_bytes: int = Field(default=1 << 20, ge=1024, le=1 << 30, description="Largest request body.")
    max_wait_seconds: float = Field(default=45, ge=0, le=300, description="Longest `Prefer: wait`.")
    poll_interval_seconds: float = Field(
        default=0.1,
        gt=0,
        le=10,
        description="How often waiting requests look for changes, together, once a process.",
    )
    explain_timeout_seconds: float = Field(
        default=30, gt=0, le=300, description="How long `POST /v1/explain` waits for a worker."
    )


class DatabaseSettings(_Group):
    """Where jobs, plans and metrics are kept."""

    model_config = SettingsConfigDict(env_prefix="EVENKEEL_DATABASE_", frozen=True, env_ignore_empty=True)

    url: SecretStr | None = Field(
        default=None,
        description="SQLAlchemy URL (`postgresql+psycopg://…`); SQLite in the state directory by default.",
    )


class BrokerSettings(_Group):
    """How workers are rung. The database is the truth; the broker may lose everything."""

    model_config = SettingsConfigDict(env_prefix="EVENKEEL_BROKER_", frozen=True, env_ignore_empty=True)

    url: SecretStr | None = Field(
        default=None, description="Celery broker (`redis://…`); folders in the state directory by default."
    )


class DataSettings(_Group):
    """Which files jobs may read, and where results go."""

    model_config = SettingsConfigDict(env_prefix="EVENKEEL_DATA_", frozen=True, env_ignore_empty=True)

    roots: str = Field(
        default="",
        description="Directories that jobs may read, separated by the path separator; "
        "`data` in the state directory by default.",
    )
    results: Path | None = Field(
        default=None, description="Directory of results; `results` in the state directory by default."
    )


class WorkerSettings(_Group):
    """Leases, heartbeats and parallelism of workers."""

    model_config = SettingsConfigDict(env_prefix="EVENKEEL_WORKER_", frozen=True, env_ignore_empty=True)

    concurrency: int = Field(default=4, ge=1, le=256, description="Jobs that one worker runs at once.")
    lease_seconds: float = Field(
        default=30,
        ge=1,
        le=3600,
        description="How long a job stays with a worker that gives no sign of life.",
    )
    heartbeat_seconds: float = Field(default=5, ge=0.1, le=600, description="How often a lease is renewed.")
    sweep_seconds: float = Field(
        default=5, ge=0.1, le=600, description="How often expired leases and forgotten jobs are looked for."
    )
    ring_again_seconds: float = Field(
        default=10,
        ge=0.1,
        le=3600,
        description="A job queued for longer without being claimed is announced again.",
    )
    watch_seconds: float = Field(
        default=0.2, ge=0.05, le=10, description="How often cancel requests and time limits are looked at."
    )
    progress_seconds: float = Field(default=1, ge=0.1, le=60, description="How often progress is stored.")
    drain_seconds: float = Field(
        default=30,
        ge=0,
        le=3600,
        description="How long a stopping worker lets its jobs finish before it hands them back.",
    )


class SparkSettings(_Group):
    """The Spark session of a worker."""

    model_config = SettingsConfigDict(env_prefix="EVENKEEL_SPARK_", frozen=True, env_ignore_empty=True)

    master: str = Field(default="local[*]", description="Spark master URL.")
    driver_memory: str = Field(
        default="2g",
        pattern=r"^\d+[mg]$",
        description="Heap of the driver; in local mode of the executors too.",
    )
    warm_up: bool = Field(
        default=True, description="Start Spark with the worker; else with its first job, which then waits for it."
    )
    shuffle_partitions: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="Partitions of a shuffle; 0 takes twice the cores of the cluster.",
    )
    gateway_timeout_seconds: float = Field(
        default=10, ge=1, le=300, description="A JVM that does not answer for so long counts as dead."
    )


class LogSettings(_Group):
    """What is written to standard error."""

    model_config = SettingsConfigDict(env_prefix="EVENKEEL_LOG_", frozen=True, env_ignore_empty=True)

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least severe level written."
    )
    format: Literal["json", "console"] = Field(default="json", description="One JSON object a line, or for people.")


class StateSettings(_Group):
    """Where the embedded default keeps everything."""

    model_config = SettingsConfigDict(env_prefix="EVENKEEL_STATE_", frozen=True, env_ignore_empty=True)

    dir: Path = Field(
        default_factory=_default_state_dir,
        description="Directory of the embedded database, broker folders, data and results; "
        "`$XDG_STATE_HOME/evenkeel` or `~/.local/state/evenkeel` by default.",
    )


class Settings:
    """All groups, with what follows from several of them. Build one with `Settings()`; pass it, never import it."""

    def __init__(self) -> None:
        self.state = StateSettings()
        self.api = ApiSettings()
        self.database = DatabaseSettings()
        self.broker = BrokerSettings()
        self.data = DataSettings()
        self.worker = WorkerSettings()
        self.spark = SparkSettings()
        self.log = LogSettings()

    @property
    def state_dir(self) -> Path:
        """Absolute state directory; may not exist yet."""
        return self.state.dir.expanduser().absolute()

    @cached_property
    def database_url(self) -> str:
        """SQLAlchemy URL of the database."""
        if self.database.url is not None:
            return self.database.url.get_secret_value()
        return f"sqlite:///{self.state_dir / 'evenkeel.db'}"

    @cached_property
    def broker_url(self) -> str:
        """Celery broker URL; `filesystem://` for the embedded folders."""
        return self.broker.url.get_secret_value() if self.broker.url is not None else "filesystem://"

    @property
    def broker_dir(self) -> Path:
        """Folder of the embedded broker's messages."""
        return self.state_dir / "broker"

    @property
    def data_roots(self) -> tuple[Path, ...]:
        """Directories that jobs may read; relative table paths are tried below each in turn."""
        if self.data.roots:
            return tuple(Path(part).expanduser().absolute() for part in self.data.roots.split(os.pathsep) if part)
        return (self.state_dir / "data",)

    @property
    def results_dir(self) -> Path:
        """Directory below which every attempt writes its result."""
        return (self.data.results or self.state_dir / "results").expanduser().absolute()


GROUPS: tuple[type[_Group], ...] = (
    StateSettings,
    ApiSettings,
    DatabaseSettings,
    BrokerSettings,
    DataSettings,
    WorkerSettings,
    SparkSettings,
    LogSettings,
)
"""In the order of the README's table."""
