"""Merge patches of settings: spellings, null for the default, and settings of the state."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from service.contract.options import (
    STATE_SETTINGS,
    Difference,
    JobSettings,
    SettingsPatch,
    declared_settings,
    patched,
    state_differences,
)

OLD = JobSettings.model_validate({"mini_batch": {"size": 7}, "state": {"partitions": 8}})


def read(patch: Any) -> dict[str, Any]:
    found: dict[str, Any] = TypeAdapter(SettingsPatch).validate_python(patch)
    return found


@pytest.mark.parametrize(
    "patch",
    [{"mini_batch": {"size": 9}}, {"mini_batch.size": 9}, {"table.exec.mini-batch.size": "9"}],
)
def test_every_spelling_changes_one_setting(patch: dict[str, Any]) -> None:
    new = patched(OLD, read(patch))
    assert new == JobSettings.model_validate({"mini_batch": {"size": 9}, "state": {"partitions": 8}})


@pytest.mark.parametrize("patch", [{"mini_batch": {"size": None}}, {"mini_batch.size": None}, {"mini_batch": None}])
def test_null_resets_a_setting(patch: dict[str, Any]) -> None:
    assert patched(OLD, read(patch)) == JobSettings.model_validate({"state": {"partitions": 8}})


def test_an_empty_patch_changes_nothing() -> None:
    assert patched(OLD, read({})) == OLD


def test_settings_of_the_state_are_declared() -> None:
    assert set(STATE_SETTINGS) <= {setting.key for setting in declared_settings()}
    new = patched(OLD, read({"state": None, "distinct_method": "bitmap", "mini_batch.size": 1}))
    assert state_differences(OLD, new) == [
        Difference("distinct_method", "auto", "bitmap"),
        Difference("state.partitions", 8, None),
    ]
    assert state_differences(OLD, patched(OLD, read({"state.partitions": 8, "state.provider": None}))) == []


@pytest.mark.parametrize(
    ("patch", "code"),
    [
        ({"nosuch": None}, "unknown_setting"),
        ({"mini_batch": {"nosuch": None}}, "unknown_setting"),
        ({"state": {"provider": "disk"}}, "enum"),
        ({"mini_batch.size": 1, "mini_batch": {"size": 2}}, "contradicting_settings"),
        ("state.provider", "dict_type"),
    ],
)
def test_refused(patch: Any, code: str) -> None:
    with pytest.raises(ValidationError) as caught:
        read(patch)
    assert [error["type"] for error in caught.value.errors()] == [code]
