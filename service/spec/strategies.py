"""How a query may be told to run: the values of the engine's settings, hints and per-join fields."""

from __future__ import annotations

from enum import StrEnum


class Toggle(StrEnum):
    """A rewrite that is decided by cost (`auto`), forced (`true`) or forbidden (`false`)."""

    AUTO = "auto"
    TRUE = "true"
    FALSE = "false"

    @classmethod
    def _missing_(cls, value: object) -> Toggle | None:
        if isinstance(value, bool):
            return cls.TRUE if value else cls.FALSE
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


class AggPhase(StrEnum):
    """In how many phases an aggregate runs. Flink's older NONE is read as AUTO."""

    AUTO = "AUTO"
    ONE_PHASE = "ONE_PHASE"
    TWO_PHASE = "TWO_PHASE"

    @classmethod
    def _missing_(cls, value: object) -> AggPhase | None:
        if not isinstance(value, str):
            return None
        return cls.__members__.get("AUTO" if value.upper() == "NONE" else value.upper())


class DistinctMethod(StrEnum):
    """How the values of DISTINCT are told apart: by cost, by Spark's own plan, per bucket of their hash, by bitmaps, or
    each set of values in a branch of its own, the branches joined on the group key.
    """

    AUTO = "auto"
    NATIVE = "native"
    SPLIT = "split"
    BITMAP = "bitmap"
    BRANCHES = "branches"

    @classmethod
    def _missing_(cls, value: object) -> DistinctMethod | None:
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


class JoinShip(StrEnum):
    """How the rows of a join's sides come together: both parted by the key, or one side sent whole to every task."""

    AUTO = "AUTO"
    REPARTITION = "REPARTITION"
    BROADCAST_LEFT = "BROADCAST_LEFT"
    BROADCAST_RIGHT = "BROADCAST_RIGHT"

    @classmethod
    def _missing_(cls, value: object) -> JoinShip | None:
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


class JoinLocal(StrEnum):
    """How a task joins its rows: both sides sorted and merged, or a hash table of one side."""

    AUTO = "AUTO"
    SORT_MERGE = "SORT_MERGE"
    HASH_LEFT = "HASH_LEFT"
    HASH_RIGHT = "HASH_RIGHT"

    @classmethod
    def _missing_(cls, value: object) -> JoinLocal | None:
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None


class JoinSkew(StrEnum):
    """What is done about hot keys of a join: by cost, nothing, joining them apart from the rest, or salting the key.

    Flink's FORCED is read as ISOLATE.
    """

    AUTO = "AUTO"
    NONE = "NONE"
    ISOLATE = "ISOLATE"
    SALT = "SALT"

    @classmethod
    def _missing_(cls, value: object) -> JoinSkew | None:
        if not isinstance(value, str):
            return None
        return cls.__members__.get("ISOLATE" if value.upper() == "FORCED" else value.upper())
