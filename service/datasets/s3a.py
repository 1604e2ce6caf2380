"""What Spark's own S3 client is told, so that it asks the same store as the service. Without credentials."""

from __future__ import annotations

from service.data_settings import DataSettings
from service.spec.locations import is_uri, parse_root, split_roots

_PREFIX = "spark.hadoop.fs.s3a."


def s3a_properties(settings: DataSettings) -> dict[str, str]:
    """Spark properties by name: endpoint, region, path style and TLS as far as they are configured; empty where no root
    is a bucket.

    Keys are left out on purpose: they would be in the configuration of every application. Spark finds credentials by
    its own chain, or where the operator's properties file names a provider.

    >>> s3a_properties(DataSettings(roots="s3a://data", s3_endpoint="http://minio:9000"))["spark.hadoop.fs.s3a.endpoint"]
    'http://minio:9000'
    """
    schemes = {parse_root(part).scheme for part in split_roots(settings.roots) if is_uri(part)}
    if not schemes & {"s3", "s3a"}:
        return {}
    told = {}
    if settings.s3_endpoint:
        told["endpoint"] = settings.s3_endpoint
        told["path.style.access"] = str(settings.s3_path_style).lower()
        told["connection.ssl.enabled"] = str(settings.s3_endpoint.startswith("https:")).lower()
    if settings.s3_region:
        told["endpoint.region"] = settings.s3_region
    properties = {_PREFIX + name: value for name, value in told.items()}
    if "s3" in schemes:
        # Hadoop has no file system of that name; distributions that have one say so in the operator's properties.
        properties["spark.hadoop.fs.s3.impl"] = "org.apache.hadoop.fs.s3a.S3AFileSystem"
    return properties
