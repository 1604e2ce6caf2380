"""uvicorn with a handler that does nothing, on a socket that it inherits: what any request costs at least.

python tests/benchmarks/bare_server.py FD
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import uvicorn


async def answer(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[Any]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """Reads the body and answers 204."""
    if scope["method"] == "POST":
        while (await receive()).get("more_body"):
            pass
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body", "body": b""})


if __name__ == "__main__":
    uvicorn.run(
        answer,
        fd=int(sys.argv[1]),
        http="httptools",
        access_log=False,
        log_level="error",
        lifespan="off",
    )
