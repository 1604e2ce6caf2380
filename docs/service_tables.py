"""Tables of the settings of a job, environment variables, limits, metrics and log events."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from docs.markdown import anchor, code, codes, sentence, table
from service.api.request_bodies import MAX_NESTING
from service.config import SettingsGroup
from service.config.client import ClientSettings
from service.config.data import DataSettings
from service.config.settings import (
    ApiSettings,
    BackupSettings,
    BrokerSettings,
    DatabaseSettings,
    LimitSettings,
    LogSettings,
    RetentionSettings,
    StateSettings,
    WorkerSettings,
)
from service.config.spark import FIXED, SparkSettings
from service.contract.job import MAX_TABLES
from service.contract.options import declared_settings
from service.contract.profiles import MAX_COLUMNS as MAX_KEY_COLUMNS
from service.contract.profiles import MAX_KEYS
from service.contract.query import LIMITS, MAX_NAME_LENGTH
from service.contract.tables import MAX_SCHEMA_LENGTH
from service.data.files import MAX_DEPTH, MAX_FILES
from service.data.schemas import MAX_FOOTER
from service.ingest.columns import MAX_CELLS, MAX_ROWS
from service.monitoring.logs import LOG_EVENTS, LogEvent
from service.monitoring.metrics import API_METRICS, WORKER_METRICS, DeclaredMetric
from service.sql.ddl import MAX_COLUMNS
from service.sql.expressions.regular_expressions import MAX_LENGTH
from service.sql.types.functions import MAX_PADDED_LENGTH

SETTINGS_GROUPS: Mapping[str, tuple[str, ...]] = {
    "aggregates": ("agg_phase", "distinct_method", "distinct_split", "incremental_agg", "eager_aggregation"),
    "joins": ("join", "skew"),
    "windows": ("skewed_windows",),
    "isolation": ("isolation",),
    "streams": ("mini_batch", "state"),
    "planning": ("optimizer",),
}
"""The first part of the keys of a job's settings, by the table that has them."""

VARIABLES: Mapping[str, type[SettingsGroup]] = {
    "state": StateSettings,
    "API": ApiSettings,
    "database": DatabaseSettings,
    "broker": BrokerSettings,
    "data": DataSettings,
    "worker": WorkerSettings,
    "Spark": SparkSettings,
    "retention": RetentionSettings,
    "tenant limits": LimitSettings,
    "backup": BackupSettings,
    "log": LogSettings,
    "client": ClientSettings,
}
"""The groups of environment variables, by the table that has them."""

LEVELS = ("error", "warning", "info")


def settings_table(group: str) -> str:
    """Returns the table of a group of a job's settings."""
    rows = [
        (
            f"{anchor(one.key)}{code(one.key)}",
            one.bounds,
            code(one.default),
            one.description + (f"<br>Flink: {codes(one.aliases, between='<br>')}" if one.aliases else ""),
        )
        for one in declared_settings()
        if one.key.split(".")[0] in SETTINGS_GROUPS[group]
    ]
    return table(("Setting", "Values", "Default", "Meaning"), rows)


def variables_table(group: type[SettingsGroup]) -> str:
    """Returns the table of the environment variables of a group."""
    prefix = str(group.model_config.get("env_prefix", ""))
    rows = []
    for name, field in group.model_fields.items():
        variable = f"{prefix}{name.upper()}"
        rows.append((f"{anchor(variable)}{code(variable)}", _default(field), _bounds(field), field.description or ""))
    return table(("Variable", "Default", "Values", "Meaning"), rows)


def spark_properties_table() -> str:
    """Returns the table of the Spark properties that an operator cannot set."""
    reasons: dict[str, list[str]] = {}
    for key, reason in FIXED.items():
        reasons.setdefault(reason, []).append(f"{key}*" if key.endswith(".") else key)
    return table(("Properties", "Why"), [(codes(keys), sentence(reason)) for reason, keys in reasons.items()])


def limits_table() -> str:
    """Returns the table of the limits of a query."""
    rows = [(code(limit.name), f"{limit.most:,}", limit.counted, limit.remedy) for limit in LIMITS]
    return table(("Limit", "At most", "Of", "What to do"), rows)


def other_limits_table() -> str:
    """Returns the table of the limits of tables, files and bodies."""
    rows = [
        ("Tables of a job", f"{MAX_TABLES}"),
        ("Files of a table", f"{MAX_FILES:,}, in directories of at most {MAX_DEPTH} levels"),
        ("Columns of a Parquet file or a schema", f"{MAX_COLUMNS:,}"),
        ("Footer of a Parquet file", f"{MAX_FOOTER >> 20} MB"),
        ("Characters of a schema", f"{MAX_SCHEMA_LENGTH:,}"),
        ("Characters of a regular expression", f"{MAX_LENGTH:,}"),
        ("Characters that lpad and rpad return", f"{MAX_PADDED_LENGTH:,}"),
        ("Characters of a name", f"{MAX_NAME_LENGTH}"),
        ("Keys of a profile, and columns of a key", f"{MAX_KEYS} and {MAX_KEY_COLUMNS}"),
        ("Levels of arrays and objects in a body", f"{MAX_NESTING}"),
        ("Rows of a posted batch", f"{MAX_ROWS:,}"),
        ("Values of a posted batch (rows times columns of the stream)", f"{MAX_CELLS:,}"),
    ]
    return table(("What", "At most"), rows)


def metrics_table(metrics: tuple[DeclaredMetric, ...]) -> str:
    """Returns a table of Prometheus metrics."""
    rows = [(code(one.name), one.type.value, codes(one.labels), one.meaning) for one in metrics]
    return table(("Metric", "Type", "Labels", "Meaning"), rows)


def events_table(level: str) -> str:
    """Returns the table of the log events of a level."""
    return table(
        ("Event", "Written by", "Meaning"), [_event_row(event) for event in LOG_EVENTS if event.level == level]
    )


def _event_row(event: LogEvent) -> tuple[str, str, str]:
    process = "API and worker" if event.process == "both" else event.process
    return f"{anchor(event.name)}{code(event.name)}", process, event.meaning


def _default(field: FieldInfo) -> str:
    default = field.default
    if default is PydanticUndefined or default is None or default == "":
        return ""
    return code(str(default).lower() if isinstance(default, bool) else default)


def _bounds(field: FieldInfo) -> str:
    return ", ".join(_limits(field))


def _limits(field: FieldInfo) -> Iterator[str]:
    choices = getattr(field.annotation, "__args__", ())
    if choices and all(isinstance(choice, str) for choice in choices):
        yield codes(choices)
    if field.annotation is bool:
        yield codes(("true", "false"))
    limits = {
        name: value
        for item in field.metadata
        for name in ("ge", "gt", "le", "lt")
        if (value := getattr(item, name, None)) is not None
    }
    if "ge" in limits and "le" in limits:
        yield f"{limits['ge']:,} to {limits['le']:,}"
        return
    for name, sign in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than")):
        if name in limits:
            yield f"{sign} {limits[name]:,}"


TABLES: dict[str, Callable[[], str]] = {
    **{f"settings of {group}": partial(settings_table, group) for group in SETTINGS_GROUPS},
    **{f"variables of the {name}": partial(variables_table, group) for name, group in VARIABLES.items()},
    "refused Spark properties": spark_properties_table,
    "limits": limits_table,
    "other limits": other_limits_table,
    "metrics of the API": partial(metrics_table, API_METRICS),
    "metrics of a worker": partial(metrics_table, WORKER_METRICS),
    **{f"log events of level {level}": partial(events_table, level) for level in LEVELS},
}
"""The tables of this module, by name."""
