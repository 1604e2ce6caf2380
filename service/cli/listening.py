"""The API's socket. The parent binds it and the API child inherits it.

So a busy port is known before anything starts, port 0 has no race, and while an API that died is started again,
clients wait in the socket's queue instead of being refused.
"""

from __future__ import annotations

import errno
import ipaddress
import socket

from service.cli.errors import CliError, ExitCode
from service.settings import Settings, is_loopback

_BACKLOG = 512


def listen(settings: Settings, port: int | None = None) -> socket.socket:
    """A listening socket at the configured address; `port` overrides the configured one, 0 takes any free one.

    Raises CliError where the port is taken, the address is not this machine's, or it would admit strangers.
    """
    api = settings.api
    wanted = api.port if port is None else port
    refuse_open_door(settings)
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            api.host, wanted, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CliError(f"{api.host} is no address to listen on: {error}", code=ExitCode.USAGE) from None
    try:
        # Lets a restart take over a port whose old connections are still being closed down, never a port in use.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise _cannot_listen(api.host, wanted, error) from None
    return listener


def refuse_open_door(settings: Settings) -> None:
    """Raises CliError for an address that others can reach while nobody needs a key, unless the operator allows it."""
    api = settings.api
    if settings.authenticates or api.insecure_bind or is_loopback(api.host):
        return
    raise CliError(
        f"{api.host} is not a loopback address, and callers are not authenticated",
        "Leave EVENKEEL_API_AUTHENTICATION=auto, keep EVENKEEL_API_HOST=127.0.0.1, or set "
        "EVENKEEL_API_INSECURE_BIND=true behind something that authenticates.",
        code=ExitCode.USAGE,
    )


def address_of(listener: socket.socket) -> str:
    """The URL at which this machine reaches the socket."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host).is_unspecified:
        host = "::1" if listener.family is socket.AF_INET6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _cannot_listen(host: str, port: int, error: OSError) -> CliError:
    if error.errno == errno.EADDRINUSE:
        return CliError(
            f"port {port} on {host} is taken",
            f"Stop what listens there (`lsof -i :{port}` tells), or choose another: --port 0 takes any free one.",
            code=ExitCode.MISSING,
        )
    if error.errno == errno.EACCES:
        return CliError(f"listening on port {port} is not allowed", "Take a port above 1023.", code=ExitCode.MISSING)
    return CliError(f"cannot listen on {host}, port {port}: {error.strerror}", code=ExitCode.MISSING)
