"""Checks that docstrings and comments of the product name only files and modules that exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.lint.layout import comments_of
from tests.lint.sources import PACKAGES, product_files

_FILE = re.compile(r"(?<![\w/.-])(?:[\w-]+/)*[a-z_]\w*\.py\b")
_NAME = re.compile(rf"(?<![\w/.-])(?:{'|'.join(PACKAGES)})(?:\.\w+)+")


def check(root: Path) -> Iterator[str]:
    """Yields a sentence for every file or module that does not exist. The path of a file may omit its first folders."""
    modules = product_files(root)
    known = {"/".join(path.parts[start:]) for path in modules for start in range(len(path.parts))}
    for path in modules:
        source = (root / path).read_text(encoding="utf-8")
        for text in (*_docstrings_of(source), *comments_of(source)):
            for file in _FILE.findall(text):
                if file not in known and not (root / file).exists():
                    yield f"{path}: there is no file {file}."
            for name in _NAME.findall(text):
                if not name.endswith(".py") and not _exists(root, name):
                    yield f"{path}: there is no {name}."


def _docstrings_of(source: str) -> Iterator[str]:
    """Yields all strings that are statements: docstrings of modules, classes, functions and attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.value.value


def _exists(root: Path, name: str) -> bool:
    """Returns whether a package or module exists, and the first name after that in its source."""
    place = root
    for part in name.split("."):
        if (place / part).is_dir():
            place /= part
        elif (place / f"{part}.py").exists():
            place /= f"{part}.py"
        else:
            module = place / "__init__.py" if place.is_dir() else place
            return module.exists() and part in _names_in(module)
    return True


def _names_in(module: Path) -> set[str]:
    """Returns the names of a module's functions, classes and variables."""
    nodes = list(ast.walk(ast.parse(module.read_text(encoding="utf-8"))))
    defined = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    return defined | {node.id for node in nodes if isinstance(node, ast.Name)}
