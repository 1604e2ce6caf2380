"""Configured roots, and the connections that they share."""

from __future__ import annotations

from pathlib import Path

from service.config.settings import Settings
from service.data.roots import DirectoryRoot, StoreRoot, roots_of
from tests.support.object_store import Roots


def test_roots_in_order_and_by_kind(roots: Roots) -> None:
    made = roots("s3a://data/in", "/local", "file:///there", "hdfs://namenode:8020/x")
    assert [type(root) for root in made] == [StoreRoot, type(Path()), DirectoryRoot, StoreRoot]
    assert [str(root.location) for root in made if isinstance(root, StoreRoot)] == [
        "s3a://data/in",
        "hdfs://namenode:8020/x",
    ]


def test_roots_of_one_bucket_share_a_connection_and_requests_do(roots: Roots) -> None:
    first, second, other = roots("s3a://data/in", "s3a://data/more", "s3a://other")
    assert isinstance(first, StoreRoot)
    assert isinstance(second, StoreRoot)
    assert isinstance(other, StoreRoot)
    assert first.store is second.store
    assert first.store is not other.store
    settings = Settings()
    assert roots_of(settings) is roots_of(settings)
