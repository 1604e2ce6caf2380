"""How workers are rung: where Redis is, and what is wrong with a URL that leads to none.

How much of the service one tenant may take.

Configuration, read once from the environment: small typed groups, every variable prefixed `EVENKEEL_`.

One declaration a variable (default, bounds, description) feeds validation and the README's table.
"""

from __future__ import annotations

import ipaddress
import os
from functools import cached_property
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote, urlsplit

from pydantic import ByteSize, Field, SecretStr, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.config.client import ClientSettings
from service.config.data import DataSettings, is_uri, split_roots
from service.config.spark import SparkSettings

_REDIS_SCHEMES = ("redis", "rediss", "redis+socket")


class BrokerSettings(BaseSettings):
    """How workers are rung. The database is the truth; the broker may lose everything."""

    # What is wrong may be a password, or stand beside one.
    model_config = SettingsConfigDict(
        env_prefix="EVENKEEL_BROKER_", frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True
    )

    url: SecretStr | None = Field(
        default=None,
        description="Redis: `redis://:PASSWORD@HOST:6379/0`, `rediss://…` for TLS, or `redis+socket:///PATH`; "
        "folders in the state directory by default.",
    )
    password: SecretStr | None = Field(
        default=None, description="Password for a URL that has none, as it is: nothing in it is percent-encoded."
    )
    key_prefix: str = Field(
        default="",
        max_length=64,
        pattern=r"^[A-Za-z0-9_.:{}-]*$",
        description="Put before every key in Redis, so that several installations may share one.",
    )
    tls_ca_file: Path | None = Field(
        default=None,
        description="Certificates (PEM) of the only CAs that may vouch for Redis; those that this machine trusts by "
        "default. For `rediss://`, as the next two are.",
    )
    tls_certificate_file: Path | None = Field(
        default=None,
        description="Certificate (PEM) to show to a Redis that asks for one, with those of the CAs below the root.",
    )
    tls_key_file: Path | None = Field(
        default=None, description="Its key (PEM, without a passphrase), where that is in a file of its own."
    )
    timeout_seconds: float = Field(
        default=2, ge=0.1, le=60, description="How long connecting to Redis, and its answer to a message, may take."
    )

    @field_validator("url")
    @classmethod
    def _leads_to_redis(cls, url: SecretStr | None) -> SecretStr | None:
        fault = None if url is None else _fault_of_redis_url(url.get_secret_value())
        if fault is not None:
            raise PydanticCustomError("broker_url", "{fault}", {"fault": fault})
        return url

    @model_validator(mode="after")
    def _files_are_for_tls(self) -> Self:
        if self.tls_key_file is not None and self.tls_certificate_file is None:
            raise PydanticCustomError(
                "broker_key", "EVENKEEL_BROKER_TLS_KEY_FILE needs EVENKEEL_BROKER_TLS_CERTIFICATE_FILE beside it"
            )
        has_files = self.tls_ca_file is not None or self.tls_certificate_file is not None
        if has_files and (self.url is None or not self.url.get_secret_value().startswith("rediss://")):
            # Whoever names them would take the connection for a safe one.
            raise PydanticCustomError(
                "broker_tls",
                "EVENKEEL_BROKER_TLS_CA_FILE and EVENKEEL_BROKER_TLS_CERTIFICATE_FILE are for TLS, and "
                "EVENKEEL_BROKER_URL asks for none: write rediss://HOST:PORT/0, or leave them out",
            )
        return self


def _fault_of_redis_url(url: str) -> str | None:
    """What keeps the URL from naming a Redis, and what to write; None for one that does. Tells nothing of the URL but
    its scheme, since a password may stand anywhere in one that is wrong."""
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme not in _REDIS_SCHEMES:
        known = f"'{scheme}://'" if scheme.replace("+", "").isalpha() else "what was given"
        return (
            f"{known} is no broker for Evenkeel: use Redis (redis://HOST:6379/0, rediss://… for TLS, "
            "redis+socket:///PATH), or leave the variable out to use folders in the state directory"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        port = 0
    if port == 0 or parts.fragment or "," in parts.netloc or ";" in url:
        return (
            "not the URL of one server: write redis://:PASSWORD@HOST:PORT/DATABASE, and in the password "
            "%23 for #, %2F for /, %3A for :, %3F for ?, %40 for @"
        )
    if scheme == "redis+socket":
        return None if len(parts.path) > 1 else "no path of a socket: write redis+socket:///PATH"
    if not parts.hostname:
        return f"no host: write {scheme}://HOST:6379/0"
    if "?" in url:
        return (
            "there are no options behind '?' (in a password write %3F): the certificate of Redis and its host name are "
            "always checked, and files for that go into EVENKEEL_BROKER_TLS_CA_FILE, _CERTIFICATE_FILE and _KEY_FILE"
        )
    if parts.path.strip("/") and not parts.path.strip("/").isdecimal():
        return f"the database of a Redis is a number: write {scheme}://HOST:6379/0"
    return None


class LimitSettings(BaseSettings):
    """How much of the service one tenant may take."""

    model_config = SettingsConfigDict(
        env_prefix="EVENKEEL_LIMITS_", frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True
    )

    queued_jobs: int = Field(
        default=10_000,
        ge=0,
        le=10_000_000,
        description="Jobs of a tenant that wait for a worker; what it submits or resumes beyond gets a 429. 0 for any "
        "number.",
    )
    running_jobs: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="Jobs of a tenant that workers have at once, beside as many streams; the others wait. 0 for any "
        "number.",
    )
    explanations: int = Field(
        default=10,
        ge=0,
        le=100_000,
        description="Explanations of a tenant that wait or are at work at once; what it asks for beyond gets a 429. "
        "They take no more than half of a worker's slots. 0 for any number, in all slots.",
    )
    result_bytes: ByteSize = Field(
        default=ByteSize(0),
        ge=0,
        description="Largest managed result of a batch job; one that outgrows it fails. Bytes, or with a unit such as "
        "`10GB`; 0 for any size.",
    )
    streams: int = Field(
        default=1_000,
        ge=0,
        le=1_000_000,
        description="Streams of posted rows that a tenant may have; another gets a 429. 0 for any number.",
    )
    posted_bytes: ByteSize = Field(
        default=ByteSize(0),
        ge=0,
        description="Size of the files of all rows that a tenant has posted; once it is reached, further rows get a "
        "429 until a stream is deleted. Bytes, or with a unit such as `10GB`; 0 for any size.",
    )


def _default_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "evenkeel"


class _Group(BaseSettings):
    # What is wrong may be a password, or stand beside one.
    model_config = SettingsConfigDict(frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True)


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine can reach that address to listen on."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class ApiSettings(_Group):
    """The HTTP side."""

    model_config = SettingsConfigDict(env_prefix="EVENKEEL_API_", frozen=True, env_ignore_empty=True)

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = Field(default=8080, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    authentication: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Whether callers must show an API key. `auto`: yes, unless everything is on this machine alone: an "
        "address of loopback, SQLite and the embedded broker.",
    )
    insecure_bind: bool = Field(
        default=False,
        description="Allow an address other than loopback although `EVENKEEL_API_AUTHENTICATION` is `off`.",
    )
    allowed_hosts: str = Field(
        default="127.0.0.1,localhost,[::1]",
        description="Host names that requests may name, separated by commas; guards against DNS rebinding.",
    )
    allowed_origins: str = Field(
        default="",
        pattern=r"^(https?://[^\s/,*]+(,https?://[^\s/,*]+)*)?$",
        description="Origins of pages of other sites that browsers may let use the API, such as "
        "`https://dash.example.org`, separated by commas; none by default.",
    )
    trusted_proxies: str = Field(
        default="",
        description="Addresses or networks of proxies whose `X-Forwarded-For` tells the client's address, separated by "
        "commas; it is ignored by default.",
    )
    dashboard: bool = Field(default=True, description="Whether the dashboard's page is served, at `/`.")
    max_body_bytes: int = Field(default=1 << 20, ge=1024, le=1 << 30, description="Largest request body.")
    max_rows_bytes: int = Field(
        default=32 << 20, ge=1024, le=1 << 30, description="Largest body of rows that are posted to a stream."
    )
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
    long_job_bytes: ByteSize = Field(
        default=ByteSize(10_000_000_000),
        ge=0,
        description="A job whose tables are this large together is a long one, unless it says otherwise; "
        "bytes, or with a unit such as `10GB`.",
    )


class DatabaseSettings(_Group):
    """Where jobs, plans and metrics are kept."""

    model_config = SettingsConfigDict(env_prefix="EVENKEEL_DATABASE_", frozen=True, env_ignore_empty=True)

    url: SecretStr | None = Field(
        default=None,
        description="`postgresql://user:password@host/database`, or a SQLite file as `sqlite:////path`; SQLite in the "
        "state directory by default.",
    )
    password: SecretStr | None = Field(
        default=None, description="Password for a URL that has none, as it is: nothing in it is percent-encoded."
    )
    pool_size: int = Field(
        default=10,
        ge=1,
        le=500,
        description="Connections that an API process keeps. A worker keeps one for each job at once, and some more.",
    )
    pool_overflow: int = Field(default=10, ge=0, le=500, description="Connections beyond these, for a moment.")
    pool_timeout_seconds: float = Field(
        default=10, ge=0.1, le=300, description="How long to wait for a connection while all are taken."
    )
    connect_timeout_seconds: int = Field(
        default=5, ge=2, le=60, description="How long PostgreSQL may take to accept a connection."
    )
    statement_timeout_seconds: float = Field(
        default=30,
        ge=0,
        le=3600,
        description="Longest statement on PostgreSQL; 0 for no limit. Migrations have none.",
    )
    lock_timeout_seconds: float = Field(
        default=10, ge=0.1, le=600, description="How long a statement waits for others to release what it needs."
    )
    retry_seconds: float = Field(
        default=5,
        ge=0,
        le=60,
        description="How long after the database went away requests are tried again before they get a 503.",
    )

    @field_validator("password")
    @classmethod
    def _is_for_a_server(cls, password: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        url = info.data.get("url")
        if password is not None and url is not None and url.get_secret_value().lower().startswith("sqlite"):
            raise PydanticCustomError(
                "password_of_a_file",
                "a SQLite file has no password: leave this variable out, or give the URL of a PostgreSQL in "
                "EVENKEEL_DATABASE_URL",
            )
        return password


def _with_password(url: SecretStr, password: SecretStr | None) -> str:
    """The URL with the password in it, percent-encoded; one that stands in the URL already is replaced."""
    if password is None:
        return url.get_secret_value()
    scheme, _, rest = url.get_secret_value().partition("://")
    authority, slash, path = rest.partition("/")
    user, _, host = authority.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}:{quote(password.get_secret_value(), safe='')}@{host}{slash}{path}"


class WorkerSettings(_Group):
    """Leases, heartbeats and parallelism of workers."""

    model_config = SettingsConfigDict(env_prefix="EVENKEEL_WORKER_", frozen=True, env_ignore_empty=True)

    concurrency: int = Field(default=4, ge=1, le=256, description="Jobs that one worker runs at once.")
    streams: int = Field(
        default=8, ge=0, le=256, description="Continuous jobs that one worker runs at once, beside the others."
    )
    queues: str = Field(
        default="short,long,stream",
        pattern=r"^(short|long|stream)(,(short|long|stream))*$",
        description="Jobs that a worker takes: `short`, `long`, `stream` (continuous ones), or some of them, separated "
        "by commas.",
    )
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
    follow_seconds: float = Field(
        default=10,
        ge=0.1,
        le=86_400,
        description="How often a continuous job looks whether a table with `follow` has changed. A change is taken "
        "when it looks the same twice.",
    )
    drain_seconds: float = Field(
        default=30,
        ge=0,
        le=3600,
        description="How long a stopping worker lets its jobs finish before it hands them back.",
    )
    metrics_port: int = Field(
        default=0, ge=0, le=65535, description="Port of a worker's own metrics for Prometheus; 0 serves none."
    )
    metrics_host: str = Field(default="127.0.0.1", description="Address that a worker's metrics are served at.")


class RetentionSettings(_Group):
    """What is removed by itself, and when."""

    model_config = SettingsConfigDict(env_prefix="EVENKEEL_RETENTION_", frozen=True, env_ignore_empty=True)

    jobs_days: int = Field(
        default=90,
        ge=0,
        le=36_500,
        description="Days after its end at which a job is removed, with its plan, events and result; 0 keeps it.",
    )
    results_days: int = Field(
        default=30,
        ge=0,
        le=36_500,
        description="Days after its end at which a job loses its result; 0 keeps it as long as the job.",
    )


class BackupSettings(_Group):
    """What `evenkeel backup` and `evenkeel restore` need."""

    model_config = SettingsConfigDict(env_prefix="EVENKEEL_BACKUP_", frozen=True, env_ignore_empty=True)

    postgresql_bin: Path | None = Field(
        default=None, description="Directory of `pg_dump` and `pg_restore`; looked for on `PATH` by default."
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
        self.retention = RetentionSettings()
        self.limits = LimitSettings()
        self.backup = BackupSettings()
        self.log = LogSettings()

    @property
    def state_dir(self) -> Path:
        """Absolute state directory; may not exist yet."""
        return self.state.dir.expanduser().absolute()

    @cached_property
    def database_url(self) -> str:
        """SQLAlchemy URL of the database."""
        if self.database.url is not None:
            return _with_password(self.database.url, self.database.password)
        return f"sqlite:///{self.state_dir / 'evenkeel.db'}"

    @cached_property
    def broker_url(self) -> str:
        """Celery broker URL; `filesystem://` for the embedded folders."""
        return _with_password(self.broker.url, self.broker.password) if self.broker.url is not None else "filesystem://"

    @property
    def is_embedded(self) -> bool:
        """Whether database and broker are files of this machine."""
        return self.database_url.startswith("sqlite") and self.broker.url is None

    @property
    def authenticates(self) -> bool:
        """Whether callers of the API must show a key."""
        if self.api.authentication == "auto":
            return not (self.is_embedded and is_loopback(self.api.host))
        return self.api.authentication == "on"

    @property
    def worker_queues(self) -> tuple[str, ...]:
        """The queues that a worker listens to, each once."""
        return tuple(dict.fromkeys(self.worker.queues.split(",")))

    @property
    def broker_dir(self) -> Path:
        """Folder of the embedded broker's messages."""
        return self.state_dir / "broker"

    @property
    def data_root_names(self) -> tuple[Path | str, ...]:
        """Everything that jobs may read, in order: directories as absolute paths, and URIs as they were given."""
        parts = split_roots(self.data.roots) or (str(self.state_dir / "data"),)
        return tuple(part if is_uri(part) else Path(part).expanduser().absolute() for part in parts)

    @property
    def data_roots(self) -> tuple[Path, ...]:
        """Those of the data roots that are directories without a scheme."""
        return tuple(name for name in self.data_root_names if isinstance(name, Path))

    @property
    def sink_roots(self) -> tuple[Path, ...]:
        """Directories below which jobs may write, as absolute paths."""
        parts = (part for part in self.data.sink_roots.split(os.pathsep) if part)
        return tuple(Path(part).expanduser().absolute() for part in parts)

    @property
    def results_dir(self) -> Path:
        """Directory below which every attempt writes its result."""
        return (self.data.results or self.state_dir / "results").expanduser().absolute()

    @property
    def streams_dir(self) -> Path:
        """Directory of posted rows, and of what streaming jobs keep from one mini-batch to the next."""
        return (self.data.streams or self.state_dir / "streams").expanduser().absolute()


GROUPS: tuple[type[BaseSettings], ...] = (
    StateSettings,
    ApiSettings,
    DatabaseSettings,
    BrokerSettings,
    DataSettings,
    WorkerSettings,
    SparkSettings,
    RetentionSettings,
    LimitSettings,
    BackupSettings,
    LogSettings,
    ClientSettings,
)
"""In the order of the README's table."""
