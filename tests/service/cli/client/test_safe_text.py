"""What others wrote is shown, and commands no terminal."""

from __future__ import annotations

import json

import pytest

from service.cli.client.safe_text import safe_json, safe_line, safe_text, shortened

HOSTILE = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202egpj.exe\u2028\r\x08"


@pytest.mark.withstands(
    "names that command the terminal",
    how="names and messages with escape sequences, C1 controls and marks that turn the direction of writing",
    times=1,
    guaranteed="they are shown as `\\x1b` and the like, also in JSON",
    kind="attack",
)
def test_nothing_that_a_terminal_obeys_is_left() -> None:
    for told in (safe_line(HOSTILE), safe_text(HOSTILE)):
        assert told.isprintable()
        assert "owned" in told
    assert safe_line("a\nb\tc") == r"a\x0ab\x09c"
    assert safe_text("a\n\tb") == "a\n    b"


def test_json_means_the_same() -> None:
    told = safe_json(json.dumps({"name": HOSTILE}, ensure_ascii=False))
    assert told.isprintable()
    assert json.loads(told) == {"name": HOSTILE}


def test_letters_of_all_languages_stay() -> None:
    assert safe_line("Größe 大きさ 😀") == "Größe 大きさ 😀"


def test_what_is_long_is_cut() -> None:
    assert shortened("abcdef", 4) == "abc…"
    assert shortened("abcd", 4) == "abcd"
