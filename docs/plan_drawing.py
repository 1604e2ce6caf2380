"""Draws a plan as an SVG file: a box for each operation, inputs below the box that reads them, and arrows upwards.

The drawing is narrow, so that it is readable on a phone. Operations with one input are one below the other; the inputs
of a join or a union are indented. Each box has its own background, so that the text is readable on any page; it has
dark colours for browsers that ask for them.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Container, Iterator
from html import escape

from workers.engine.plan.explain import call_texts, detail_of, line_of
from workers.engine.plan.nodes import Aggregate, Join, Node, inputs_of

WIDTH = 340
"""Pixels: the text column of a phone that is 390 pixels wide."""

_INDENT, _GAP, _PADDING, _LINE = 24, 20, 8, 16
_CHARACTER = 6.7
"""The width in pixels of a character in the monospaced font of 11 pixels, rounded up."""

_PHASES = re.compile(r"(?:(?:PARTIAL|FINAL|ONE_PHASE|TWO_PHASE) )*")

STYLE = """
text { font: 11px ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; fill: #1b1f2d; white-space: pre; }
.title { font: bold 12px system-ui, "DejaVu Sans", Helvetica, Arial, sans-serif; }
.box { fill: #f3f4f8; stroke: #7c839c; }
.changed { fill: #dfe8ff; stroke: #3949ab; stroke-width: 2; }
.replaced { fill: #fff1dc; stroke: #a85b00; stroke-width: 1.5; stroke-dasharray: 5 3; }
.line { fill: none; stroke: #7c839c; stroke-width: 1.5; }
.head { fill: #7c839c; }
@media (prefers-color-scheme: dark) {
  text { fill: #e8eaf2; }
  .box { fill: #2b2f3d; stroke: #8b93ad; }
  .changed { fill: #26366b; stroke: #9fb0ff; }
  .replaced { fill: #4a3513; stroke: #ffb55c; }
}
"""


def svg_of(plan: Node, title: str, highlighted: Container[str], style: str) -> str:
    """Returns the drawing of `plan` as an SVG document that ends with a line break.

    `highlighted` has the lines (`line_of`) of the nodes whose boxes get the class `style`, `changed` or `replaced`.
    """
    drawing = _Drawing(highlighted, style)
    height = drawing.draw(plan, 1, 1) + 1
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" role="img">',
            f"<title>{escape(title, quote=False)}</title>",
            f"<style>{STYLE}</style>",
            *drawing.elements,
            "</svg>\n",
        )
    )


class _Drawing:
    """The elements of a drawing. Positions are pixels from the upper left corner."""

    def __init__(self, highlighted: Container[str], style: str) -> None:
        self.elements: list[str] = []
        self._highlighted, self._style = highlighted, style

    def draw(self, node: Node, x: int, y: int) -> int:
        """Draws the box of `node` at this position, and everything below it; returns the bottom of the last box."""
        bottom = self._box(node, x, y)
        inputs = inputs_of(node)
        if len(inputs) == 1:
            below = bottom + _GAP
            self._arrow(f"M{x + 14} {below} V{bottom + 6}", x + 14, bottom)
            return self.draw(inputs[0], x, below)
        end = bottom
        for number, child in enumerate(inputs):
            top = end + (_GAP if number == 0 else 10)
            end = self.draw(child, x + _INDENT, top)
            self._arrow(f"M{x + _INDENT} {top + 14} H{x + 10} V{bottom + 6}", x + 10, bottom)
        return end

    def _box(self, node: Node, x: int, y: int) -> int:
        title, lines = _texts(node, int((WIDTH - 2 - x - 2 * _PADDING) / _CHARACTER))
        height = _LINE * (1 + len(lines)) + _PADDING
        is_highlighted = line_of(node) in self._highlighted
        self.elements.append(
            f'<rect class="{self._style if is_highlighted else "box"}" x="{x}" y="{y}" width="{WIDTH - 1 - x}" '
            f'height="{height}" rx="4"/>'
        )
        for number, text in enumerate((title, *lines)):
            kind = ' class="title"' if number == 0 else ""
            place = f'x="{x + _PADDING}" y="{y + _LINE * (number + 1)}"'
            self.elements.append(f"<text{kind} {place}>{escape(text, quote=False)}</text>")
        return y + height

    def _arrow(self, path: str, x: int, y: int) -> None:
        """Draws a line that ends with a head at (`x`, `y`), upwards."""
        self.elements.append(f'<path class="line" d="{path}"/>')
        self.elements.append(f'<path class="head" d="M{x} {y + 1} l-4 7 h8 z"/>')


def _texts(node: Node, characters: int) -> tuple[str, list[str]]:
    """Returns the title of a box and its lines of at most so many characters."""
    title, details = type(node).__name__, [detail_of(node)]
    if isinstance(node, Aggregate):
        phases = _PHASES.match(details[0])
        how = "" if phases is None else phases.group()
        title = f"{title} {how}".rstrip()
        keys = details[0].removeprefix(how).partition("[")[0].strip()
        details = [keys, *call_texts(node)]
    elif isinstance(node, Join):
        how, _, condition = details[0].partition(" ON ")
        kind, _, strategy = how.partition(" ")
        title, details = f"{title} {kind}", [strategy, f"ON {condition}" if condition else ""]
    return title, [line for detail in details for line in _wrapped(detail, characters)]


def _wrapped(text: str, characters: int) -> Iterator[str]:
    return iter(textwrap.wrap(text, characters, subsequent_indent="  ", break_on_hyphens=False))
