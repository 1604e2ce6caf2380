"""Which files jobs may read, how stores of objects are reached, and where results go."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict

from service.spec.locations import LocationError, is_uri, parse_root, split_roots

_ENDPOINT = re.compile(r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?/?")


class DataSettings(BaseSettings):
    """Which files jobs may read, how stores of objects are reached, and where results go."""

    model_config = SettingsConfigDict(
        env_prefix="EVENKEEL_DATA_", frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True
    )

    roots: str = Field(
        default="",
        description="Directories that jobs may read, separated by the path separator, or by commas where any is a URI "
        "(`s3a://bucket/prefix`, `s3://…`, `hdfs://namenode:port/path`, `file:///path`); `data` in the state directory "
        "by default.",
    )
    results: Path | None = Field(
        default=None, description="Directory of results; `results` in the state directory by default."
    )
    streams: Path | None = Field(
        default=None,
        description="Directory of posted rows and of streaming jobs' state; `streams` in the state directory by "
        "default. API and workers share it.",
    )
    sink_roots: str = Field(
        default="",
        description="Directories below which sinks of streaming jobs may write Delta tables and Parquet files, "
        "separated by the path separator; none by default. All workers share them; an API that has them too refuses "
        "other paths at once.",
    )
    s3_endpoint: str = Field(
        default="", description="Object store other than AWS, such as `https://minio:9000`; `http://` goes without TLS."
    )
    s3_region: str = Field(
        default="", max_length=64, description="Region of the buckets; by default what the AWS environment says."
    )
    s3_path_style: bool = Field(
        default=True,
        description="At an endpoint of your own, the bucket is the first part of the path and not of the host's name.",
    )
    s3_access_key: SecretStr | None = Field(
        default=None,
        description="Access key of API and worker; by default the AWS chain: environment, profile, instance. "
        "Spark has its own credentials.",
    )
    s3_secret_key: SecretStr | None = Field(default=None, description="Secret that belongs to the access key.")
    s3_ca_file: Path | None = Field(
        default=None, description="Certificates (PEM) of those who sign for the endpoint; the system's by default."
    )
    store_connect_timeout_seconds: float = Field(
        default=2, gt=0, le=300, description="How long a connection to the store may take."
    )
    store_request_timeout_seconds: float = Field(
        default=10, ge=1, le=300, description="A store that sends nothing for so long does not answer."
    )
    store_search_seconds: float = Field(
        default=30,
        gt=0,
        le=3600,
        description="How long finding the files of a table in a store may take; longer, and the job is refused.",
    )
    store_attempts: int = Field(default=2, ge=1, le=10, description="How often a request to the store is sent at most.")

    @field_validator("roots")
    @classmethod
    def _roots_are_understood(cls, roots: str) -> str:
        for part in split_roots(roots):
            if is_uri(part):
                try:
                    parse_root(part)
                except LocationError as error:
                    raise PydanticCustomError("data_root", "{reason}", {"reason": str(error)}) from None
        return roots

    @field_validator("s3_endpoint")
    @classmethod
    def _endpoint_is_an_address(cls, endpoint: str) -> str:
        if endpoint and not _ENDPOINT.fullmatch(endpoint):
            raise PydanticCustomError(
                "s3_endpoint", "the endpoint must be http:// or https:// with host and port, such as https://minio:9000"
            )
        return endpoint.rstrip("/")

    @model_validator(mode="after")
    def _keys_come_in_pairs(self) -> Self:
        if (self.s3_access_key is None) != (self.s3_secret_key is None):
            raise PydanticCustomError(
                "s3_keys", "EVENKEEL_DATA_S3_ACCESS_KEY and EVENKEEL_DATA_S3_SECRET_KEY belong together: set both"
            )
        return self
