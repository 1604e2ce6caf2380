"""Settings: where they are read from, and which are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection
from pydantic import ValidationError
from redis import ConnectionPool
from sqlalchemy.engine import make_url

from service.config.data import DataSettings
from service.config.settings import GROUPS, BrokerSettings, Settings
from service.config.spark import SparkPropertiesError, SparkSettings, read_properties


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("EVENKEEL_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("EVENKEEL_STATE_DIR", str(tmp_path))


def test_everything_is_in_the_state_directory_by_default(tmp_path: Path) -> None:
    settings = Settings()
    assert settings.database_url == f"sqlite:///{tmp_path / 'evenkeel.db'}"
    assert settings.broker_url == "filesystem://"
    assert settings.data_roots == (tmp_path / "data",)
    assert settings.results_dir == tmp_path / "results"


def test_data_roots_are_a_path_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_DATA_ROOTS", os.pathsep.join(["/a", "", "/b"]))
    assert Settings().data_roots == (Path("/a"), Path("/b"))


def test_data_roots_may_be_uris(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_DATA_ROOTS", "s3a://data/in, ~/x,hdfs://namenode:8020/y")
    assert Settings().data_root_names == ("s3a://data/in", Path.home() / "x", "hdfs://namenode:8020/y")
    assert Settings().data_roots == (Path.home() / "x",)
    monkeypatch.setenv("EVENKEEL_DATA_ROOTS", "gs://bucket")
    with pytest.raises(ValidationError, match="scheme 'gs' is not supported"):
        Settings()


def test_an_empty_variable_is_no_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_API_PORT", "")
    assert Settings().api.port == 8080


def test_a_value_out_of_range_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_API_PORT", "65536")
    with pytest.raises(ValidationError):
        Settings()


def test_passwords_are_not_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", "postgresql+psycopg://user:hunter2@db/evenkeel")
    settings = Settings()
    assert "hunter2" not in repr(settings.database)
    assert "hunter2" in settings.database_url


@pytest.mark.parametrize("password", ["plain", "p@ss:w/rd#1?%25 ü&=+"])
def test_separate_passwords_need_no_encoding(monkeypatch: pytest.MonkeyPatch, password: str) -> None:
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", "postgresql+psycopg://evenkeel:old@db:5432/jobs?sslmode=disable")
    monkeypatch.setenv("EVENKEEL_DATABASE_PASSWORD", password)
    monkeypatch.setenv("EVENKEEL_BROKER_URL", "redis://redis:6379/0")
    monkeypatch.setenv("EVENKEEL_BROKER_PASSWORD", password)
    settings = Settings()
    url = make_url(settings.database_url)
    assert (url.username, url.password, url.host, url.port) == ("evenkeel", password, "db", 5432)
    assert (url.database, dict(url.query)) == ("jobs", {"sslmode": "disable"})
    for parts in (
        ConnectionPool.from_url(settings.broker_url).connection_kwargs,
        Connection(settings.broker_url).info(),
    ):
        assert (parts["password"], parts.get("host") or parts["hostname"], parts["port"]) == (password, "redis", 6379)
    assert password not in repr(settings.database) + repr(settings.broker)


def test_a_password_for_a_sqlite_file_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVENKEEL_DATABASE_URL", "sqlite:////var/lib/evenkeel/jobs.db")
    monkeypatch.setenv("EVENKEEL_DATABASE_PASSWORD", "hunter2")
    with pytest.raises(ValidationError, match="a SQLite file has no password: leave this variable out") as caught:
        Settings()
    assert caught.value.errors()[0]["loc"] == ("password",)
    assert "hunter2" not in str(caught.value)


def test_every_setting_has_a_description() -> None:
    assert all(field.description for group in GROUPS for field in group.model_fields.values())


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"roots": "ftp://host/x"}, "the scheme 'ftp' is not supported"),
        ({"roots": "s3a://user:hunter2@bucket/x"}, "AWS default chain"),
        ({"roots": "s3a://bucket/x:/data"}, "separate the roots by commas"),
        ({"roots": "/data,s3a://bucket/../x"}, "above its start"),
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


@pytest.mark.parametrize(
    "url",
    [
        "redis://localhost",
        "redis://:p%40ss@[::1]:6379/3",
        "rediss://user:secret@host:6380/0",
        "redis+socket:///run/redis.sock?virtual_host=2",
    ],
)
def test_urls_of_redis(url: str) -> None:
    assert BrokerSettings(url=url).url is not None


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("amqp://guest:secret@rabbit//", "'amqp://' is no broker for Evenkeel: use Redis"),
        ("sentinel://:secret@host:26379", "'sentinel://' is no broker"),
        ("secret", "this value is no broker"),
        ("redis://:sec#ret@host/0", "%23 for #"),
        ("redis://:sec/ret@host:6379/0", "not the URL of one server"),
        ("redis://:secret@host:port/0", "not the URL of one server"),
        ("redis://:secret@a;redis://b", "not the URL of one server"),
        ("redis://:secret@/0", "the host is missing"),
        ("redis://:secret@host/first", "the database of a Redis is a number"),
        ("redis://:secret@host?timeout=3", "options after '?' are not supported"),
        ("redis+socket://", "path of the socket is missing"),
    ],
)
def test_other_urls_are_refused_without_their_password(url: str, told: str) -> None:
    with pytest.raises(ValidationError) as refused:
        BrokerSettings(url=url)
    assert told in str(refused.value)
    assert "secret" not in str(refused.value)
    assert "sec#ret" not in str(refused.value)


@pytest.mark.withstands(
    "a Redis URL that disables TLS verification",
    kind="attack",
    how="options of kombu and redis-py, with a value, without one, and empty, which kombu ignored",
    times=8,
    guaranteed="the service does not start and names the valid settings; an unverified connection is not possible",
)
@pytest.mark.parametrize(
    "options",
    [
        "ssl_cert_reqs=none",
        "ssl_cert_reqs=CERT_NONE",
        "ssl_cert_reqs=optional",
        "ssl_check_hostname=false",
        "ssl_ca_certs=",
        "x",
        "virtual_host=1",
        "",
    ],
)
def test_no_url_turns_off_what_tls_checks(options: str) -> None:
    with pytest.raises(ValidationError, match=r"always checked.*EVENKEEL_BROKER_TLS_CA_FILE") as refused:
        BrokerSettings(url=f"rediss://:secret@host:6380/0?{options}")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "files", "told"),
    [
        ("redis://:secret@host", {"tls_ca_file": "ca.pem"}, "EVENKEEL_BROKER_URL asks for none"),
        ("redis+socket:///run/redis.sock", {"tls_certificate_file": "own.pem"}, "asks for none: write rediss://"),
        (None, {"tls_ca_file": "ca.pem"}, "EVENKEEL_BROKER_URL asks for none"),
        ("rediss://:secret@host", {"tls_key_file": "own.key"}, "needs EVENKEEL_BROKER_TLS_CERTIFICATE_FILE"),
    ],
)
def test_files_for_tls_without_tls_are_refused(url: str | None, files: dict[str, str], told: str) -> None:
    with pytest.raises(ValidationError, match=told) as refused:
        BrokerSettings.model_validate({"url": url, **files})
    assert "secret" not in str(refused.value)


def test_files_for_tls() -> None:
    files = {"tls_ca_file": "ca.pem", "tls_certificate_file": "own.pem", "tls_key_file": "own.key"}
    settings = BrokerSettings.model_validate({"url": "rediss://:secret@host", **files})
    assert (str(settings.tls_ca_file), str(settings.tls_key_file)) == ("ca.pem", "own.key")


CLUSTER = "spark://10.0.0.1:7077"


@pytest.mark.parametrize(
    "master",
    [
        "local",
        "local[4]",
        "local[*]",
        "local[2,3]",
        CLUSTER,
        "spark://one:7077,two:7078",
        "spark://[::1]:7077",
        "yarn",
        "k8s://https://10.0.0.1:6443",
        "k8s://kubernetes.default.svc",
    ],
)
def test_supported_masters(master: str) -> None:
    assert SparkSettings(master=master).master == master


@pytest.mark.parametrize(
    "master",
    ["local[0]", "local-cluster[2,1,1024]", "spark://host", "spark://a:1,b", "mesos://h:5050", "10.0.0.1:7077", "YARN"],
)
def test_another_master_is_refused_with_the_supported_ones(master: str) -> None:
    with pytest.raises(ValidationError, match=r"use local\[\*\].*spark://HOST:7077.*yarn or k8s://"):
        SparkSettings(master=master)


def test_masters_and_their_kinds() -> None:
    assert SparkSettings(master="spark://one:7077,[::1]:7078").masters == (("one", 7077), ("::1", 7078))
    assert SparkSettings(master="yarn").masters == ()
    assert (SparkSettings().is_local, SparkSettings(master=CLUSTER).is_standalone) == (True, True)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"executor_memory": "2g"}, "leave out EVENKEEL_SPARK_EXECUTOR_MEMORY, or name a cluster"),
        ({"cores_max": 2, "driver_host": "h"}, "EVENKEEL_SPARK_CORES_MAX, EVENKEEL_SPARK_DRIVER_HOST"),
        ({"master": CLUSTER, "executors": 2}, "set EVENKEEL_SPARK_CORES_MAX and EVENKEEL_SPARK_EXECUTOR_CORES"),
        ({"master": "yarn", "cores_max": 2}, "set EVENKEEL_SPARK_EXECUTORS"),
        ({"master": "yarn", "max_executors": 2}, "need EVENKEEL_SPARK_DYNAMIC_ALLOCATION=true"),
        ({"master": "yarn", "executors": 2, "dynamic_allocation": True}, "MIN_EXECUTORS"),
        ({"master": "yarn", "min_executors": 3, "max_executors": 2, "dynamic_allocation": True}, "more than"),
        ({"master": CLUSTER, "executor_cores": 3, "cores_max": 2}, "no executor would ever start"),
        ({"driver_memory": "449m"}, "512m or more"),
        ({"master": CLUSTER, "executor_memory": "256m"}, "does not start with less than 450 MiB"),
    ],
)
def test_contradictions_are_refused_with_what_to_set(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        SparkSettings(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"master": CLUSTER, "executor_cores": 2, "cores_max": 4, "executor_memory": "450m"},
        {"master": "yarn", "executors": 4, "executor_cores": 2},
        {"master": "yarn", "dynamic_allocation": True, "min_executors": 0, "max_executors": 8},
    ],
)
def test_settings_without_a_contradiction(given: dict[str, Any]) -> None:
    assert SparkSettings(**given).master == given["master"]


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "spark.conf"
    path.write_text(text)
    return path


def test_the_format_of_spark_defaults(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "# of the store\n\nspark.hadoop.fs.s3a.endpoint   http://127.0.0.1:9000\n"
        "spark.hadoop.fs.s3a.secret.key=a b=c\nspark.jars.packages: org.apache.hadoop:hadoop-aws:3.4.1\n",
    )
    assert read_properties(path) == {
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:9000",
        "spark.hadoop.fs.s3a.secret.key": "a b=c",
        "spark.jars.packages": "org.apache.hadoop:hadoop-aws:3.4.1",
    }
    assert read_properties(None) == {}


@pytest.mark.withstands(
    "Spark's safety settings disabled",
    kind="attack",
    how="`spark.sql.restrictedMode.enabled` and others in the operator's properties file",
    times=5,
    guaranteed="the worker does not start; no job can set a Spark property",
)
@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("spark.sql.restrictedMode.enabled", "arbitrary Java"),
        ("spark.sql.ansi.enabled", "ANSI"),
        ("spark.sql.legacy.timeParserPolicy", "meaning of SQL"),
        ("spark.ui.retainedJobs", "progress"),
        ("spark.executor.memory", "set EVENKEEL_SPARK_EXECUTOR_MEMORY"),
    ],
)
def test_properties_that_evenkeel_depends_on_are_refused(tmp_path: Path, key: str, reason: str) -> None:
    with pytest.raises(SparkPropertiesError, match=f"line 2: {key} cannot be set: .*{reason}"):
        read_properties(write(tmp_path, f"\n{key} true\n"))


@pytest.mark.parametrize("key", ["spark.executor.memoryOverhead", "spark.driver.memoryOverhead"])
def test_other_properties_with_a_common_prefix_are_allowed(tmp_path: Path, key: str) -> None:
    assert read_properties(write(tmp_path, f"{key} 1g")) == {key: "1g"}


@pytest.mark.parametrize("line", ["spark.alone", "spark.jars a,\\", "fs.s3a.secret.key hush"])
def test_a_line_that_spark_ignores_is_refused_without_its_value(tmp_path: Path, line: str) -> None:
    with pytest.raises(SparkPropertiesError, match="line 1") as caught:
        read_properties(write(tmp_path, line))
    assert "hush" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SparkPropertiesError, match=r"missing\.conf cannot be read: No such file"):
        read_properties(tmp_path / "missing.conf")
