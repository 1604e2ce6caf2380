"""Roots in an object store of their own bucket."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from service.config.settings import Settings
from service.data.roots import Root, roots_of
from tests.support.object_store import Bucket, ObjectStore, Roots

_NUMBERS = count(1)


@pytest.fixture
def bucket(object_store: ObjectStore) -> Bucket:
    made = Bucket(object_store, f"bucket-{next(_NUMBERS)}")
    object_store.make_bucket(made.name)
    return made


@pytest.fixture
def roots(monkeypatch: pytest.MonkeyPatch, object_store: ObjectStore) -> Iterator[Roots]:
    """The roots that a service has which is configured with these and reaches the object store."""

    def configured(*names: str, **variables: str) -> tuple[Root, ...]:
        for name, value in {**object_store.variables(",".join(names)), **variables}.items():
            monkeypatch.setenv(name, value)
        return roots_of(Settings())

    yield configured
    roots_of.cache_clear()
