"""Roots in an object store of their own bucket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count

import pytest

from service.datasets.roots import Root, roots_of
from service.settings import Settings
from tests.support.object_store import ObjectStore

_NUMBERS = count(1)


@dataclass(frozen=True)
class Bucket:
    """An empty bucket of a test's own."""

    server: ObjectStore
    name: str

    def put(self, *keys: str, **contents: bytes) -> None:
        """Objects of five bytes by their keys."""
        self.server.put(self.name, {**dict.fromkeys(keys, b"12345"), **contents})


@pytest.fixture
def bucket(object_store: ObjectStore) -> Bucket:
    made = Bucket(object_store, f"bucket-{next(_NUMBERS)}")
    object_store.make_bucket(made.name)
    return made


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch, object_store: ObjectStore) -> Iterator[Callable[..., tuple[Root, ...]]]:
    """The roots that a service has which is configured with these and reaches the object store."""

    def configured(*names: str, **variables: str) -> tuple[Root, ...]:
        for name, value in {**object_store.variables(",".join(names)), **variables}.items():
            monkeypatch.setenv(name, value)
        return roots_of(Settings())

    yield configured
    roots_of.cache_clear()
