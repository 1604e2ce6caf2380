"""A Spark standalone cluster on loopback, run from the pyspark distribution, which ends with the test run.

Master and workers are JVMs that the kernel kills with the process that started them. Executors are child processes of
their worker and end after it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support.processes import free_port, wait_for, wait_until_gone

_LAUNCH = Path(__file__).with_name("launch.py")
_START_SECONDS = 60
_RETURN_SECONDS = 60
"""A worker looks for a lost master every 5 to 15 s."""
_PORT_TRIES = 5


@dataclass
class SparkCluster:
    """A master and its workers. Ports and directories stay the same when they are restarted."""

    directory: Path
    workers: int = 2
    cores: int = 1
    memory: str = "1g"
    recovers: bool = False
    """Whether a restarted master restores its workers and applications."""
    port: int = 0
    web_port: int = 0
    _master: subprocess.Popen[bytes] | None = None
    _workers: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The value for `EVENKEEL_SPARK_MASTER`."""
        return f"spark://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts all processes and waits until every worker is registered."""
        self.start_master()
        for number in range(self.workers):
            self.start_worker(number, wait=False)
        self.wait_for_workers(self.workers)

    def stop(self) -> None:
        """Kills all processes, including executors."""
        executors = self.executors()
        for number in tuple(self._workers):
            self.stop_worker(number)
        self.stop_master()
        wait_until_gone(executors)

    def start_master(self) -> None:
        """Starts the master and waits until it accepts workers. The first start chooses free ports."""
        tries = 1 if self.port else _PORT_TRIES
        for left in reversed(range(tries)):
            self.port, self.web_port = self.port or free_port(), self.web_port or free_port()
            where = ("--host", "127.0.0.1", "--port", str(self.port), "--webui-port", str(self.web_port))
            self._master = self._launch("org.apache.spark.deploy.master.Master", where, "master")
            self._wait("the Spark master", self._is_up_or_ended)
            if self._master.poll() is None:
                return
            if not left:
                raise AssertionError(f"the Spark master ended at once:\n{self.logs()}")
            self.port = self.web_port = 0

    def stop_master(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Stops the master; SIGKILL simulates a crash."""
        if self._master is not None:
            _end(self._master, how)
            self._master = None

    def restart_master(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Restarts the master on the same ports and waits until every running worker is registered again.

        That takes up to 15 s, the workers' interval. Without `recovers`, the new master knows no application.
        """
        self.stop_master(how)
        self.start_master()
        self.wait_for_workers(len(self._workers), _RETURN_SECONDS)

    def start_worker(self, number: int, wait: bool = True) -> None:
        """Starts worker `number`, counted from 0."""
        directory = self.directory / f"worker-{number}"
        directory.mkdir(exist_ok=True)
        offer = ("--host", "127.0.0.1", "-c", str(self.cores), "-m", self.memory)
        where = ("--webui-port", "0", "-d", str(directory))
        self._workers[number] = self._launch(
            "org.apache.spark.deploy.worker.Worker", (*offer, *where, self.url), f"worker-{number}"
        )
        if wait:
            self.wait_for_workers(len(self._workers))

    def stop_worker(self, number: int, how: signal.Signals = signal.SIGKILL) -> None:
        """Stops worker `number`; its executors end after it."""
        _end(self._workers.pop(number), how)

    def restart_worker(self, number: int, how: signal.Signals = signal.SIGKILL) -> None:
        """Restarts worker `number` and waits until it is registered."""
        self.stop_worker(number, how)
        self.start_worker(number)

    def executors(self, application: str | None = None) -> list[int]:
        """Returns the process ids of the running executors, of one application or of all."""
        found = []
        for process in self._workers.values():
            with suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                        command = child.cmdline()
                        is_ours = application is None or application in command
                        if is_ours and any("CoarseGrainedExecutorBackend" in part for part in command):
                            found.append(child.pid)
        return found

    def state(self) -> dict[str, Any]:
        """Returns the master's state: `status`, `workers`, `activeapps`, `cores`, `coresused`, `memory` and more."""
        answer = httpx.get(f"http://127.0.0.1:{self.web_port}/json/", timeout=5, trust_env=False)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def applications(self) -> list[str]:
        """Returns the ids of the running and waiting applications."""
        return [str(application["id"]) for application in self.state()["activeapps"]]

    def wait_for_workers(self, number: int, seconds: float = _START_SECONDS) -> None:
        """Waits until this number of workers is registered and alive."""

        def are_there() -> bool:
            with suppress(httpx.HTTPError, ValueError):
                return int(self.state()["aliveworkers"]) >= number
            return False

        self._wait(f"{number} Spark workers", are_there, seconds)

    def logs(self) -> str:
        """Returns the end of every process's log."""
        files = sorted(self.directory.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}" for log in files)

    def _is_up_or_ended(self) -> bool:
        assert self._master is not None
        if self._master.poll() is not None:
            return True
        with suppress(httpx.HTTPError, ValueError):
            return bool(self.state()["status"] == "ALIVE")
        return False

    def _wait(self, what: str, probe: Any, seconds: float = _START_SECONDS) -> None:
        try:
            wait_for(what, probe, seconds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.logs()}") from None

    def _launch(self, main: str, arguments: Sequence[str], name: str) -> subprocess.Popen[bytes]:
        home = spark_home()
        user = (str(os.getuid()), str(os.getgid()))
        command = (str(home / "bin" / "spark-class"), main, *arguments)
        with (self.directory / f"{name}.log").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-P", str(_LAUNCH), *user, *command],
                cwd=self.directory,
                env=self._environment(home),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _environment(self, home: Path) -> Mapping[str, str]:
        # -UsePerfData: a killed JVM would leave a file in the system's temporary directory. No retries: if a port
        # is in use, the JVM must not choose another one.
        options = "-XX:-UsePerfData -XX:+UseSerialGC -Dspark.port.maxRetries=0 -Dspark.master.rest.enabled=false"
        if self.recovers:
            recovery = self.directory / "recovery"
            options += f" -Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={recovery}"
        (self.directory / "local").mkdir(exist_ok=True)
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))},
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.directory / "local"),
            "SPARK_DAEMON_MEMORY": "192m",
            "SPARK_DAEMON_JAVA_OPTS": options,
        }


@contextmanager
def running_cluster(
    directory: Path,
    workers: int = 2,
    cores: int = 1,
    memory: str = "1g",
    *,
    recovers: bool = False,
) -> Iterator[SparkCluster]:
    """Runs a cluster below `directory`, with these cores and this memory for each worker."""
    cluster = SparkCluster(directory, workers, cores, memory, recovers)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def spark_home() -> Path:
    """Returns the pyspark directory, which contains all of Spark."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise AssertionError("These tests need Spark: pip install '.[test]'.")
    return Path(spec.origin).parent


def _end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
        process.send_signal(how)
    process.wait(_START_SECONDS)
