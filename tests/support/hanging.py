"""Plannings that hang until they are released: in Python, with and without checks, and in the JVM."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from socket import create_server
from typing import TYPE_CHECKING, Any

from py4j.java_gateway import GatewayParameters, JavaGateway

if TYPE_CHECKING:
    from workers.driver.driver import Driver


class Hang(ABC):
    """A planning that hangs."""

    def __init__(self, driver: Driver) -> None:
        self.begun = threading.Event()
        """Set when it hangs."""
        self._released = threading.Event()
        self._driver = driver

    def once(self, check: Callable[[], None]) -> None:
        """Hangs on the first call. `check` is the function that planning calls between its steps."""
        if not self.begun.is_set() and not self._released.is_set():
            self.hang(check)

    @abstractmethod
    def hang(self, check: Callable[[], None]) -> None:
        """Hangs until it is released."""

    def release(self) -> None:
        """Ends the hang and prevents later ones."""
        self._released.set()


class LoopWithChecks(Hang):
    """A loop that calls `check`."""

    def hang(self, check: Callable[[], None]) -> None:
        """See `Hang`."""
        self.begun.set()
        while not self._released.is_set():
            check()


class WaitInPython(Hang):
    """A call that does not return, like that of a hanging file system."""

    def hang(self, check: Callable[[], None]) -> None:
        """See `Hang`."""
        self.begun.set()
        self._released.wait()


class LoopInPython(Hang):
    """A loop that calls nothing."""

    def hang(self, check: Callable[[], None]) -> None:
        """See `Hang`."""
        self.begun.set()
        while not self._released.is_set():
            pass


class HangInJvm(Hang):
    """A call into the JVM that does not return."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        jvm = driver.context._jvm
        assert jvm is not None
        self._latch = jvm.java.util.concurrent.CountDownLatch(1)

    def hang(self, check: Callable[[], None]) -> None:
        """See `Hang`."""
        self.begun.set()
        # `await` is a keyword of Python.
        getattr(self._latch, "await")()

    def release(self) -> None:
        """See `Hang`."""
        super().release()
        self._latch.countDown()


@contextmanager
def silent_gateway() -> Iterator[Any]:
    """Yields a gateway whose JVM accepts connections but does not respond."""
    with create_server(("127.0.0.1", 0)) as server:
        yield JavaGateway(gateway_parameters=GatewayParameters(address="127.0.0.1", port=server.getsockname()[1]))
