"""Generates the part of docs/explanation/rules.md that describes the rules, and its drawings, from their docstrings.

`python -m docs.rules` fails if the page or a drawing differs from them; with `--write` it updates them. The examples of
a docstring are run: the plans that they print are drawn.
"""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from pathlib import Path
from typing import Any

from docs.plan_drawing import svg_of
from service.contract import options, query
from service.sql.expressions import scalar
from service.sql.types import data_types
from workers.engine.plan import explain, expressions, nodes
from workers.engine.plan.explain import line_of, text_of
from workers.engine.plan.nodes import Node
from workers.engine.plan.traversal import walk_up
from workers.engine.rules import rule as rule_module
from workers.engine.rules import rulebook
from workers.engine.rules.rule import Match, Rule
from workers.engine.rules.rulebook import RULES
from workers.engine.statistics import model

ROOT = Path(__file__).parents[1]
PAGE = Path("docs/explanation/rules.md")
PICTURES = Path("docs/pictures/rules")
_BEGIN, _END = "<!-- rules -->", "<!-- end of rules -->"
_NAMES = (data_types, scalar, query, options, explain, rule_module, model, nodes, expressions)
"""The modules whose names the examples use, in addition to those of the rule's own module."""
_SECTIONS = ("Fires when:", "Does not fire when:", "Why the result is the same:", "Settings read:")


@dataclass(frozen=True)
class Example:
    """A plan before a rule and after it. `choice` is the alternative that the example chose."""

    before: Node
    after: Node
    choice: str


def examples_of(rule: Rule[Any]) -> tuple[Example, ...]:
    """Returns the plans of the examples in the rule's docstring. Raises ValueError if an example fails."""
    names: dict[str, Any] = {}
    for module in (*_NAMES, importlib.import_module(type(rule).__module__)):
        names.update(vars(module))
    found: list[Example] = []
    chosen: list[str] = []

    def match(node: Node, choice: str, reason: str) -> Match[Any]:
        chosen.append(choice)
        return Match(node, choice, reason)

    def record(plan: Node) -> str:
        if plan is not test.globs["before"]:
            found.append(Example(test.globs["before"], plan, chosen[-1]))
        return text_of(plan)

    test = doctest.DocTestFinder(recurse=False).find(type(rule), rule.name, globs=names)[0]
    test.globs.update(Match=match, text_of=record)
    if doctest.DocTestRunner(verbose=False).run(test, out=lambda _: None, clear_globs=False).failed:
        raise ValueError(f"an example of {rule.name} fails: run tests/architecture/test_rule_contracts.py")
    return tuple(found)


def pictures(rule: Rule[Any]) -> Iterator[tuple[str, str, str]]:
    """Yields the file name, the caption and the content of the drawings of a rule."""
    previous: Node | None = None
    for number, example in enumerate(examples_of(rule), start=1):
        before, after = ({line_of(node) for node in walk_up(plan)} for plan in (example.before, example.after))
        if example.before != previous:
            title = f"{rule.name}: plan before"
            content = svg_of(example.before, title, before - after, "replaced")
            yield f"{rule.name}-{number}-before.svg", "Before", content
        previous = example.before
        content = svg_of(example.after, f"{rule.name}: plan after, {example.choice}", after - before, "changed")
        yield f"{rule.name}-{number}-after.svg", f"After: {example.choice}", content


def section(rule: Rule[Any], number: int) -> str:
    """Returns the part of the page that describes a rule, in Markdown."""
    contract = inspect.getdoc(type(rule)) or ""
    positions = [contract.index(name) for name in _SECTIONS]
    sentence, _, rest = contract[: positions[0]].partition("\n\n")
    ends = (*positions[1:], len(contract))
    sections = [contract[start + len(name) : end] for name, start, end in zip(_SECTIONS, positions, ends, strict=True)]
    settings = re.findall(r"[a-z_]+(?:\.[a-z_]+)?", sections.pop())
    shown = ", ".join(f"`{key}`" for key in settings if key != "none") or "none"
    parts = [
        f"## {number}. `{rule.name}`",
        _filled(sentence),
        _filled(f"**Position:** {_position(rule)}"),
        _figures(rule),
        *(_filled(paragraph) for paragraph in rest.strip().split("\n\n") if not paragraph.startswith(">>> ")),
        *(_section(title, text) for title, text in zip(_SECTIONS[:-1], sections, strict=True)),
        _filled(f"**Settings read:** {shown}."),
    ]
    return "\n\n".join(parts)


def _position(rule: Rule[Any]) -> str:
    """Returns the comment of the rulebook above the rule."""
    lines = [line.strip() for line in inspect.getsource(rulebook).splitlines()]
    first = end = lines.index(f"{type(rule).__name__}(),")
    while lines[first - 1].startswith("# "):
        first -= 1
    return " ".join(line.removeprefix("# ") for line in lines[first:end])


def _figures(rule: Rule[Any]) -> str:
    figures = (
        f'<figure markdown="span">\n<figcaption>{caption}</figcaption>\n'
        f"![{_title_of(content)}](../pictures/rules/{name})\n</figure>"
        for name, caption, content in pictures(rule)
    )
    return "\n".join(('<div class="plans" markdown>', *figures, "</div>"))


def _title_of(svg: str) -> str:
    found = re.search(r"<title>(.*)</title>", svg)
    return unescape(found.group(1)) if found else ""


def _section(title: str, text: str) -> str:
    """Returns a section of a contract: its sentences, and lists of Markdown."""
    blocks: list[str] = []
    items = re.split(r"\n *- ", "\n" + textwrap.dedent(text).strip())
    for number, item in enumerate(items):
        if number == 0:
            blocks.append(_filled(f"**{title}** {item.strip()}".rstrip()))
            continue
        # The last words of an item may begin the next condition: `…; and`.
        blocks.append(textwrap.indent(_filled(item.strip()), "  ").replace("  ", "- ", 1))
    return blocks[0] + "\n\n" + "\n".join(blocks[1:]) if len(blocks) > 1 else blocks[0]


def _filled(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 118, break_long_words=False, break_on_hyphens=False)


def page_of(text: str) -> str:
    """Returns the page `text` with the current description of the rules."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{PAGE} needs the marks {_BEGIN} and {_END}")
    described = "\n\n".join(section(rule, number) for number, rule in enumerate(RULES, start=1))
    return f"{before}{begin}\n\n{described}\n\n{end}{after}"


def files(root: Path) -> dict[Path, str]:
    """Returns the generated files by path, relative to `root`, with their current content."""
    drawings = {PICTURES / name: content for rule in RULES for name, _, content in pictures(rule)}
    return {PAGE: page_of((root / PAGE).read_text(encoding="utf-8")), **drawings}


def outdated(root: Path) -> Iterator[Path]:
    """Yields the generated files below `root` that differ, and drawings of rules that are no longer generated."""
    current = files(root)
    for path, content in current.items():
        if not (root / path).exists() or (root / path).read_text(encoding="utf-8") != content:
            yield path
    for found in sorted((root / PICTURES).glob("*.svg")):
        if PICTURES / found.name not in current:
            yield PICTURES / found.name


def main(arguments: Sequence[str]) -> int:
    """Checks the generated files, or writes them with `--write`; returns the exit code."""
    changed = list(outdated(ROOT))
    if "--write" in arguments:
        current = files(ROOT)
        for path in changed:
            if path not in current:
                (ROOT / path).unlink()
                continue
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(current[path], encoding="utf-8")
        return 0
    for path in changed:
        sys.stderr.write(f"{path} is out of date. Run python -m docs.rules --write\n")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
