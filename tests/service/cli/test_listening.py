"""The API's socket: ports in use, port 0, and addresses that other machines can reach."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from service.cli.preparation import address_of, listen
from service.cli.terminal import CliError, ExitCode
from service.config.settings import Settings


@pytest.fixture
def api_settings(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Settings]:
    """A function that returns settings with these variables of the API."""

    def made(**given: object) -> Settings:
        for name, value in given.items():
            monkeypatch.setenv(f"EVENKEEL_API_{name.upper()}", str(value))
        return Settings()

    return made


def test_port_0_is_any_free_port(api_settings: Callable[..., Settings]) -> None:
    with listen(api_settings(), 0) as one, listen(api_settings(), 0) as two:
        assert address_of(one) == f"http://127.0.0.1:{one.getsockname()[1]}"
        assert address_of(one) != address_of(two)


def test_option_overrides_the_configured_port(api_settings: Callable[..., Settings]) -> None:
    with listen(api_settings(), 0) as one:
        port = one.getsockname()[1]
    with listen(api_settings(port=1), port) as again:
        assert again.getsockname()[1] == port


def test_port_in_use_is_an_error_with_advice(api_settings: Callable[..., Settings]) -> None:
    with listen(api_settings(), 0) as one:
        port = one.getsockname()[1]
        with pytest.raises(CliError, match=f"port {port} on 127.0.0.1 is in use") as raised:
            listen(api_settings(port=port))
    assert raised.value.code is ExitCode.MISSING
    assert "--port 0" in raised.value.advice


def test_public_address_requires_authentication_or_permission(
    api_settings: Callable[..., Settings], subtests: pytest.Subtests
) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        with subtests.test(host=host):
            with pytest.raises(CliError, match="not a loopback address") as raised:
                listen(api_settings(host=host, authentication="off"), 0)
            assert "EVENKEEL_API_INSECURE_BIND" in raised.value.advice


def test_public_address_with_authentication(api_settings: Callable[..., Settings]) -> None:
    with listen(api_settings(host="0.0.0.0"), 0) as listener:
        assert address_of(listener).startswith("http://127.0.0.1:")


def test_unspecified_address_is_reachable_over_loopback(api_settings: Callable[..., Settings]) -> None:
    with listen(api_settings(host="0.0.0.0", authentication="off", insecure_bind=True), 0) as open_door:
        assert address_of(open_door) == f"http://127.0.0.1:{open_door.getsockname()[1]}"


def test_loopback_addresses_need_no_authentication(
    api_settings: Callable[..., Settings], subtests: pytest.Subtests
) -> None:
    for host in ("localhost", "127.0.0.2"):
        with subtests.test(host=host), listen(api_settings(host=host), 0) as listener:
            assert address_of(listener).startswith("http://")


def test_foreign_address_is_an_error(api_settings: Callable[..., Settings]) -> None:
    with pytest.raises(CliError, match=r"cannot listen on 192\.0\.2\.1"):
        listen(api_settings(host="192.0.2.1", insecure_bind=True), 0)
