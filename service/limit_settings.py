"""How much of the service one tenant may take."""

from __future__ import annotations

from pydantic import ByteSize, Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class LimitSettings(BaseSettings):
    """How much of the service one tenant may take."""

    model_config = SettingsConfigDict(
        env_prefix="EVENKEEL_LIMITS_", frozen=True, extra="ignore", env_ignore_empty=True, hide_input_in_errors=True
    )

    queued_jobs: int = Field(
        default=10_000,
        ge=0,
        le=10_000_000,
        description="Jobs of a tenant that wait for a worker; what it submits or resumes beyond gets a 429. 0 for any "
        "number.",
    )
    running_jobs: int = Field(
        default=0,
        ge=0,
        le=100_000,
        description="Jobs of a tenant that workers have at once, beside as many streams; the others wait. 0 for any "
        "number.",
    )
    explanations: int = Field(
        default=10,
        ge=0,
        le=100_000,
        description="Explanations of a tenant that wait or are at work at once; what it asks for beyond gets a 429. "
        "They take no more than half of a worker's slots. 0 for any number, in all slots.",
    )
    result_bytes: ByteSize = Field(
        default=ByteSize(0),
        ge=0,
        description="Largest managed result of a batch job; one that outgrows it fails. Bytes, or with a unit such as "
        "`10GB`; 0 for any size.",
    )
    streams: int = Field(
        default=1_000,
        ge=0,
        le=1_000_000,
        description="Streams of posted rows that a tenant may have; another gets a 429. 0 for any number.",
    )
    posted_bytes: ByteSize = Field(
        default=ByteSize(0),
        ge=0,
        description="Size of the files of all rows that a tenant has posted; once it is reached, further rows get a "
        "429 until a stream is deleted. Bytes, or with a unit such as `10GB`; 0 for any size.",
    )
