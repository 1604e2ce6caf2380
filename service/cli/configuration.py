"""The settings of this process, or a plain message about the variable that is wrong."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from service.cli.errors import CliError, ExitCode
from service.logging import configure_logging
from service.settings import GROUPS, Settings
from service.spec.locations import join_roots

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
