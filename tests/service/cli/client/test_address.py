"""Addresses and ids are what they should be before anything is sent."""

from __future__ import annotations

import pytest

from service.cli.client.address import checked_url, is_here, segment
from service.cli.errors import CliError, ExitCode


@pytest.mark.parametrize("url", ["http://127.0.0.1:8080", "https://jobs.example.org/evenkeel/", "http://[::1]:8080 "])
def test_an_address(url: str) -> None:
    assert checked_url(url) == url.strip().rstrip("/")


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8080",
        "ftp://a",
        "http://",
        "http://a:b",
        "http://a/?x=1",
        "http://a#b",
        "",
        "http://a..b",
        f"http://{'a' * 64}.org",
        "http://a/\x01",
    ],
)
def test_no_address(url: str) -> None:
    with pytest.raises(CliError) as raised:
        checked_url(url)
    assert raised.value.code == ExitCode.USAGE


def test_a_password_in_an_address_is_refused_and_not_shown() -> None:
    with pytest.raises(CliError) as raised:
        checked_url("https://user:hunter2@example.org")
    assert "hunter2" not in raised.value.message + raised.value.advice


def test_loopback_is_here() -> None:
    assert all(map(is_here, ("http://127.0.0.1", "http://localhost:1", "http://[::1]:2")))
    assert not is_here("http://10.0.0.1")


@pytest.mark.parametrize("name", ["../keys", "a/b", "", "a?x", "..", "a\nb"])
def test_an_id_leads_nowhere_else(name: str) -> None:
    with pytest.raises(CliError) as raised:
        segment(name, "job")
    assert raised.value.code == ExitCode.NOT_FOUND
