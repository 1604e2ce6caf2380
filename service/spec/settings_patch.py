"""Changed settings of a job that is there: a merge patch (RFC 7396), in every spelling that the settings have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from service.spec.model import Frozen
from service.spec.options import JobSettings, canonical_settings

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
