"""How a query may be told to run: the values of the engine's settings, hints and per-join fields.

The engine's settings: one declaration each, which validates input and documents itself in openapi.yaml and README.

A setting is written nested (`{"distinct_split": {"enabled": true}}`) or under its dotted key
(`"distinct_split.enabled": true`), or under Flink's key of either generation. Unknown keys are refused with the nearest
known ones; the same setting given twice with different values is refused.

Changed settings of a job that is there: a merge patch (RFC 7396), in every spelling that the settings have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, NamedTuple

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

from service.contract.model import (
    Bounds,
    ByteSize,
    Duration,
    Flag,
    Frozen,
    Whole,
    format_bytes,
    format_duration,
    refuse_flag,
)
from service.contract.problems import did_you_mean, nearest_names


class Toggle(StrEnum):
    """A rewrite that is decided by cost (`auto`), forced (`true`) or forbidden (`false`)."""

    AUTO = "auto"
    TRUE = "true"
    FALSE = "false"

    @classmethod
    def _missing_(cls, value: object) -> Toggle | None:
        if isinstance(value, bool):
            return cls.TRUE if value else cls.FALSE
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


class AggPhase(StrEnum):
    """In how many phases an aggregate runs. Flink's older NONE is read as AUTO."""

    AUTO = "AUTO"
    ONE_PHASE = "ONE_PHASE"
    TWO_PHASE = "TWO_PHASE"

    @classmethod
    def _missing_(cls, value: object) -> AggPhase | None:
        if not isinstance(value, str):
            return None
        return cls.__members__.get("AUTO" if value.upper() == "NONE" else value.upper())


class DistinctMethod(StrEnum):
    """How the values of DISTINCT are told apart: by cost, by Spark's own plan, per bucket of their hash, by bitmaps, or
    each set of values in a branch of its own, the branches joined on the group key.
    """

    AUTO = "auto"
    NATIVE = "native"
    SPLIT = "split"
    BITMAP = "bitmap"
    BRANCHES = "branches"

    @classmethod
    def _missing_(cls, value: object) -> DistinctMethod | None:
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


class JoinShip(StrEnum):
    """How the rows of a join's sides come together: both parted by the key, or one side sent whole to every task."""

    AUTO = "AUTO"
    REPARTITION = "REPARTITION"
    BROADCAST_LEFT = "BROADCAST_LEFT"
    BROADCAST_RIGHT = "BROADCAST_RIGHT"

    @classmethod
    def _missing_(cls, value: object) -> JoinShip | None:
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


class JoinLocal(StrEnum):
    """How a task joins its rows: both sides sorted and merged, or a hash table of one side."""

    AUTO = "AUTO"
    SORT_MERGE = "SORT_MERGE"
    HASH_LEFT = "HASH_LEFT"
    HASH_RIGHT = "HASH_RIGHT"

    @classmethod
    def _missing_(cls, value: object) -> JoinLocal | None:
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


class JoinSkew(StrEnum):
    """What is done about hot keys of a join: by cost, nothing, joining them apart from the rest, or salting the key.

    Flink's FORCED is read as ISOLATE.
    """

    AUTO = "AUTO"
    NONE = "NONE"
    ISOLATE = "ISOLATE"
    SALT = "SALT"

    @classmethod
    def _missing_(cls, value: object) -> JoinSkew | None:
        if not isinstance(value, str):
            return None
        return cls.__members__.get("ISOLATE" if value.upper() == "FORCED" else value.upper())


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


STATE_SETTINGS = (
    "distinct_method",
    "distinct_split.enabled",
    "distinct_split.bucket_num",
    "state.provider",
    "state.partitions",
)
"""What the state of a stream is laid out by: it cannot change under state that there is."""

MERGE_PATCH = "application/merge-patch+json"
"""What RFC 7396 calls such a patch; `application/json` does as well."""

_GROUPS = frozenset(
    name
    for name, field in JobSettings.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Frozen)
)


class Difference(NamedTuple):
    """A setting that is to change, with its values as JSON has them."""

    setting: str
    old: Any
    new: Any


def _read_patch(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise PydanticCustomError("dict_type", "Give the settings to change as an object.")
    whole = {name: None for name in _GROUPS if name in value and value[name] is None}
    parts = canonical_settings({name: part for name, part in value.items() if name not in whole})
    JobSettings.model_validate(_without_nulls(parts))
    return {**parts, **whole}


PATCH_SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "SettingsPatch",
    # Else generators of clients make a type of it that takes nothing.
    "additionalProperties": True,
    "description": "Settings to change, nested or under their keys; null gives a setting its default again.",
    "examples": [{"mini_batch": {"allow_latency": "2s"}, "agg_phase": None}],
}

SettingsPatch = Annotated[dict[str, Any], BeforeValidator(_read_patch), WithJsonSchema(PATCH_SCHEMA)]
"""Read: canonical names, nested; None for what is to be as by default."""


def patched(settings: JobSettings, patch: Mapping[str, Any]) -> JobSettings:
    """`settings` with what a `SettingsPatch` changes."""
    return JobSettings.model_validate(_merged(settings.model_dump(mode="json"), patch))


def state_differences(old: JobSettings, new: JobSettings) -> list[Difference]:
    """The settings that state depends on and that differ."""
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
