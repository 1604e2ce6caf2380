"""The engine's settings: one declaration each, which validates input and documents itself in openapi.yaml and README.

A setting is written nested (`{"distinct_split": {"enabled": true}}`) or under its dotted key
(`"distinct_split.enabled": true`), or under Flink's key of either generation. Unknown keys are refused with the nearest
known ones; the same setting given twice with different values is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from service.spec.errors import did_you_mean, nearest_names
from service.spec.model import Flag, Frozen, Whole, refuse_flag
from service.spec.quantities import Bounds, ByteSize, Duration, format_bytes, format_duration
from service.spec.strategies import AggPhase, DistinctMethod, JoinLocal, JoinShip, JoinSkew, Toggle

_BARE_NUMBER = re.compile(r"\s*[0-9]+\s*")


def _aliases(*keys: str) -> dict[str, Any]:
    return {"x-aliases": list(keys)}


class _OrBoolean:
    """Tells the specification that JSON's own true and false are taken too."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """See pydantic."""
        return {"anyOf": [handler(schema), {"type": "boolean"}]}


_Toggle = Annotated[Toggle, _OrBoolean()]


class MiniBatchSettings(Frozen):
    """How rows of a stream are gathered before state is touched. A batch job reports them as not applicable."""

    enabled: _Toggle = Field(
        default=Toggle.AUTO,
        description="Gather rows before aggregating them; concerns the streaming modes alone.",
        json_schema_extra=_aliases("table.exec.mini-batch.enabled"),
    )
    allow_latency: Annotated[Duration, Bounds(timedelta(milliseconds=1), timedelta(hours=1))] = Field(
        default=timedelta(seconds=5),
        description="How long a row may wait for its mini-batch.",
        json_schema_extra={
            **_aliases("table.exec.mini-batch.allow-latency", "sql.exec.mini-batch.allowLatency.ms"),
            "default": "5s",
        },
    )
    size: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="Rows after which a mini-batch is complete; two million by default.",
        json_schema_extra=_aliases("table.exec.mini-batch.size", "sql.exec.mini-batch.size"),
    )

    _size_is_no_flag = field_validator("size", mode="before")(refuse_flag)


class DistinctSplitSettings(Frozen):
    """Splitting a distinct aggregate into buckets of its distinct values."""

    enabled: _Toggle = Field(
        default=Toggle.AUTO,
        description="Aggregate distinct values per bucket first, then over the buckets. "
        "`auto` applies it where Spark's own plan would leave a hot key on one task.",
        json_schema_extra=_aliases(
            "table.optimizer.distinct-agg.split.enabled", "sql.optimizer.data-skew.distinct-agg"
        ),
    )
    bucket_num: Whole = Field(
        default=1024,
        ge=1,
        le=65536,
        description="Buckets per group; a hot key is spread over at most so many tasks.",
        json_schema_extra=_aliases(
            "table.optimizer.distinct-agg.split.bucket-num", "sql.optimizer.data-skew.distinct-agg.bucket"
        ),
    )


class SkewSettings(Frozen):
    """When a key or a task counts as skewed."""

    factor: float = Field(
        default=4.0,
        ge=1.0,
        le=1000.0,
        description="A task is skewed when it takes more than this many times the median of its stage.",
        json_schema_extra=_aliases("table.optimizer.skewed-join-optimization.skewed-factor"),
    )
    threshold: ByteSize = Field(
        default=64 << 20,
        description="A key is hot only when its rows are estimated to take at least this many bytes.",
        json_schema_extra={
            **_aliases("table.optimizer.skewed-join-optimization.skewed-threshold"),
            "default": "64MB",
        },
    )


class JoinSettings(Frozen):
    """How joins run, all of a query's that are not told otherwise one by one: by a hint, or in `query.joins`."""

    ship: JoinShip = Field(
        default=JoinShip.AUTO,
        description="Part both sides by the key (`REPARTITION`), or send one side whole to every task.",
    )
    local: JoinLocal = Field(
        default=JoinLocal.AUTO,
        description="Sort and merge both sides in a task, or build a hash table of one. Spark has five of the nine "
        "pairs with `join.ship`: a broadcast side is the hashed one.",
    )
    skew: JoinSkew = Field(
        default=JoinSkew.AUTO,
        description="Join hot keys apart from the rest (`ISOLATE`), salt the key (`SALT`), neither (`NONE`), or as "
        "the cost tells.",
        json_schema_extra=_aliases("table.optimizer.skewed-join-optimization.strategy", "skew.join_strategy"),
    )


class StateProvider(StrEnum):
    """Where the state of a stream lives while its job runs."""

    ROCKSDB = "rocksdb"
    MEMORY = "memory"


class StateSettings(Frozen):
    """How a stream keeps what it must remember. A batch job reports them as not applicable."""

    provider: StateProvider = Field(
        default=StateProvider.ROCKSDB,
        description="Keep state in RocksDB, beyond memory, or in the memory of the worker; "
        "concerns the streaming modes alone.",
    )
    partitions: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Parts of the state, each with a task of its own in every mini-batch; by default as many as the "
        "worker runs tasks at once. Kept until the job starts from scratch.",
    )

    _partitions_are_no_flag = field_validator("partitions", mode="before")(refuse_flag)


class OptimizerSettings(Frozen):
    """How long the rewrites of a plan may take."""

    timeout: Annotated[Duration, Bounds(timedelta(milliseconds=1), timedelta(hours=1))] = Field(
        default=timedelta(seconds=10),
        description="Time for rewriting the plan. After it, the remaining rules are skipped with that reason, and the "
        "job runs with the plan that it has.",
        json_schema_extra={"default": "10s"},
    )


class JobSettings(Frozen):
    """How a job is optimised. Every setting has a default that needs no thought."""

    agg_phase: AggPhase = Field(
        default=AggPhase.AUTO,
        description="Aggregate locally before the shuffle (`TWO_PHASE`), only after it (`ONE_PHASE`), "
        "or as the estimated reduction tells (`AUTO`).",
        json_schema_extra=_aliases("table.optimizer.agg-phase-strategy", "sql.optimizer.agg.phase.enforcer"),
    )
    distinct_method: DistinctMethod = Field(
        default=DistinctMethod.AUTO,
        description="How the values of DISTINCT are told apart; `auto` weighs the ways that apply.",
    )
    distinct_split: DistinctSplitSettings = DistinctSplitSettings()
    incremental_agg: Flag = Field(
        default=True,
        description="Merge the middle two of the four phases of a split distinct aggregate into one.",
        json_schema_extra=_aliases("table.optimizer.incremental-agg-enabled", "sql.exec.incremental-agg.enabled"),
    )
    eager_aggregation: _Toggle = Field(
        default=Toggle.AUTO,
        description="Aggregate below joins, one side or both, where the result is the same.",
    )
    join: JoinSettings = JoinSettings()
    mini_batch: MiniBatchSettings = MiniBatchSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    skew: SkewSettings = SkewSettings()
    state: StateSettings = StateSettings()

    @model_validator(mode="before")
    @classmethod
    def _accept_every_spelling(cls, value: Any) -> Any:
        return canonical_settings(value) if isinstance(value, Mapping) else value


@dataclass(frozen=True)
class SettingDeclaration:
    """One row of the table of settings."""

    key: str
    default: str
    bounds: str
    description: str
    aliases: tuple[str, ...]


def _leaves(model: type[Frozen], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Frozen):
            yield from _leaves(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


def _aliases_of(field: FieldInfo) -> tuple[str, ...]:
    extra = field.json_schema_extra
    return tuple(str(alias) for alias in extra.get("x-aliases", [])) if isinstance(extra, dict) else ()  # type: ignore[union-attr]


def canonical_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Every accepted spelling of the settings, as one nested mapping of canonical names.

    Raises PydanticCustomError `unknown_setting` or `contradicting_settings`, which validation turns into a problem.
    """
    canonical_of = {alias: key for key, field in _leaves(JobSettings) for alias in _aliases_of(field)}
    known = [key for key, _ in _leaves(JobSettings)]
    groups = {key.split(".")[0] for key in known if "." in key}
    given: dict[str, tuple[str, Any]] = {}

    def give(spelling: str, value: Any) -> None:
        key = canonical_of.get(spelling, spelling)
        if spelling.endswith(".ms") and _BARE_NUMBER.fullmatch(str(value)):
            value = f"{value}ms"
        if key not in known:
            suggestions = nearest_names(spelling, [*known, *canonical_of])
            raise PydanticCustomError(
                "unknown_setting",
                "There is no setting '{setting}'.{hint}",
                {"setting": spelling, "hint": did_you_mean(suggestions), "suggestions": list(suggestions)},
            )
        if key in given and _read(key, given[key][1]) != _read(key, value):
            raise PydanticCustomError(
                "contradicting_settings",
                "'{one}' and '{other}' set the same thing to different values: remove one of them.",
                {"one": given[key][0], "other": spelling},
            )
        given[key] = (spelling, value)

    for spelling, value in raw.items():
        if spelling in groups and isinstance(value, Frozen):
            for name, inner in value:
                give(f"{spelling}.{name}", inner)
        elif spelling in groups and isinstance(value, Mapping):
            for name, inner in value.items():
                give(f"{spelling}.{name}", inner)
        else:
            give(str(spelling), value)

    return _nested({key: value for key, (_, value) in given.items()})


def _nested(given: Mapping[str, Any]) -> dict[str, Any]:
    nested: dict[str, Any] = {}
    for key, value in given.items():
        target = nested
        *path, leaf = key.split(".")
        for part in path:
            target = target.setdefault(part, {})
        target[leaf] = value
    return nested


def _read(key: str, value: Any) -> Any:
    """The settings with this one alone, so that `"5000"` and 5000 are the same; the value itself where it is none."""
    try:
        return JobSettings.model_validate(_nested({key: value}))
    except ValidationError:
        return value


def declared_settings() -> list[SettingDeclaration]:
    """Every setting in order of declaration, as the README and the tests read them."""
    declarations = []
    for key, field in _leaves(JobSettings):
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, StrEnum):
            bounds = ", ".join(member.value for member in annotation)
        elif annotation is bool:
            bounds = "true, false"
        else:
            low = next((item.ge for item in field.metadata if hasattr(item, "ge")), None)
            high = next((item.le for item in field.metadata if hasattr(item, "le")), None)
            bounds = f"{_text(key, low)} to {_text(key, high)}" if low is not None else "a size such as 64MB"
        declarations.append(
            SettingDeclaration(key, _text(key, field.default), bounds, field.description or "", _aliases_of(field))
        )
    return declarations


def _text(key: str, value: Any) -> str:
    if isinstance(value, timedelta):
        return format_duration(value)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return format_bytes(value) if key == "skew.threshold" else str(value)


__all__ = [
    "AggPhase",
    "DistinctMethod",
    "DistinctSplitSettings",
    "Duration",
    "JobSettings",
    "JoinLocal",
    "JoinSettings",
    "JoinShip",
    "JoinSkew",
    "SettingDeclaration",
    "SkewSettings",
    "StateProvider",
    "StateSettings",
    "Toggle",
    "canonical_settings",
    "declared_settings",
]
