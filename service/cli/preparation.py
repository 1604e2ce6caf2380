"""What a process of the service needs before it starts: settings, environment, directories, a lock and a socket.

Only one `up` or `demo` at a time can use a state directory. The lock is a `flock`, which the system releases when the
process ends, even by `kill -9`.

The parent binds the API's socket, and the API process inherits it. So a port in use is reported before a process
starts, no other process can take the free port that 0 selects, and while the API restarts, clients wait in the socket's
queue instead of being refused.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from pydantic import ValidationError

from service.cli.terminal import CONFIGURATION_ADVICE, CliError, ExitCode
from service.config.data import join_roots
from service.config.settings import GROUPS, Settings, is_loopback
from service.contract.validation_texts import text_of
from service.monitoring.logs import configure_logging

_DEMO_EXCLUDES = ("EVENKEEL_STATE_", "EVENKEEL_API_", "EVENKEEL_DATABASE_", "EVENKEEL_BROKER_", "EVENKEEL_DATA_")
"""Prefixes of the variables that a demo does not inherit."""

_UNSAFE_IN_PATHS = '?#%,"'  # they have a meaning in URLs, lists of directories and JVM options

_LOCK_FILE = "evenkeel.lock"
_DEMO_PREFIX = "evenkeel-demo-"
_BACKLOG = 512


def read_settings() -> Settings:
    """Reads the settings from the environment and configures logging. Raises CliError that names invalid variables."""
    try:
        settings = Settings()
    except ValidationError as error:
        prefixes = {group.__name__: group.model_config.get("env_prefix", "") for group in GROUPS}
        prefix = prefixes.get(error.title, "")
        lines = [
            # An error that concerns several variables names them in its message.
            (f"{prefix}{'_'.join(str(part) for part in problem['loc'])}".upper() + ": " if problem["loc"] else "")
            + text_of(problem)
            for problem in error.errors()
        ]
        raise CliError(
            "; ".join(lines),
            CONFIGURATION_ADVICE,
            code=ExitCode.USAGE,
        ) from None
    except RuntimeError as error:  # raised by `Path.home()`
        raise CliError(
            str(error), "Set EVENKEEL_STATE_DIR to a directory that you can write to.", code=ExitCode.USAGE
        ) from None
    configure_logging(settings.log)
    return settings


def isolate(environment: Mapping[str, str], state_dir: Path) -> dict[str, str]:
    """Returns the environment of a separate service in `state_dir`, without the configured database, broker, data and
    port. Variables that configure workers, Spark and logs are kept.
    """
    kept = {name: value for name, value in environment.items() if not name.upper().startswith(_DEMO_EXCLUDES)}
    return {**kept, "EVENKEEL_STATE_DIR": str(state_dir), "EVENKEEL_API_PORT": "0"}


def without_client_key(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment without the user's API key, which would otherwise be visible in Spark's environment."""
    return {name: value for name, value in environment.items() if name.upper() != "EVENKEEL_API_KEY"}


def child_environment(
    settings: Settings, environment: Mapping[str, str], parent_pid: int | None = None
) -> dict[str, str]:
    """Returns the environment of a child process that runs in another directory and ends with its parent.

    Relative paths are made absolute. The parent is this process by default.
    """
    child = {
        **environment,
        "EVENKEEL_STATE_DIR": str(settings.state_dir),
        "EVENKEEL_DATA_ROOTS": join_roots(settings.data_root_names),
        "EVENKEEL_DATA_RESULTS": str(settings.results_dir),
        "EVENKEEL_DATA_STREAMS": str(settings.streams_dir),
        "EVENKEEL_PARENT_PID": str(os.getpid() if parent_pid is None else parent_pid),
        "PYTHONUNBUFFERED": "1",
    }
    child = without_client_key(child)
    files = {
        "EVENKEEL_SPARK_PROPERTIES_FILE": settings.spark.properties_file,
        "EVENKEEL_BROKER_TLS_CA_FILE": settings.broker.tls_ca_file,
        "EVENKEEL_BROKER_TLS_CERTIFICATE_FILE": settings.broker.tls_certificate_file,
        "EVENKEEL_BROKER_TLS_KEY_FILE": settings.broker.tls_key_file,
    }
    child |= {name: str(path.expanduser().absolute()) for name, path in files.items() if path is not None}
    if settings.database.url is not None:
        child["EVENKEEL_DATABASE_URL"] = _absolute_sqlite(settings.database.url.get_secret_value())
    return child


def _absolute_sqlite(url: str) -> str:
    prefix = "sqlite:///"
    path = url.removeprefix(prefix)
    if not url.startswith(prefix) or not path or path.startswith((":", "/")):
        return url
    return prefix + str(Path(path).absolute())


def prepare_directories(settings: Settings) -> None:
    """Creates the state directory and its subdirectories. Only the owner can read state, results and streams.

    Raises CliError if that fails, or if the path contains characters that a database URL or Spark would misread.
    """
    unsafe = sorted(set(str(settings.state_dir)) & set(_UNSAFE_IN_PATHS))
    if unsafe:
        raise CliError(
            f"the path of the state directory contains {' '.join(unsafe)}: {settings.state_dir}",
            "Set EVENKEEL_STATE_DIR to a path without these characters.",
            code=ExitCode.USAGE,
        )
    try:
        for directory in (settings.state_dir, settings.results_dir, settings.streams_dir):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (settings.state_dir / "logs").mkdir(exist_ok=True)
        if not settings.data.roots:  # a configured root that does not exist is an error, and is not created
            settings.data_roots[0].mkdir(exist_ok=True)
        probe = settings.state_dir / f".writable-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise CliError(
            f"cannot write to the state directory: {error}",
            "Set EVENKEEL_STATE_DIR to a directory that you can write to.",
            code=ExitCode.MISSING,
        ) from None


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Locks an existing state directory. Raises CliError if another process has locked it."""
    descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if not _try_lock(descriptor):
            raise CliError(
                f"another evenkeel is running in {directory}",
                "Stop it, or set EVENKEEL_STATE_DIR to another directory.",
                code=ExitCode.MISSING,
            )
        yield
    finally:
        os.close(descriptor)


@contextmanager
def temporary_state_dir(*, keep: bool) -> Iterator[Path]:
    """Creates a directory for a demo, and removes it at the end of the block unless `keep`.

    Also removes the directories of demos that were killed.
    """
    remove_abandoned(Path(tempfile.gettempdir()))
    directory = Path(tempfile.mkdtemp(prefix=_DEMO_PREFIX))
    try:
        yield directory
    finally:
        if keep:
            # Without a lock file, a later demo does not remove it.
            (directory / _LOCK_FILE).unlink(missing_ok=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Removes this user's temporary state directories in `parent` whose process has ended."""
    for directory in parent.glob(f"{_DEMO_PREFIX}*"):
        with suppress(OSError):  # another user's, or removed in the meantime
            if directory.stat().st_uid == os.getuid() and _is_abandoned(directory):
                shutil.rmtree(directory, ignore_errors=True)


def _is_abandoned(directory: Path) -> bool:
    """Whether the directory has a lock file and no process holds the lock.

    Raises OSError if it has no lock file, because it was kept or is just being created.
    """
    descriptor = os.open(directory / _LOCK_FILE, os.O_RDWR)
    try:
        return _try_lock(descriptor)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def listen(settings: Settings, port: int | None = None) -> socket.socket:
    """Returns a listening socket at the configured address. `port` overrides the configured port; 0 is any free port.

    Raises CliError if the port is in use, if the address does not belong to this machine, or if other machines could
    reach the API without authentication.
    """
    api = settings.api
    wanted = api.port if port is None else port
    refuse_unauthenticated_access(settings)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            api.host, wanted, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CliError(f"{api.host} is not an address to listen on: {error}", code=ExitCode.USAGE) from None
    try:
        # Allows a restart while old connections are in TIME_WAIT; a port in use remains an error.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(api.host, wanted, error) from None
    return listener


def refuse_unauthenticated_access(settings: Settings) -> None:
    """Raises CliError if other machines can reach the address without an API key, unless the settings allow it."""
    api = settings.api
    if settings.authenticates or api.insecure_bind or is_loopback(api.host):
        return
    raise CliError(
        f"{api.host} is not a loopback address, and callers are not authenticated",
        "Leave EVENKEEL_API_AUTHENTICATION=auto, keep EVENKEEL_API_HOST=127.0.0.1, or set "
        "EVENKEEL_API_INSECURE_BIND=true if a proxy in front of the API authenticates callers.",
        code=ExitCode.USAGE,
    )


def address_of(listener: socket.socket) -> str:
    """Returns the URL of the socket on this machine."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if listener.family is socket.AF_INET6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _cannot_listen(host: str, port: int, error: OSError) -> CliError:
    if error.errno == errno.EADDRINUSE:
        return CliError(
            f"port {port} on {host} is in use",
            f"Stop the process that uses it (`lsof -i :{port}`), or choose another port: --port 0 is any free one.",
            code=ExitCode.MISSING,
        )
    if error.errno == errno.EACCES:
        return CliError(f"listening on port {port} is not allowed", "Choose a port above 1023.", code=ExitCode.MISSING)
    return CliError(f"cannot listen on {host}, port {port}: {error.strerror}", code=ExitCode.MISSING)
