"""What is wrong with roots and stores is told at start, without what may be secret."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from service.data_settings import DataSettings


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"roots": "ftp://host/x"}, "the scheme 'ftp' is not known"),
        ({"roots": "s3a://user:hunter2@bucket/x"}, "AWS default chain"),
        ({"roots": "s3a://bucket/x:/data"}, "commas part the roots"),
        ({"roots": "/data,s3a://bucket/../x"}, "above its beginning"),
        ({"s3_endpoint": "minio:9000"}, "https://minio:9000"),
        ({"s3_endpoint": "http://key:hunter2@minio:9000"}, "host and port"),
        ({"s3_access_key": "hunter2"}, "belong together"),
        ({"s3_secret_key": "hunter2"}, "belong together"),
        ({"store_attempts": 0}, "greater than or equal to 1"),
    ],
)
def test_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError) as caught:
        DataSettings(**values)
    assert told in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_secrets_are_not_shown() -> None:
    settings = DataSettings(s3_access_key="hunter1", s3_secret_key="hunter2", s3_endpoint="https://minio:9000/")
    assert "hunter" not in repr(settings)
    assert settings.s3_endpoint == "https://minio:9000"
