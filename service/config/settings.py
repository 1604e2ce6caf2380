"""Settings of the service, read once from environment variables with the prefix `EVENKEEL_`.

Each variable has one declaration (default, bounds, description), from which the documentation's table is made.
"""

from __future__ import annotations

import ipaddress
import os
from functools import cached_property
from pathlib import Path
from typing import Literal, Self
from urllib.parse import quote, urlsplit

from pydantic import ByteSize, Field, SecretStr, ValidationInfo, field_validator, model_validator

from service.config import SettingsGroup, bounded, refusal
from service.config.client import ClientSettings
from service.config.data import DataSettings, is_uri, split_roots
from service.config.spark import MEMORY, SparkSettings, require_memory

_REDIS_SCHEMES = ("redis", "rediss", "redis+socket")
_PASSWORD = "Password for a URL without one, as plain text without percent-encoding."  # noqa: S105


def _default_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "evenkeel"


class StateSettings(SettingsGroup, env_prefix="EVENKEEL_STATE_"):
    """Where an installation without other services stores everything."""

    dir: Path = Field(
        default_factory=_default_state_dir,
        description="Directory of the embedded database, broker folders, data and results; "
        "`$XDG_STATE_HOME/evenkeel` or `~/.local/state/evenkeel` by default.",
    )


class ApiSettings(SettingsGroup, env_prefix="EVENKEEL_API_"):
    """The HTTP API."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int = bounded(8080, 0, 65535, "Port to listen on; 0 chooses a free one.")
    processes: int = bounded(
        1, 1, 64, "Processes of the API, which share the port. Each uses up to one core and some 150 MB."
    )
    authentication: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Whether clients need an API key. `auto`: yes, unless everything runs on this machine: a loopback "
        "address, SQLite and the embedded broker.",
    )
    insecure_bind: bool = Field(
        default=False,
        description="Allow an address other than loopback even if `EVENKEEL_API_AUTHENTICATION` is `off`.",
    )
    allowed_hosts: str = Field(
        default="127.0.0.1,localhost,[::1]",
        description="Host names that requests may use, separated by commas; protects against DNS rebinding.",
    )
    allowed_origins: str = Field(
        default="",
        pattern=r"^(https?://[^\s/,*]+(,https?://[^\s/,*]+)*)?$",
        description="Origins of other sites whose pages may use the API in a browser, such as "
        "`https://dash.example.org`, separated by commas; none by default.",
    )
    trusted_proxies: str = Field(
        default="",
        description="Addresses or networks of proxies whose `X-Forwarded-For` gives the client's address, separated by "
        "commas; the header is ignored by default.",
    )
    dashboard: bool = Field(default=True, description="Whether the dashboard is served at `/`.")
    max_body_bytes: int = bounded(1 << 20, 1024, 1 << 30, "Largest request body.")
    max_rows_bytes: int = bounded(32 << 20, 1024, 1 << 30, "Largest request body with rows for an input stream.")
    max_wait_seconds: float = bounded(45, 0, 300, "Longest `Prefer: wait`.")
    poll_interval_seconds: float = Field(
        default=0.1,
        gt=0,
        le=10,
        description="At least how often a process looks for changes, once for all its waiting requests.",
    )
    explain_timeout_seconds: float = Field(
        default=30, gt=0, le=300, description="How long `POST /v1/explain` waits for a worker."
    )
    long_job_bytes: ByteSize = Field(
        default=ByteSize(10_000_000_000),
        ge=0,
        description="A job whose tables have at least this size in total is a long job, unless it names a queue. "
        "Bytes, or with a unit such as `10GB`.",
    )


class DatabaseSettings(SettingsGroup, env_prefix="EVENKEEL_DATABASE_"):
    """The database of jobs, plans and metrics."""

    url: SecretStr | None = Field(
        default=None,
        description="`postgresql://user:password@host/database`, or a SQLite file as `sqlite:////path`; SQLite in the "
        "state directory by default.",
    )
    password: SecretStr | None = Field(default=None, description=_PASSWORD)
    pool_size: int = bounded(
        10,
        1,
        500,
        "Connections that an API process keeps open. A worker keeps one for each running job, and some more.",
    )
    pool_overflow: int = bounded(10, 0, 500, "Further connections that are opened for a short time.")
    pool_timeout_seconds: float = bounded(10, 0.1, 300, "How long to wait for a connection while all are in use.")
    connect_timeout_seconds: int = bounded(5, 2, 60, "How long PostgreSQL may take to accept a connection.")
    statement_timeout_seconds: float = bounded(
        30, 0, 3600, "Longest statement on PostgreSQL, except in migrations; 0 for no limit."
    )
    lock_timeout_seconds: float = bounded(10, 0.1, 600, "How long a statement waits for a lock.")
    retry_seconds: float = bounded(
        5, 0, 60, "How long requests are retried while the database is unavailable, before they get a 503."
    )

    @field_validator("password")
    @classmethod
    def _is_for_a_server(cls, password: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        url = info.data.get("url")
        if password is not None and url is not None and url.get_secret_value().lower().startswith("sqlite"):
            raise refusal(
                "a SQLite file has no password: leave this variable out, or give the URL of a PostgreSQL in "
                "EVENKEEL_DATABASE_URL"
            )
        return password


class BrokerSettings(SettingsGroup, env_prefix="EVENKEEL_BROKER_"):
    """The broker, which announces jobs to workers. Jobs are in the database: the broker may lose everything."""

    url: SecretStr | None = Field(
        default=None,
        description="Redis: `redis://:PASSWORD@HOST:6379/0`, `rediss://…` for TLS, or `redis+socket:///PATH`; "
        "folders in the state directory by default.",
    )
    password: SecretStr | None = Field(default=None, description=_PASSWORD)
    key_prefix: str = Field(
        default="",
        max_length=64,
        pattern=r"^[A-Za-z0-9_.:{}-]*$",
        description="Prefix of every key in Redis, so that several installations can share one.",
    )
    tls_ca_file: Path | None = Field(
        default=None,
        description="Certificates (PEM) of the only CAs that are trusted for Redis; by default those of this machine. "
        "For `rediss://`, like the next two.",
    )
    tls_certificate_file: Path | None = Field(
        default=None,
        description="Client certificate (PEM) for a Redis that requires one, with those of intermediate CAs.",
    )
    tls_key_file: Path | None = Field(
        default=None, description="Key of the client certificate (PEM, without a passphrase), if it is in another file."
    )
    timeout_seconds: float = bounded(2, 0.1, 60, "How long Redis may take to accept a connection or answer a message.")

    @field_validator("url")
    @classmethod
    def _is_redis(cls, url: SecretStr | None) -> SecretStr | None:
        fault = None if url is None else _fault_of_redis_url(url.get_secret_value())
        if fault is not None:
            raise refusal(fault)
        return url

    @model_validator(mode="after")
    def _files_are_for_tls(self) -> Self:
        if self.tls_key_file is not None and self.tls_certificate_file is None:
            raise refusal("EVENKEEL_BROKER_TLS_KEY_FILE needs EVENKEEL_BROKER_TLS_CERTIFICATE_FILE too")
        has_files = self.tls_ca_file is not None or self.tls_certificate_file is not None
        if has_files and (self.url is None or not self.url.get_secret_value().startswith("rediss://")):
            # Otherwise the operator would take the connection for a safe one.
            raise refusal(
                "EVENKEEL_BROKER_TLS_CA_FILE and EVENKEEL_BROKER_TLS_CERTIFICATE_FILE are for TLS, and "
                "EVENKEEL_BROKER_URL asks for none: write rediss://HOST:PORT/0, or leave them out"
            )
        return self


def _fault_of_redis_url(url: str) -> str | None:
    """Returns what is wrong with the URL and what to write; None for a correct one. Repeats only the URL's scheme,
    since any other part of a wrong URL may be a password."""
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme not in _REDIS_SCHEMES:
        known = f"'{scheme}://'" if scheme.replace("+", "").isalpha() else "this value"
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
        return None if len(parts.path) > 1 else "the path of the socket is missing: write redis+socket:///PATH"
    if not parts.hostname:
        return f"the host is missing: write {scheme}://HOST:6379/0"
    if "?" in url:
        return (
            "options after '?' are not supported (in a password write %3F): the certificate of Redis and its host name "
            "are always checked, with the files in EVENKEEL_BROKER_TLS_CA_FILE, _CERTIFICATE_FILE and _KEY_FILE"
        )
    if parts.path.strip("/") and not parts.path.strip("/").isdecimal():
        return f"the database of a Redis is a number: write {scheme}://HOST:6379/0"
    return None


def _with_password(url: SecretStr, password: SecretStr | None) -> str:
    """Returns the URL with the password, percent-encoded. It replaces a password in the URL."""
    if password is None:
        return url.get_secret_value()
    scheme, _, rest = url.get_secret_value().partition("://")
    authority, slash, path = rest.partition("/")
    user, _, host = authority.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}:{quote(password.get_secret_value(), safe='')}@{host}{slash}{path}"


class WorkerSettings(SettingsGroup, env_prefix="EVENKEEL_WORKER_"):
    """Leases, heartbeats and parallelism of workers."""

    concurrency: int = bounded(4, 1, 256, "Jobs that one worker runs at once.")
    reserved_slots: int = bounded(
        1,
        0,
        256,
        "Jobs that one worker runs in addition, each of a tenant of which no other job runs: the long jobs of one "
        "tenant do not delay those of another.",
    )
    streams: int = bounded(8, 0, 256, "Continuous jobs that one worker runs at once, in addition to the others.")
    isolated_drivers: int = bounded(
        1,
        0,
        16,
        "Jobs with `isolation: driver` that one worker runs at once, each in a Spark driver of its own; further ones "
        "wait. 0 leaves them to other workers.",
    )
    isolated_memory: str = Field(
        default="2g", pattern=MEMORY, description="Heap of each of these drivers, in addition to that of the worker."
    )
    queues: str = Field(
        default="short,long,stream",
        pattern=r"^(short|long|stream)(,(short|long|stream))*$",
        description="Queues from which a worker takes jobs: `short`, `long`, `stream` (continuous jobs), separated by "
        "commas.",
    )
    lease_seconds: float = bounded(30, 1, 3600, "How long a worker keeps its jobs without a heartbeat.")
    heartbeat_seconds: float = bounded(5, 0.1, 600, "How often a worker renews its leases.")
    sweep_seconds: float = bounded(5, 0.1, 600, "How often a worker looks for expired leases and unclaimed jobs.")
    ring_again_seconds: float = bounded(
        10, 0.1, 3600, "Time after which a queued job that no worker has claimed is announced again."
    )
    watch_seconds: float = bounded(0.2, 0.05, 10, "How often a worker checks time limits and requests to cancel.")
    progress_seconds: float = bounded(1, 0.1, 60, "How often progress is stored.")
    follow_seconds: float = bounded(
        10,
        0.1,
        86_400,
        "How often a continuous job checks whether a table with `refresh` has changed. It reads the table again once "
        "two checks in a row find the same new state.",
    )
    drain_seconds: float = bounded(
        30, 0, 3600, "How long a worker that stops lets its jobs run before it hands them back."
    )
    metrics_port: int = bounded(0, 0, 65535, "Port of a worker's own metrics for Prometheus; 0 serves none.")
    metrics_host: str = Field(default="127.0.0.1", description="Address at which a worker serves its metrics.")

    _memory_is_enough = field_validator("isolated_memory")(require_memory)

    @property
    def threads(self) -> int:
        """The number of threads that run jobs."""
        return self.concurrency + self.reserved_slots


class RetentionSettings(SettingsGroup, env_prefix="EVENKEEL_RETENTION_"):
    """When old jobs and results are removed."""

    jobs_days: int = bounded(
        90, 0, 36_500, "Days after its end when a job is removed, with its plan, events and result; 0 keeps it."
    )
    results_days: int = bounded(
        30, 0, 36_500, "Days after the end of a job when its result is removed; 0 keeps it as long as the job."
    )


class LimitSettings(SettingsGroup, env_prefix="EVENKEEL_LIMITS_"):
    """Limits for each tenant."""

    queued_jobs: int = bounded(
        10_000,
        0,
        10_000_000,
        "Jobs of a tenant that wait for a worker; one more that it submits or resumes gets a 429. 0 for no limit.",
    )
    running_jobs: int = bounded(
        0, 0, 100_000, "Jobs of a tenant that run at once, and as many streams; the others wait. 0 for no limit."
    )
    explanations: int = bounded(
        10,
        0,
        100_000,
        "Explanations of a tenant that wait or run at once; one more gets a 429. They use at most half of a worker's "
        "slots. 0 for no limit, and all slots.",
    )
    result_bytes: ByteSize = Field(
        default=ByteSize(0),
        ge=0,
        description="Largest managed result of a batch job, which fails if its result is larger. Bytes, or with a unit "
        "such as `10GB`; 0 for no limit.",
    )
    free_bytes: ByteSize = Field(
        default=ByteSize(256 << 20),
        ge=0,
        description="Free disk space that the state of a stream leaves: with less, the stream is STOPPED before its "
        "next mini-batch. Bytes, or with a unit such as `10GB`; 0 for no limit.",
    )
    streams: int = bounded(1_000, 0, 1_000_000, "Input streams of a tenant; one more gets a 429. 0 for no limit.")
    posted_bytes: ByteSize = Field(
        default=ByteSize(0),
        ge=0,
        description="Size of the files of all rows that a tenant has posted; above it, further rows get a 429 until "
        "the tenant deletes a stream. Bytes, or with a unit such as `10GB`; 0 for no limit.",
    )


class BackupSettings(SettingsGroup, env_prefix="EVENKEEL_BACKUP_"):
    """Settings of `evenkeel backup` and `evenkeel restore`."""

    postgresql_bin: Path | None = Field(
        default=None, description="Directory of `pg_dump` and `pg_restore`; by default they are searched on `PATH`."
    )


class LogSettings(SettingsGroup, env_prefix="EVENKEEL_LOG_"):
    """The log on standard error."""

    level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least severe level that is logged."
    )
    format: Literal["json", "console"] = Field(
        default="json", description="One JSON object a line, or text for a terminal."
    )


def is_loopback(host: str) -> bool:
    """Returns whether only this machine can reach the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Settings:
    """All groups, and values that depend on several of them. Create one with `Settings()` and pass it on."""

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
        """The state directory as an absolute path. It may not exist yet."""
        return self.state.dir.expanduser().absolute()

    @cached_property
    def database_url(self) -> str:
        """The URL of the database for SQLAlchemy."""
        if self.database.url is not None:
            return _with_password(self.database.url, self.database.password)
        return f"sqlite:///{self.state_dir / 'evenkeel.db'}"

    @cached_property
    def broker_url(self) -> str:
        """The URL of the broker for Celery; `filesystem://` for the embedded folders."""
        return _with_password(self.broker.url, self.broker.password) if self.broker.url is not None else "filesystem://"

    @property
    def is_embedded(self) -> bool:
        """Whether database and broker are files on this machine."""
        return self.database_url.startswith("sqlite") and self.broker.url is None

    @property
    def authenticates(self) -> bool:
        """Whether clients of the API need a key."""
        if self.api.authentication == "auto":
            return not (self.is_embedded and is_loopback(self.api.host))
        return self.api.authentication == "on"

    @property
    def worker_queues(self) -> tuple[str, ...]:
        """The queues that a worker listens to, each once."""
        return tuple(dict.fromkeys(self.worker.queues.split(",")))

    @property
    def broker_dir(self) -> Path:
        """The folder of the embedded broker's messages."""
        return self.state_dir / "broker"

    @property
    def data_root_names(self) -> tuple[Path | str, ...]:
        """The data roots, in order: directories as absolute paths, and URIs as given."""
        parts = split_roots(self.data.roots) or (str(self.state_dir / "data"),)
        return tuple(part if is_uri(part) else Path(part).expanduser().absolute() for part in parts)

    @property
    def data_roots(self) -> tuple[Path, ...]:
        """The data roots that are directories without a scheme."""
        return tuple(name for name in self.data_root_names if isinstance(name, Path))

    @property
    def sink_roots(self) -> tuple[Path, ...]:
        """The directories below which jobs may write, as absolute paths."""
        parts = (part for part in self.data.sink_roots.split(os.pathsep) if part)
        return tuple(Path(part).expanduser().absolute() for part in parts)

    @property
    def results_dir(self) -> Path:
        """The directory below which every attempt writes its result."""
        return (self.data.results or self.state_dir / "results").expanduser().absolute()

    @property
    def streams_dir(self) -> Path:
        """The directory of posted rows and of the state of streaming jobs."""
        return (self.data.streams or self.state_dir / "streams").expanduser().absolute()


GROUPS: tuple[type[SettingsGroup], ...] = (
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
"""All groups, in the order of the documentation."""
