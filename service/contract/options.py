"""The engine's settings of a job, their values, and merge patches (RFC 7396) that change them.

Each setting is declared once. The declaration validates input, and is in openapi.yaml and in the documentation.

A setting is written nested (`{"distinct_split": {"enabled": true}}`), under its dotted key
(`"distinct_split.enabled": true`), or under Flink's old or new key; patches accept the same forms. An unknown key is
refused with the most similar known ones, and so is a setting that is given twice with different values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, Self

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from .model import (
    Bounds,
    ByteSize,
    Duration,
    Flag,
    Frozen,
    Whole,
    format_bytes,
    format_duration,
    refuse_boolean,
)
from .problems import did_you_mean, nearest_names

_BARE_NUMBER = re.compile(r"\s*[0-9]+\s*")

STATE_SETTINGS = (
    "distinct_method",
    "distinct_split.enabled",
    "distinct_split.bucket_num",
    "state.provider",
    "state.partitions",
)
"""The settings that determine the layout of a stream's state: they cannot change while there is state."""

MERGE_PATCH = "application/merge-patch+json"
"""The media type of RFC 7396 for a merge patch; `application/json` is accepted too."""

PATCH_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "SettingsPatch",
    # Otherwise client generators create a type without any fields.
    "additionalProperties": True,
    "description": "Settings to change, nested or with dotted keys; null resets a setting to its default.",
    "examples": [{"mini_batch": {"allow_latency": "2s"}, "agg_phase": None}],
}


class _Choice(StrEnum):
    """Values of a setting, which are accepted in any letter case."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


class Toggle(_Choice):
    """Whether a rewrite is applied: decided by cost (`auto`), always where possible (`true`), or never (`false`)."""

    AUTO = "auto"
    TRUE = "true"
    FALSE = "false"

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return super()._missing_(str(value) if isinstance(value, bool) else value)


class AggPhase(_Choice):
    """The number of phases of an aggregate. Flink's older NONE is read as AUTO."""

    AUTO = "AUTO"
    ONE_PHASE = "ONE_PHASE"
    TWO_PHASE = "TWO_PHASE"

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return super()._missing_("AUTO" if str(value).upper() == "NONE" else value)


class DistinctMethod(_Choice):
    """How the values of DISTINCT are deduplicated.

    `auto` decides by cost; `native` is Spark's own plan; `split` uses buckets of the values' hash; `bitmap` uses
    bitmaps; `branches` joins a branch for each set of values.
    """

    AUTO = "auto"
    NATIVE = "native"
    SPLIT = "split"
    BITMAP = "bitmap"
    BRANCHES = "branches"


class JoinShip(_Choice):
    """The ship strategy of a join: both sides repartitioned by the key, or one side broadcast to every task."""

    AUTO = "AUTO"
    REPARTITION = "REPARTITION"
    BROADCAST_LEFT = "BROADCAST_LEFT"
    BROADCAST_RIGHT = "BROADCAST_RIGHT"


class JoinLocal(_Choice):
    """The local strategy of a join: a task sorts and merges both sides, or builds a hash table of one side."""

    AUTO = "AUTO"
    SORT_MERGE = "SORT_MERGE"
    HASH_LEFT = "HASH_LEFT"
    HASH_RIGHT = "HASH_RIGHT"


class JoinSkew(_Choice):
    """How hot keys of a join are handled: decided by cost, not at all, joined separately, or by salting the key.

    Flink's FORCED is read as ISOLATE.
    """

    AUTO = "AUTO"
    NONE = "NONE"
    ISOLATE = "ISOLATE"
    SALT = "SALT"

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        return super()._missing_("ISOLATE" if str(value).upper() == "FORCED" else value)


def _aliases(*keys: str) -> dict[str, Any]:
    return {"x-aliases": list(keys)}


class _OrBoolean:
    """Adds JSON's true and false to the schema of a setting."""

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """See pydantic."""
        return {"anyOf": [handler(schema), {"type": "boolean"}]}


_Toggle = Annotated[Toggle, _OrBoolean()]


class MiniBatchSettings(Frozen):
    """How rows of a stream are collected before the state is updated. Not applicable to batch jobs."""

    enabled: _Toggle = Field(
        default=Toggle.AUTO,
        description="Collect rows into mini-batches before aggregating them. Streaming modes only.",
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
        description="Number of rows that completes a mini-batch; two million by default.",
        json_schema_extra=_aliases("table.exec.mini-batch.size", "sql.exec.mini-batch.size"),
    )

    _size_is_not_boolean = field_validator("size", mode="before")(refuse_boolean)


class DistinctSplitSettings(Frozen):
    """Splitting a distinct aggregate into buckets of its distinct values."""

    enabled: _Toggle = Field(
        default=Toggle.AUTO,
        description="Aggregate distinct values per bucket, and count equal values of PERCENTILE, first. "
        "`auto` does so where Spark would process a hot key in one task.",
        json_schema_extra=_aliases(
            "table.optimizer.distinct-agg.split.enabled", "sql.optimizer.data-skew.distinct-agg"
        ),
    )
    bucket_num: Whole = Field(
        default=1024,
        ge=1,
        le=65536,
        description="Buckets per group; a hot key is distributed over at most this many tasks.",
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
        description="A key is hot only when the estimated size of its rows is at least this many bytes.",
        json_schema_extra={
            **_aliases("table.optimizer.skewed-join-optimization.skewed-threshold"),
            "default": "64MB",
        },
    )


class JoinSettings(Frozen):
    """How the joins of a query run. A hint, or a field of `query.joins`, overrides a setting for one join."""

    ship: JoinShip = Field(
        default=JoinShip.AUTO,
        description="Repartition both sides by the key (`REPARTITION`), or broadcast one side to every task.",
    )
    local: JoinLocal = Field(
        default=JoinLocal.AUTO,
        description="Sort and merge both sides in a task, or build a hash table of one side. With `join.ship`, "
        "REPARTITION allows all three, BROADCAST_LEFT only HASH_LEFT, and BROADCAST_RIGHT only HASH_RIGHT.",
    )
    skew: JoinSkew = Field(
        default=JoinSkew.AUTO,
        description="Join hot keys separately from the others (`ISOLATE`), salt the key (`SALT`), neither (`NONE`), or "
        "decide by cost (`AUTO`).",
        json_schema_extra=_aliases("table.optimizer.skewed-join-optimization.strategy", "skew.join_strategy"),
    )


class Isolation(_Choice):
    """Which Spark driver runs a batch job."""

    SHARED = "shared"
    DRIVER = "driver"


class StateProvider(StrEnum):
    """The state store that a running stream uses."""

    ROCKSDB = "rocksdb"
    MEMORY = "memory"


class StateSettings(Frozen):
    """How a stream stores its state. Not applicable to batch jobs."""

    provider: StateProvider = Field(
        default=StateProvider.ROCKSDB,
        description="Keep state in RocksDB, where it may be larger than memory, or in the memory of the worker. "
        "Streaming modes only.",
    )
    partitions: int | None = Field(
        default=None,
        ge=1,
        le=4096,
        description="Partitions of the state; each has its own task. By default, the number of tasks that "
        "the worker runs at once. It changes only when the job starts from scratch.",
    )

    limit: ByteSize | None = Field(
        default=None,
        description="Limit of the state's disk space. A job whose state takes more is STOPPED before its next "
        "mini-batch; resume it with a larger limit.",
    )

    _partitions_are_not_boolean = field_validator("partitions", mode="before")(refuse_boolean)


class OptimizerSettings(Frozen):
    """How far a plan is optimized."""

    timeout: Annotated[Duration, Bounds(timedelta(milliseconds=1), timedelta(hours=1))] = Field(
        default=timedelta(seconds=10),
        description="Time limit for rewriting the plan. Then the remaining rules are skipped with that reason, and the "
        "job runs with the plan so far.",
        json_schema_extra={"default": "10s"},
    )
    join_reorder: _Toggle = Field(
        default=Toggle.AUTO,
        description="Change the order of inner joins; `true`: also if that gains little.",
        json_schema_extra=_aliases("table.optimizer.join-reorder-enabled"),
    )


class JobSettings(Frozen):
    """How a job is optimized. The defaults suit most jobs."""

    agg_phase: AggPhase = Field(
        default=AggPhase.AUTO,
        description="Aggregate locally before the shuffle (`TWO_PHASE`), only after it (`ONE_PHASE`), "
        "or decide by the estimated reduction of rows (`AUTO`).",
        json_schema_extra=_aliases("table.optimizer.agg-phase-strategy", "sql.optimizer.agg.phase.enforcer"),
    )
    distinct_method: DistinctMethod = Field(
        default=DistinctMethod.AUTO,
        description="How the values of DISTINCT are deduplicated; `auto` chooses the applicable method of least cost.",
    )
    distinct_split: DistinctSplitSettings = DistinctSplitSettings()
    incremental_agg: Flag = Field(
        default=True,
        description="Merge the middle two of the four phases of a split distinct aggregate into one.",
        json_schema_extra=_aliases("table.optimizer.incremental-agg-enabled", "sql.exec.incremental-agg.enabled"),
    )
    eager_aggregation: _Toggle = Field(
        default=Toggle.AUTO,
        description="Aggregate below joins, on one side or both, where the result is the same.",
    )
    isolation: Isolation = Field(
        default=Isolation.SHARED,
        description="`driver`: in a Spark driver of its own, so that it cannot harm other jobs. Batch jobs only.",
    )
    join: JoinSettings = JoinSettings()
    mini_batch: MiniBatchSettings = MiniBatchSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    skew: SkewSettings = SkewSettings()
    skewed_windows: _Toggle = Field(
        default=Toggle.AUTO,
        description="Compute calls with OVER of hot partitions in several tasks.",
    )
    state: StateSettings = StateSettings()

    @model_validator(mode="before")
    @classmethod
    def _accept_every_spelling(cls, value: Any) -> Any:
        return canonical_settings(value) if isinstance(value, Mapping) else value


_GROUPS = frozenset(
    name
    for name, field in JobSettings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Frozen)
)


@dataclass(frozen=True)
class SettingDeclaration:
    """One setting, as a row of the documentation's table of settings."""

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


_INSTEAD_OF_SPARKS = {
    "spark.sql.shuffle.partitions": "A batch job needs none: Spark chooses the partitions. A stream has "
    "state.partitions.",
    "spark.sql.autobroadcastjointhreshold": "Set join.ship to choose which side of a join is broadcast.",
    "spark.sql.join.prefersortmergejoin": "Set join.local to choose how a join is computed.",
    "spark.sql.adaptive.skewjoin.enabled": "Set join.skew to choose how hot keys are joined.",
}
"""By name of a setting of Spark, in lower case: the setting of a job that has this purpose."""


def _is_of_spark(spelling: str) -> bool:
    return spelling.casefold().startswith("spark.")


def _hint_for_spark(spelling: str) -> str:
    instead = _INSTEAD_OF_SPARKS.get(spelling.casefold())
    whose = " Spark's own settings belong to the service operator (EVENKEEL_SPARK_PROPERTIES_FILE)."
    return whose if instead is None else f"{whose} {instead}"


def canonical_settings(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns settings in any accepted form as one nested mapping of canonical names.

    Raises PydanticCustomError `unknown_setting` or `contradicting_settings`, which validation turns into a problem.
    """
    canonical_of = {alias: key for key, field in _leaves(JobSettings) for alias in _aliases_of(field)}
    known = [key for key, _ in _leaves(JobSettings)]
    groups = {key.split(".")[0] for key in known if "." in key}
    given: dict[str, tuple[str, Any]] = {}

    def add(spelling: str, value: Any) -> None:
        key = canonical_of.get(spelling, spelling)
        if spelling.endswith(".ms") and _BARE_NUMBER.fullmatch(str(value)):
            value = f"{value}ms"
        if key not in known:
            suggestions = () if _is_of_spark(spelling) else nearest_names(spelling, [*known, *canonical_of])
            hint = _hint_for_spark(spelling) if _is_of_spark(spelling) else did_you_mean(suggestions)
            raise PydanticCustomError(
                "unknown_setting",
                "There is no setting '{setting}'.{hint}",
                {"setting": spelling, "hint": hint, "suggestions": list(suggestions)},
            )
        if key in given and _read(key, given[key][1]) != _read(key, value):
            raise PydanticCustomError(
                "contradicting_settings",
                "'{one}' and '{other}' set the same setting to different values: remove one of them.",
                {"one": given[key][0], "other": spelling},
            )
        given[key] = (spelling, value)

    for spelling, value in raw.items():
        if spelling in groups and isinstance(value, Frozen):
            for name, inner in value:
                add(f"{spelling}.{name}", inner)
        elif spelling in groups and isinstance(value, Mapping):
            for name, inner in value.items():
                add(f"{spelling}.{name}", inner)
        else:
            add(str(spelling), value)

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
    """Returns settings with only this one set, so that `"5000"` equals 5000; the value itself if it is not valid."""
    try:
        return JobSettings.model_validate(_nested({key: value}))
    except ValidationError:
        return value


def declared_settings() -> list[SettingDeclaration]:
    """Returns every setting in order of declaration, for the documentation and the tests."""
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


class Difference(NamedTuple):
    """A setting whose value changes, with both values as in JSON."""

    setting: str
    old: Any
    new: Any


def _read_patch(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise PydanticCustomError("dict_type", "Give the settings to change as an object.")
    reset_groups = {name: None for name in _GROUPS if name in value and value[name] is None}
    others = canonical_settings({name: part for name, part in value.items() if name not in reset_groups})
    JobSettings.model_validate(_without_nulls(others))
    return {**others, **reset_groups}


SettingsPatch = Annotated[dict[str, Any], BeforeValidator(_read_patch), WithJsonSchema(PATCH_SCHEMA)]
"""Validated: canonical names, nested; None for a setting that is reset to its default."""


def patched(settings: JobSettings, patch: Mapping[str, Any]) -> JobSettings:
    """Returns `settings` with the changes of a `SettingsPatch` applied."""
    return JobSettings.model_validate(_merged(settings.model_dump(mode="json"), patch))


def state_differences(old: JobSettings, new: JobSettings) -> list[Difference]:
    """Returns the settings of `STATE_SETTINGS` that differ."""
    found = []
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    for key in STATE_SETTINGS:
        one, other = _value(before, key), _value(after, key)
        if one != other:
            found.append(Difference(key, one, other))
    return found


def _without_nulls(patch: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(value) if isinstance(value, Mapping) else value
        for name, value in patch.items()
        if value is not None
    }


def _merged(target: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(target)
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, Mapping):
            merged[name] = _merged(merged.get(name, {}), value)
        else:
            merged[name] = value
    return merged


def _value(settings: Mapping[str, Any], key: str) -> Any:
    value: Any = settings
    for part in key.split("."):
        value = value[part]
    return value
