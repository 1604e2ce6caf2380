"""Whether Spark has the jars that data roots need. The pip distribution comes without those of object stores."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from service.datasets.roots import StoreRoot, roots_of
from service.settings import Settings
from service.spark_properties import SparkPropertiesError, read_properties

_NAMING_JARS = ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath")


def lacks_s3a(settings: Settings) -> bool:
    """Whether a root is a bucket, and neither Spark's own jars nor the operator's properties bring a client for it.

    False where pyspark is not installed: the workers are elsewhere then.
    """
    if not any(isinstance(root, StoreRoot) and root.store.is_flat for root in roots_of(settings)):
        return False
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None or any((Path(spec.origin).parent / "jars").glob("hadoop-aws*.jar")):
        return False
    try:
        properties = read_properties(settings.spark.properties_file)
    except SparkPropertiesError:  # told where Spark's settings are checked
        return False
    return not any(properties.get(name) for name in _NAMING_JARS)
