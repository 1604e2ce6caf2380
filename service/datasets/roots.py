"""The data roots of this service: directories of this machine, and places in stores."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from service.data_settings import DataSettings
from service.datasets.stores import Store, connect_hdfs, connect_s3
from service.settings import Settings
from service.spec.locations import Location, parse_root


@dataclass(frozen=True)
class DirectoryRoot:
    """A directory of this machine that is configured as `file:///…`, so that its files are known by their URIs."""

    path: Path


@dataclass(frozen=True)
class StoreRoot:
    """A bucket or a directory in a store, with all below it."""

    location: Location
    store: Store


Root = Path | DirectoryRoot | StoreRoot
"""A plain path is a directory whose files are known by their paths. Spark is told URIs of either."""


@lru_cache(maxsize=16)
def roots_of(settings: Settings) -> tuple[Root, ...]:
    """The configured roots in order, the same for the same settings, so that connections are kept. Makes none yet."""
    stores: dict[str, Store] = {}
    return tuple(
        Path(name) if isinstance(name, Path) else _root(parse_root(name), settings.data, stores)
        for name in settings.data_root_names
    )


def _root(location: Location, settings: DataSettings, stores: dict[str, Store]) -> Root:
    if location.scheme == "file":
        return DirectoryRoot(Path("/" + location.path))
    store = stores.get(location.store)
    if store is None:
        store = stores[location.store] = open_store(location, settings)
    return StoreRoot(location, store)


def open_store(location: Location, settings: DataSettings) -> Store:
    """The store that holds `location`."""
    whole = Location(location.scheme, location.authority, ())
    if location.scheme == "hdfs":
        return Store(whole, partial(connect_hdfs, whole, settings), search_seconds=settings.store_search_seconds)
    return Store(whole, partial(connect_s3, settings), is_flat=True, search_seconds=settings.store_search_seconds)
