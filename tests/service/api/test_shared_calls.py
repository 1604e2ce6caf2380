"""Calls that concurrent requests share."""

from __future__ import annotations

import asyncio

import pytest

from service.api.authentication import SharedCalls


class Call:
    """Counts its calls; each ends when `may_end` is set."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.made = 0
        self.may_end = asyncio.Event()
        self._failure = failure

    async def __call__(self) -> int:
        self.made += 1
        made = self.made
        await self.may_end.wait()
        if self._failure is not None:
            raise self._failure
        return made


def test_concurrent_callers_with_the_same_key_share_one_call() -> None:
    async def scenario() -> tuple[list[int], int, int]:
        shared: SharedCalls[str, int] = SharedCalls()
        call = Call()
        asked = [asyncio.create_task(shared.share(key, call)) for key in ("a", "a", "b", "a")]
        await asyncio.sleep(0)
        call.may_end.set()
        answers = await asyncio.gather(*asked)
        return answers, call.made, await shared.share("a", call)

    assert asyncio.run(scenario()) == ([1, 1, 2, 1], 2, 3)


def test_cancelling_one_caller_does_not_cancel_the_call() -> None:
    async def scenario() -> int:
        shared: SharedCalls[None, int] = SharedCalls()
        call = Call()
        leaving, staying = (asyncio.create_task(shared.share(None, call)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.sleep(0)
        call.may_end.set()
        return await staying

    assert asyncio.run(scenario()) == 1


def test_an_error_is_raised_for_all_callers_and_not_kept() -> None:
    async def scenario() -> tuple[list[object], int]:
        shared: SharedCalls[None, int] = SharedCalls()
        failing = Call(OSError("away"))
        failing.may_end.set()
        failed = await asyncio.gather(*(shared.share(None, failing) for _ in range(2)), return_exceptions=True)
        well = Call()
        well.may_end.set()
        return list(failed), await shared.share(None, well)

    failed, answer = asyncio.run(scenario())
    assert [type(error) for error in failed] == [OSError, OSError]
    assert answer == 1
    with pytest.raises(OSError, match="away"):
        raise failed[0]  # type: ignore[misc]
