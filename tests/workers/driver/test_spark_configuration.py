"""The properties of a driver, with and without a cluster."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from service.config.spark import SparkSettings, reason_to_refuse
from workers.driver.configuration import driver_host, spark_configuration, write_properties

STANDALONE = SparkSettings(
    master="spark://10.0.0.1:7077",
    executor_memory="2g",
    executor_cores=2,
    cores_max=8,
    driver_host="worker.example",
    driver_bind_address="0.0.0.0",
    driver_port=4041,
    block_manager_port=4042,
)
DYNAMIC = SparkSettings(master="yarn", dynamic_allocation=True, max_executors=8, driver_host="10.0.0.9")


def of_cluster(settings: SparkSettings, scratch: Path) -> dict[str, str]:
    local = spark_configuration(SparkSettings(), scratch)
    return {key: value for key, value in spark_configuration(settings, scratch).items() if local.get(key) != value}


def test_a_standalone_cluster(tmp_path: Path) -> None:
    assert of_cluster(STANDALONE, tmp_path) == {
        "spark.master": "spark://10.0.0.1:7077",
        "spark.driver.host": "worker.example",
        "spark.driver.bindAddress": "0.0.0.0",
        "spark.driver.port": "4041",
        "spark.blockManager.port": "4042",
        "spark.executor.extraJavaOptions": "-Xss32m",
        "spark.executor.memory": "2g",
        "spark.executor.cores": "2",
        "spark.cores.max": "8",
        "spark.task.reaper.enabled": "true",
        "spark.task.reaper.killTimeout": "30000ms",
        "spark.task.reaper.threadDump": "false",
    }


@pytest.mark.parametrize(("least", "initial"), [(None, "1"), (0, "1"), (3, "3")])
def test_dynamic_allocation_begins_with_an_executor(tmp_path: Path, least: int | None, initial: str) -> None:
    found = of_cluster(DYNAMIC.model_copy(update={"min_executors": least}), tmp_path)
    assert found["spark.dynamicAllocation.initialExecutors"] == initial
    assert found["spark.dynamicAllocation.enabled"] == "true"
    assert found["spark.dynamicAllocation.maxExecutors"] == "8"
    assert found.get("spark.dynamicAllocation.minExecutors") == (None if least is None else str(least))


@pytest.mark.parametrize("settings", [SparkSettings(), STANDALONE, DYNAMIC], ids=["local", "standalone", "dynamic"])
def test_what_evenkeel_sets_no_operator_can_set_otherwise(tmp_path: Path, settings: SparkSettings) -> None:
    free = {key for key in spark_configuration(settings, tmp_path) if reason_to_refuse(key) is None}
    # Options are put after those that Evenkeel needs; without shuffle tracking there is a shuffle service.
    assert free <= {
        "spark.driver.extraJavaOptions",
        "spark.executor.extraJavaOptions",
        "spark.dynamicAllocation.shuffleTracking.enabled",
    }


def test_options_of_the_jvm_are_put_together(tmp_path: Path) -> None:
    options = spark_configuration(SparkSettings(), tmp_path, {"spark.driver.extraJavaOptions": "-Da=b"})
    assert options["spark.driver.extraJavaOptions"].startswith('"-Djava.io.tmpdir=')
    assert " -Xss32m " in options["spark.driver.extraJavaOptions"]
    assert options["spark.driver.extraJavaOptions"].endswith(" -Da=b")
    assert "spark.executor.extraJavaOptions" not in options
    options = spark_configuration(STANDALONE, tmp_path, {"spark.executor.extraJavaOptions": "-Dc=d"})
    assert options["spark.executor.extraJavaOptions"] == "-Xss32m -Dc=d"


@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "k8s://https://127.0.0.1:6443", "k8s://127.0.0.1"])
def test_executors_get_the_address_that_reaches_the_master(master: str) -> None:
    assert driver_host(SparkSettings(master=master)) == "127.0.0.1"
    assert driver_host(SparkSettings(master=master, driver_host="10.0.0.7")) == "10.0.0.7"
    assert driver_host(SparkSettings()) == "127.0.0.1"


def test_the_file_of_properties_is_this_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "further.properties"
    for value in ("first", "a\\b\tc"):
        write_properties({"spark.hadoop.fs.s3a.secret.key": value}, path)
    assert path.read_text() == "spark.hadoop.fs.s3a.secret.key=a\\\\b\\tc\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_driver_calls_no_java_and_reads_no_file_by_its_name(tmp_path: Path) -> None:
    """Behind the allow-list of functions, should it ever have a hole."""
    for settings in (SparkSettings(), STANDALONE):
        found = spark_configuration(settings, tmp_path)
        assert found["spark.sql.restrictedMode.enabled"] == "true"
        assert found["spark.sql.runSQLOnFiles"] == "false"
        assert found["spark.sql.variable.substitute"] == "false"
        assert found["spark.ui.killEnabled"] == "false"
