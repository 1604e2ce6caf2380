"""The directories that a service needs before anything starts."""

from __future__ import annotations

import os

from service.cli.errors import CliError, ExitCode
from service.settings import Settings

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
