"""An S3 server (moto) on loopback that stores objects in memory and ends with the test run."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import httpx
from botocore.config import Config

from service.data.roots import Root
from tests.support.servers import _Server

KEYS = {"aws_access_key_id": "testing", "aws_secret_access_key": "testing"}
Roots = Callable[..., tuple[Root, ...]]
"""The type of the fixture `roots`."""

_REQUEST = re.compile(r"(DELETE|GET|HEAD|POST|PUT) (\S+) HTTP/1")
_SERVE = "import sys; from moto.server import main; main(sys.argv[1:])"


class ObjectStore(_Server):
    """A store that accepts any credentials until `require_credentials` is called."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / "object-store.log", os.getuid(), os.getgid())

    @property
    def endpoint(self) -> str:
        """The value for EVENKEEL_DATA_S3_ENDPOINT."""
        return f"http://127.0.0.1:{self.port}"

    def variables(self, roots: str, keys: Mapping[str, str] | None = None) -> dict[str, str]:
        """Returns the environment variables of a service with these data roots in the store."""
        used = keys or KEYS
        return {
            "EVENKEEL_DATA_ROOTS": roots,
            "EVENKEEL_DATA_S3_ENDPOINT": self.endpoint,
            "EVENKEEL_DATA_S3_REGION": "us-east-1",
            "EVENKEEL_DATA_S3_ACCESS_KEY": used["aws_access_key_id"],
            "EVENKEEL_DATA_S3_SECRET_KEY": used["aws_secret_access_key"],
        }

    def make_bucket(self, name: str) -> None:
        """Creates an empty bucket."""
        self._client("s3").create_bucket(Bucket=name)

    def put(self, bucket: str, objects: Mapping[str, bytes]) -> None:
        """Stores objects, given by key."""
        client = self._client("s3")
        for key, content in objects.items():
            client.put_object(Bucket=bucket, Key=key, Body=content)

    def delete(self, bucket: str, *keys: str) -> None:
        """Removes objects."""
        for key in keys:
            self._client("s3").delete_object(Bucket=bucket, Key=key)

    def add_user(self, name: str, actions: Sequence[str]) -> dict[str, str]:
        """Adds a user with permission for these actions and returns the user's keys. Call it before
        `require_credentials`.
        """
        client = self._client("iam")
        client.create_user(UserName=name)
        allowed = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        client.put_user_policy(UserName=name, PolicyName="allowed", PolicyDocument=policy)
        made = client.create_access_key(UserName=name)["AccessKey"]
        return {"aws_access_key_id": made["AccessKeyId"], "aws_secret_access_key": made["SecretAccessKey"]}

    def require_credentials(self, *, required: bool = True) -> None:
        """Makes the store check the keys and policies of users, or stop checking them."""
        free = b"0" if required else b"inf"
        headers = {"content-type": "text/plain"}
        httpx.post(f"{self.endpoint}/moto-api/reset-auth", content=free, headers=headers).raise_for_status()

    def requests(self) -> list[str]:
        """Returns all requests so far, such as `GET /bucket?list-type=2&…`."""
        return [" ".join(asked) for asked in _REQUEST.findall(self._log.read_text(errors="replace"))]

    def _client(self, service: str) -> Any:
        patience = Config(connect_timeout=5, read_timeout=10, retries={"total_max_attempts": 2})
        return boto3.client(service, endpoint_url=self.endpoint, region_name="us-east-1", config=patience, **KEYS)

    def _command(self) -> Sequence[str]:
        return (sys.executable, "-P", "-c", _SERVE, "-H", "127.0.0.1", "-p", str(self.port))

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.endpoint}/moto-api/", timeout=1).status_code < 500
        except httpx.HTTPError:
            return False


@dataclass(frozen=True)
class Bucket:
    """A bucket of one test, empty at first."""

    server: ObjectStore
    name: str

    def put(self, *keys: str, **contents: bytes) -> None:
        """Stores objects of five bytes with these keys, and `contents`."""
        self.server.put(self.name, {**dict.fromkeys(keys, b"12345"), **contents})


@contextmanager
def running_object_store(directory: Path) -> Iterator[ObjectStore]:
    """Runs a store that writes its log below `directory`."""
    store = ObjectStore(directory)
    store.start()
    try:
        yield store
    finally:
        store.stop()
