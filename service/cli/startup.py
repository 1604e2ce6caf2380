"""The settings of this process, or a plain message about the variable that is wrong.

The directories that a service needs before anything starts.

One `up` or `demo` a state directory, and no leftovers of those that were killed.

The lock is the system's own on a file (`flock`): it ends with the process that holds it, however that ends.

The API's socket. The parent binds it and the API child inherits it.

So a busy port is known before anything starts, port 0 has no race, and while an API that died is started again,
clients wait in the socket's queue instead of being refused.

Tells at start what is wrong with the broker. It keeps nothing from starting: jobs wait in the database for it.

The key with which whoever installed the service makes all others.
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

from service.client.terminal import CliError, ExitCode
from service.config.data import join_roots
from service.config.settings import GROUPS, Settings, is_loopback
from service.monitoring.logs import configure_logging

_LOCATIONS = ("EVENKEEL_STATE_", "EVENKEEL_API_", "EVENKEEL_DATABASE_", "EVENKEEL_BROKER_", "EVENKEEL_DATA_")


def read_settings() -> Settings:
    """Settings from the environment, which logs obey from now on. Raises CliError that names the variables which are
    out of bounds."""
    try:
        settings = Settings()
    except ValidationError as error:
        prefixes = {group.__name__: group.model_config.get("env_prefix", "") for group in GROUPS}
        prefix = prefixes.get(error.title, "")
        lines = [
            # What is wrong with several variables together names them itself.
            (f"{prefix}{'_'.join(str(part) for part in problem['loc'])}".upper() + ": " if problem["loc"] else "")
            + problem["msg"]
            for problem in error.errors()
        ]
        raise CliError("; ".join(lines), "The README lists every variable.", code=ExitCode.USAGE) from None
    except RuntimeError as error:  # `Path.home()` of a user who has none
        raise CliError(str(error), "Set EVENKEEL_STATE_DIR to a directory of yours.", code=ExitCode.USAGE) from None
    configure_logging(settings.log)
    return settings


def isolate(environment: Mapping[str, str], state_dir: Path) -> dict[str, str]:
    """A copy of `environment` for a service of its own in `state_dir`, which touches no configured database, broker,
    data or port. What tunes workers, Spark and logs is kept."""
    kept = {name: value for name, value in environment.items() if not name.upper().startswith(_LOCATIONS)}
    return {**kept, "EVENKEEL_STATE_DIR": str(state_dir), "EVENKEEL_API_PORT": "0"}


def without_client_key(environment: Mapping[str, str]) -> dict[str, str]:
    """A copy without the key that the user asks services with: it is none of a service's business, and would stand in
    Spark's environment.
    """
    return {name: value for name, value in environment.items() if name.upper() != "EVENKEEL_API_KEY"}


def child_environment(
    settings: Settings, environment: Mapping[str, str], parent_pid: int | None = None
) -> dict[str, str]:
    """The environment of a child that runs in another directory: every relative path in it is made absolute, and it
    ends with `parent_pid` (this process by default)."""
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


_AWKWARD = '?#%,"'  # parts of a URL, of a list of directories, of a JVM's options


def prepare_directories(settings: Settings) -> None:
    """Makes the state directory and what it holds, the first three readable by their owner alone.

    Raises CliError where that is not possible, and for a path that a database URL or Spark would read otherwise.
    """
    awkward = sorted(set(str(settings.state_dir)) & set(_AWKWARD))
    if awkward:
        raise CliError(
            f"the path of the state directory holds {' '.join(awkward)}: {settings.state_dir}",
            "Set EVENKEEL_STATE_DIR to a path without these characters.",
            code=ExitCode.USAGE,
        )
    try:
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.results_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.streams_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        (settings.state_dir / "logs").mkdir(exist_ok=True)
        if not settings.data.roots:  # a root that was configured and is missing is a mistake to be told, not to be made
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


_LOCK = "evenkeel.lock"
_TEMPORARY = "evenkeel-demo-"


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Holds an existing state directory for this process alone. Raises CliError where another one has it."""
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
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
    """A new directory for one demo, removed at the end unless it is to be kept, as are those of killed demos."""
    remove_abandoned(Path(tempfile.gettempdir()))
    directory = Path(tempfile.mkdtemp(prefix=_TEMPORARY))
    try:
        yield directory
    finally:
        if keep:
            # What is kept on purpose is not left over.
            (directory / _LOCK).unlink(missing_ok=True)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def remove_abandoned(parent: Path) -> None:
    """Removes the temporary state directories of this user below `parent` whose process is gone."""
    for directory in parent.glob(f"{_TEMPORARY}*"):
        with suppress(OSError):  # somebody else's, or just gone
            if directory.stat().st_uid == os.getuid() and _is_abandoned(directory):
                shutil.rmtree(directory, ignore_errors=True)


def _is_abandoned(directory: Path) -> bool:
    """Whether its lock was made and nobody holds it: one without a lock file is being made, or was kept."""
    descriptor = os.open(directory / _LOCK, os.O_RDWR)
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


_BACKLOG = 512


def listen(settings: Settings, port: int | None = None) -> socket.socket:
    """A listening socket at the configured address; `port` overrides the configured one, 0 takes any free one.

    Raises CliError where the port is taken, the address is not this machine's, or it would admit strangers.
    """
    api = settings.api
    wanted = api.port if port is None else port
    refuse_open_door(settings)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            api.host, wanted, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CliError(f"{api.host} is no address to listen on: {error}", code=ExitCode.USAGE) from None
    try:
        # Lets a restart take over a port whose old connections are still being closed down, never a port in use.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(api.host, wanted, error) from None
    return listener


def refuse_open_door(settings: Settings) -> None:
    """Raises CliError for an address that others can reach while nobody needs a key, unless the operator allows it."""
    api = settings.api
    if settings.authenticates or api.insecure_bind or is_loopback(api.host):
        return
    raise CliError(
        f"{api.host} is not a loopback address, and callers are not authenticated",
        "Leave EVENKEEL_API_AUTHENTICATION=auto, keep EVENKEEL_API_HOST=127.0.0.1, or set "
        "EVENKEEL_API_INSECURE_BIND=true behind something that authenticates.",
        code=ExitCode.USAGE,
    )


def address_of(listener: socket.socket) -> str:
    """The URL at which this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if listener.family is socket.AF_INET6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _cannot_listen(host: str, port: int, error: OSError) -> CliError:
    if error.errno == errno.EADDRINUSE:
        return CliError(
            f"port {port} on {host} is taken",
            f"Stop what listens there (`lsof -i :{port}` tells), or choose another: --port 0 takes any free one.",
            code=ExitCode.MISSING,
        )
    if error.errno == errno.EACCES:
        return CliError(f"listening on port {port} is not allowed", "Take a port above 1023.", code=ExitCode.MISSING)
    return CliError(f"cannot listen on {host}, port {port}: {error.strerror}", code=ExitCode.MISSING)


def tell_broker_fault(settings: Settings) -> None:
    """One line on standard error where Redis takes no messages; nothing for the embedded broker."""
    import typer

    from service.broker.configuration import broker_fault, is_embedded

    fault = None if is_embedded(settings) else broker_fault(settings)
    if fault is not None:
        typer.echo(f"evenkeel: {fault.detail} {fault.advice} Until then, jobs are accepted and wait.", err=True)


def first_key_notice(settings: Settings) -> str:
    """What to show once, where callers are authenticated and no key was ever made: it is made now. Empty otherwise.

    Raises CliError where the database is away.
    """
    from service.cli.maintenance import opened_database
    from service.keys.administration import issue_first_key

    if not settings.authenticates:
        return ""
    with opened_database(settings) as database:
        issued = issue_first_key(database)
    if issued is None:
        return ""
    return (
        f"The first API key, for tenant '{issued.tenant}' and with every scope:\n"
        f"  {issued.key}\n"
        "It is not shown again. Make others with it (POST /v1/keys) or with `evenkeel keys create`, then revoke it."
    )
