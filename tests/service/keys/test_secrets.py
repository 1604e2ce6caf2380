"""Keys: what they look like, what is stored, what is none."""

from __future__ import annotations

import pytest

from service.keys.secrets import Secret, make_secret, read_secret


def test_a_key_is_read_as_it_was_made() -> None:
    made = make_secret()
    read = read_secret(made.text)
    assert read == made
    assert read.is_of(made.sha256)


def test_no_two_keys_are_alike() -> None:
    assert len({make_secret().text for _ in range(100)}) == 100


def test_what_is_stored_opens_nothing_else() -> None:
    one, other = make_secret(), make_secret()
    assert not Secret(one.id, other.secret).is_of(one.sha256)
    assert one.secret not in one.sha256


def test_a_secret_is_not_shown_by_accident() -> None:
    made = make_secret()
    assert made.secret not in f"{made!r} {made}"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ek_",
        "ek_short_secret",
        f"EK_{'a' * 16}_{'b' * 43}",
        f"ek_{'a' * 16}_{'b' * 42}",
        f"ek_{'a' * 16}_{'b' * 44}",
        f"ek_{'A' * 16}_{'b' * 43}",
        f"ek_{'a' * 16}_{'b' * 42}é",
        f"ek_{'a' * 16}_{'b' * 43}\n",
        f" ek_{'a' * 16}_{'b' * 43}",
        "ek_" + "a" * 1_000_000,
    ],
)
def test_anything_else_is_no_key(text: str) -> None:
    assert read_secret(text) is None
