"""Messages that announce jobs, those of a newer version included, and all others."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from service.broker.transports import announces_job


def message(content: object, **changes: Any) -> dict[str, Any]:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return {
        "body": base64.b64encode(text).decode(),
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": {"task": "run_job", "id": "1", "eta": None, "expires": None},
        "properties": {"delivery_tag": "1", "delivery_info": {"exchange": "", "routing_key": "evenkeel"}},
        **changes,
    }


@pytest.mark.parametrize(
    "good",
    [
        message((["job"], {}, {})),
        message((["job", "more"], {"tenant": "t"}, {"chain": None})),
        message((["job"], {}, {}), headers={"task": "run_job", "id": "1", "new": [1]}),
    ],
)
def test_ours(good: object) -> None:
    assert announces_job(good)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        [],
        7,
        {"no": "envelope"},
        message(b"{nonsense"),
        message(b"\xff\xfe"),
        message(None),
        message({"a": 1}),
        message([]),
        message([[], {}, {}]),
        message([[7], {}, {}]),
        message(["job", {}, {}]),
        message([["job"], None, {}]),
        message((["x" * 70_000], {}, {})),
        message((["job"], {}, {}), body="no base64!"),
        message((["job"], {}, {}), **{"content-type": "application/x-python-serialize"}),
        message((["job"], {}, {}), headers=None),
        message((["job"], {}, {}), headers={"task": "other", "id": "1"}),
        message((["job"], {}, {}), headers={"task": "run_job", "id": 1}),
        message((["job"], {}, {}), headers={"task": "run_job", "id": "1", "eta": "never"}),
        message((["job"], {}, {}), properties={"delivery_tag": "1"}),
    ],
)
def test_not_ours(bad: object) -> None:
    assert not announces_job(bad)
