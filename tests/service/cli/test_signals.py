"""The first signal stops, the second hurries."""

from __future__ import annotations

import os
import signal

import pytest

from service.cli.errors import StopRequestedError
from service.cli.signals import StopSignals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_raises_and_the_second_is_counted(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with StopSignals() as signals:
        with pytest.raises(StopRequestedError):
            os.kill(os.getpid(), number)
        assert not signals.hurried
        os.kill(os.getpid(), number)
        assert signals.hurried
    assert signal.getsignal(number) == before
