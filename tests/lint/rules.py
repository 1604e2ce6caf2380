"""Checks that every rule of the optimizer has the same name everywhere, and a docstring that is a contract."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from service.contract.options import declared_settings
from workers.engine.rules.rule import Rule
from workers.engine.rules.rulebook import RULES

RULES_FOLDER = Path("workers/engine/rules")
SECTIONS = ("Fires when:", "Does not fire when:", "Why the result is the same:", "Settings read:")
"""The sections of a contract, in order, after its first sentence and its example."""


def check(root: Path) -> Iterator[str]:
    """Yields a sentence for every rule that breaks the convention. `root` is the directory of the imported rules."""
    classes = {
        path.stem
        for path in (root / RULES_FOLDER).rglob("*.py")
        if path.stem != "rule"
        and re.search(r"^    def rewrite\(self, match: Match", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    for name in sorted(classes ^ {rule.name for rule in RULES}):
        yield f"{name}: it is a module below {RULES_FOLDER} or a rule of the rulebook, and must be both."
    lines = [line.strip() for line in (root / RULES_FOLDER / "rulebook.py").read_text(encoding="utf-8").splitlines()]
    for rule in RULES:
        yield from (f"{rule.name}: {violation}" for violation in (*_names(rule, root), *_contract(rule)))
        if not lines[lines.index(f"{type(rule).__name__}(),") - 1].startswith("# "):
            yield f"{rule.name}: the rulebook needs a comment above it that says why it is at this position."


def _names(rule: Rule[Any], root: Path) -> Iterator[str]:
    if type(rule).__module__.rpartition(".")[2] != rule.name:
        yield f"its module is {type(rule).__module__}."
    if type(rule).__name__ != "".join(word.capitalize() for word in rule.name.split("_")):
        yield f"its class is {type(rule).__name__}."
    folder = Path("tests", *type(rule).__module__.split(".")[:-1])
    if not (root / folder / f"test_{rule.name}.py").is_file():
        yield f"{folder}/test_{rule.name}.py is missing."
    if not list((root / "tests/golden" / rule.name).glob("*.yaml")):
        yield f"tests/golden/{rule.name} has no case."


def _contract(rule: Rule[Any]) -> Iterator[str]:
    contract = inspect.getdoc(type(rule)) or ""
    first, _, rest = contract.partition("\n\n")
    if not first.endswith(".") or ". " in first:
        yield "its docstring must begin with one sentence."
    if not rest.startswith(">>> "):
        yield "its docstring needs an example after the first sentence."
    places = [contract.find(section) for section in SECTIONS]
    if -1 in places or places != sorted(places):
        yield f"its docstring needs these sections in this order: {', '.join(SECTIONS)}"
    # Without the section, its missing is reported, and no setting counts as read.
    listed = contract.partition(SECTIONS[-1])[2]
    keys = set(re.findall(r"[a-z_]+(?:\.[a-z_]+)?", listed)) - {"none"}
    for key in sorted(keys - {one.key for one in declared_settings()}):
        yield f"it names a setting that is not declared: {key}."
    yield from _settings(inspect.getsource(importlib.import_module(type(rule).__module__)), keys)


def _settings(source: str, keys: set[str]) -> Iterator[str]:
    """Yields the settings that only the contract names, or only the code reads."""
    for key in sorted(keys):
        # A rule may pass a whole group, such as skew.*, to a function.
        group = re.search(rf"settings\.{key.partition('.')[0]}\b(?!\.)", source)
        if f"settings.{key}" not in source and group is None:
            yield f"its contract names {key}, which it does not read."
    for used in sorted(set(re.findall(r"ctx\.settings\.([a-z_]+(?:\.[a-z_]+)?)", source))):
        if not any(key == used or key.startswith(used + ".") for key in keys):
            yield f"it reads {used}, which its contract does not name."
