"""Runs the services of docker-compose.yml as local processes, with their commands, variables and health checks.

Host names are replaced by 127.0.0.1, ports by free ports, volumes by directories of the test, and the programs of the
images by those of this environment. PostgreSQL's image does more than run its command, so `PostgresServer` replaces it
with the flags of the command.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from psycopg import sql

from tests.support.compose import ROOT, interpolated
from tests.support.processes import free_port, wait_for
from tests.support.servers import PostgresServer, redis_executable
from tests.support.spark_cluster import spark_home

T = TypeVar("T")

_LAUNCH = Path(__file__).with_name("launch.py")
_CHECK_SECONDS = 30
_HEALTHY_SECONDS = 120
_STOP_SECONDS = 60

_OF_JAVA = ("JAVA_HOME", "JDK_JAVA_OPTIONS")

PORTS = {
    "postgres": (5432,),
    "redis": (6379,),
    "api": (8080,),
    "worker": (9100,),
    "spark-master": (7077, 8080),
    "spark-worker": (8081,),
}
"""The ports that the services listen on in their containers."""


class _Postgres(PostgresServer):
    """A server with the role and the database that the image creates, and with the flags of the command."""

    def __init__(self, directory: Path, port: int, flags: Sequence[str]) -> None:
        super().__init__(directory)
        self.port = port
        self._flags = flags

    def _command(self) -> Sequence[str]:
        return (*super()._command(), *self._flags)

    def set_up(self, user: str, password: str, database: str) -> None:
        """Creates the role and the database, as the image does with POSTGRES_USER, POSTGRES_PASSWORD and
        POSTGRES_DB.
        """
        self.add_role(user, password)
        owned = sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(database), sql.Identifier(user))
        self.execute(owned)


@dataclass
class ComposeStack:
    """Services that are started one by one. `variables` are those of `.env`."""

    directory: Path
    variables: Mapping[str, str]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.services: dict[str, dict[str, Any]] = interpolated(self.variables)["services"]
        self.ports = {(name, port): free_port() for name, ports in PORTS.items() for port in ports}
        self._image = _image_environment()
        self._postgres: _Postgres | None = None
        for name in self.services:
            for _, path in self._mounts(name):
                if not path.exists():
                    path.mkdir(parents=True)

    def start(self, name: str) -> None:
        """Starts a service without waiting for it."""
        if name == "postgres":
            self._start_postgres()
            return
        user = (str(os.getuid()), str(os.getgid()))
        command = [sys.executable, "-P", str(_LAUNCH), *user, *self._located(name, self.services[name]["command"])]
        with self._log(name).open("ab") as output:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=self.directory,
                env=self._environment(name),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def check(self, name: str) -> tuple[int, str]:
        """Runs the health check of a service once. Returns its exit code and its output."""
        kind, *test = self.services[name]["healthcheck"]["test"]
        command = ["sh", "-c", *test] if kind == "CMD-SHELL" else test
        try:
            done = subprocess.run(
                self._located(name, command),
                cwd=self.directory,
                env=self._environment(name),
                capture_output=True,
                text=True,
                timeout=_CHECK_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            return 1, str(error)
        return done.returncode, done.stdout + done.stderr

    def wait_until_healthy(self, name: str) -> None:
        """Repeats the health check until it passes. Raises AssertionError with the log if it does not or the service
        ends.
        """

        def is_healthy() -> bool:
            process = self.processes.get(name)
            assert process is None or process.poll() is None, f"{name} ended:\n{self.log(name)}"
            return self.check(name)[0] == 0

        self._explained(name, lambda: wait_for(f"{name} to be healthy", is_healthy, _HEALTHY_SECONDS, every=0.5))

    def wait_for_end(self, name: str) -> int:
        """Waits for a service that ends by itself and returns its exit code."""
        return self.processes.pop(name).wait(_HEALTHY_SECONDS)

    def stop(self, name: str) -> int:
        """Sends SIGTERM to the process that Docker would send it to. Returns its exit code, -15 if the signal ended
        it.
        """
        process = self.processes.pop(name)
        process.terminate()
        return self._explained(name, lambda: process.wait(_STOP_SECONDS))

    def close(self) -> None:
        """Kills all remaining processes."""
        for process in self.processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(_STOP_SECONDS)
        if self._postgres is not None:
            self._postgres.stop()

    def log(self, name: str) -> str:
        """Returns the end of a service's log."""
        path = self._log(name)
        return path.read_text(errors="replace")[-6000:] if path.exists() else ""

    def _explained(self, name: str, wait: Callable[[], T]) -> T:
        try:
            return wait()
        except (AssertionError, subprocess.TimeoutExpired) as error:
            raise AssertionError(f"{error}\n{self.log(name)}") from None

    def _start_postgres(self) -> None:
        service = self.services["postgres"]
        program, *flags = service["command"]
        assert program == "postgres"
        directory = self.directory / "postgres"
        directory.mkdir()
        self._postgres = _Postgres(directory, self.ports["postgres", 5432], flags)
        self._postgres.start()
        given = service["environment"]
        self._postgres.set_up(given["POSTGRES_USER"], given["POSTGRES_PASSWORD"], given["POSTGRES_DB"])

    def _environment(self, name: str) -> dict[str, str]:
        """Returns the environment of the image and of the service, and Java's variables of this process."""
        service = self.services[name]
        given = {variable: str(value) for variable, value in service.get("environment", {}).items()}
        located = {variable: self._locate(name, value) for variable, value in {**self._image, **given}.items()}
        located |= {variable: os.environ[variable] for variable in _OF_JAVA if variable in os.environ}
        if name.startswith("spark-"):  # Only loopback; a container has its own network.
            located["SPARK_LOCAL_IP"] = "127.0.0.1"
        return {**located, "PATH": self._path(), "HOME": str(self.directory)}

    def _path(self) -> str:
        mine = [Path(sys.executable).parent, spark_home() / "bin", Path(redis_executable()).parent]
        if self._postgres is not None:
            mine.append(Path(self._postgres.binary("psql")).parent)
        return os.pathsep.join([*map(str, mine), os.environ["PATH"]])

    def _located(self, name: str, command: Sequence[str]) -> list[str]:
        found = [self._locate(name, part) for part in command]
        program = _which(found[0], self._path())
        return [program, *found[1:]]

    def _locate(self, name: str, text: str) -> str:
        """Returns `text` of a service with the hosts, ports and paths of this machine."""
        for (host, inside), outside in self.ports.items():
            text = re.sub(rf"(?<![\w.-]){host}:{inside}(?!\d)", f"127.0.0.1:{outside}", text)
            if host == name:
                text = re.sub(rf"(?<![\w.]){inside}(?!\w)", str(outside), text)
        for path, directory in self._mounts(name):
            text = re.sub(rf"(?<!\w){path}(?!\w)", str(directory), text)
        text = re.sub(r"(?<![\w.-])/opt/spark(?!\w)", str(spark_home()), text)
        return re.sub(r"^spark-master$|\b0\.0\.0\.0\b", "127.0.0.1", text)

    def _mounts(self, name: str) -> list[tuple[str, Path]]:
        """Returns the path in the container and the local directory of each volume and tmpfs, except `/tmp`."""
        service = self.services[name]
        found = []
        for mount in service.get("volumes", ()):
            if isinstance(mount, dict):
                here = Path(mount["source"]) if mount["type"] == "bind" else self.directory / mount["source"]
                found.append((mount["target"], here))
            else:
                source, _, target = mount.rpartition(":")
                found.append((target, self.directory / (source or f"{name}-{Path(target).name}")))
        tmpfs = [entry.partition(":")[0] for entry in service.get("tmpfs", ())]
        found += [(path, self.directory / f"{name}-{Path(path).name}") for path in tmpfs if path != "/tmp"]
        return found

    def _log(self, name: str) -> Path:
        return self.directory / f"{name}.log"


def _image_environment() -> dict[str, str]:
    """Returns ENV of the Dockerfile's last stage, without PATH."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").rpartition("FROM ")[2]
    found = re.search(r"^ENV ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    assert found is not None
    pairs = (pair.partition("=") for pair in found[1].replace("\\\n", " ").split())
    return {variable: value for variable, _, value in pairs if variable != "PATH"}


def _which(program: str, path: str) -> str:
    found = shutil.which(program, path=path)
    assert found is not None, f"there is no {program} in this environment"
    return found
