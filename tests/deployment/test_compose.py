"""What docker-compose.yml says: valid, without a secret that anybody knows, and closed where it need not be open."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from service.config.settings import GROUPS, Settings
from service.contract.model import parse_bytes
from tests.support.compose import COMPOSE_FILE, ROOT, MissingVariableError, interpolated, placeholders, read_compose

GIVEN = {
    "EVENKEEL_DATABASE_PASSWORD": "p@ss:w/rd",
    "EVENKEEL_BROKER_PASSWORD": "s3cr€t #1",
    "EVENKEEL_DATA_DIR": "/srv/tables",
}
SERVICES: dict[str, dict[str, Any]] = interpolated(GIVEN)["services"]
GUIDE = (ROOT / "docs/how-to/compose.md").read_text(encoding="utf-8")
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("evenkeel:")}
SECRET = re.compile(r"PASSWORD|SECRET|TOKEN|CREDENTIAL|AUTH|(^|_)KEY", re.IGNORECASE)


def with_given(**variables: str) -> dict[str, dict[str, Any]]:
    """The services with these variables too."""
    services: dict[str, dict[str, Any]] = interpolated({**GIVEN, **variables})["services"]
    return services


def validate(path: Path) -> subprocess.CompletedProcess[str]:
    """Against the compose specification's schema, which comes with check-jsonschema."""
    command = [sys.executable, "-P", "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_it_follows_the_compose_specification(tmp_path: Path) -> None:
    filled, wrong = tmp_path / "filled.yml", tmp_path / "wrong.yml"
    document = interpolated(GIVEN)
    filled.write_text(yaml.safe_dump(document), encoding="utf-8")
    document["services"]["api"]["ports_"] = []
    wrong.write_text(yaml.safe_dump(document), encoding="utf-8")
    for path in (COMPOSE_FILE, filled):
        done = validate(path)
        assert done.returncode == 0, done.stdout + done.stderr
    assert "ports_" in validate(wrong).stdout


@pytest.mark.parametrize("name", GIVEN)
@pytest.mark.parametrize("value", [None, ""])
def test_nothing_starts_without_what_must_be_set(name: str, value: str | None) -> None:
    given = {**GIVEN, name: value or ""}
    if value is None:
        del given[name]
    with pytest.raises(MissingVariableError, match=rf"{name} is missing a value: set it in \.env"):
        interpolated(given)


def test_no_secret_has_a_default() -> None:
    secrets = [placeholder for placeholder in placeholders(read_compose()) if SECRET.search(placeholder.name)]
    assert {secret.name for secret in secrets} == {"EVENKEEL_DATABASE_PASSWORD", "EVENKEEL_BROKER_PASSWORD"}
    assert [secret for secret in secrets if secret.operator != ":?"] == []


def test_every_variable_of_env_bears_our_name() -> None:
    """A variable of the shell wins over `.env`: one called LOG_LEVEL is likely to be somebody else's."""
    assert [one.name for one in placeholders(read_compose()) if not one.name.startswith("EVENKEEL_")] == []


def test_no_secret_is_written_out() -> None:
    for name, service in read_compose()["services"].items():
        for variable, value in service.get("environment", {}).items():
            if SECRET.search(variable):
                assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", value), f"{name}: {variable}"


@pytest.mark.parametrize("name", SERVICES)
def test_no_command_line_tells_a_secret(name: str) -> None:
    service = SERVICES[name]
    shown = [*service.get("command", ()), *service.get("healthcheck", {}).get("test", ())]
    assert [part for part in shown for secret in ("p@ss", "s3cr") if secret in part] == []


@pytest.mark.parametrize("name", OURS)
def test_its_variables_are_ours_and_within_bounds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    environment = {
        variable: str(value)
        for variable, value in OURS[name].get("environment", {}).items()
        if variable.startswith("EVENKEEL_")
    }
    known = {
        f"{group.model_config.get('env_prefix', '')}{field}".upper() for group in GROUPS for field in group.model_fields
    }
    assert set(environment) <= known
    if "env_file" in OURS[name]:  # read by all that have it, it may tune what only one of them uses
        environment["EVENKEEL_SPARK_DYNAMIC_ALLOCATION"] = "true"
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    Settings()


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned(name: str) -> None:
    assert re.fullmatch(r"[a-z]+:\d+\.\d+(\.\d+)?(-bookworm)?", SERVICES[name]["image"])


def test_the_image_is_built_here_and_bears_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert {service["image"] for service in OURS.values()} == {f"evenkeel:{version}"}
    assert {service["pull_policy"] for service in OURS.values()} == {"never"}
    assert [name for name, service in OURS.items() if "build" in service] == ["migrate"]
    assert f'org.opencontainers.image.version="{version}"' in (ROOT / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", SERVICES)
def test_every_part_is_confined(name: str) -> None:
    service = SERVICES[name]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", service["user"])
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}
    assert {"max-size", "max-file"} <= set(service["logging"]["options"])
    assert service["restart"] == ("no" if name == "migrate" else "unless-stopped")
    assert not {"privileged", "network_mode", "pid", "devices", "cap_add"} & set(service)


def test_only_the_api_is_published_and_only_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published == {"api": ["127.0.0.1:8080:8080"]}
    several = with_given(EVENKEEL_API_PORTS="8080-8081")
    assert several["api"]["ports"] == ["127.0.0.1:8080-8081:8080"]


def test_database_and_broker_are_on_a_network_without_a_way_out() -> None:
    networks = read_compose()["networks"]
    assert [name for name, network in networks.items() if network.get("internal")] == ["backend", "monitoring"]
    assert SERVICES["postgres"]["networks"] == SERVICES["redis"]["networks"] == ["backend"]
    assert [name for name, service in SERVICES.items() if "monitoring" in service["networks"]] == ["api", "worker"]
    # Spark's own ports ask nobody for a password: what runs there reaches neither of them.
    assert SERVICES["spark-master"]["networks"] == SERVICES["spark-worker"]["networks"] == ["spark"]


@pytest.mark.parametrize("name", sorted(set(SERVICES) - {"migrate"}))
def test_every_part_that_stays_has_a_health_check(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert {"interval", "timeout", "retries", "start_period"} <= set(check)


@pytest.mark.parametrize("name", ["api", "worker"])
def test_nothing_of_ours_starts_before_the_schema_is_there(name: str) -> None:
    assert SERVICES[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert SERVICES["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}


def test_a_worker_has_time_to_drain() -> None:
    service = SERVICES["worker"]
    drain = float(service["environment"]["EVENKEEL_WORKER_DRAIN_SECONDS"])
    grace = float(service["stop_grace_period"].removesuffix("s"))
    # 3 s to hand jobs back, 5 s for a database that is away, 15 s after which a worker ends by force, some to spare.
    assert grace >= drain + 3 + 5 + 15 + 5


def test_results_are_at_one_path_and_data_is_read_only() -> None:
    mounts = {
        name: [mount for mount in service.get("volumes", ()) if isinstance(mount, dict)]
        for name, service in SERVICES.items()
    }
    for name in ("api", "worker", "spark-worker"):
        data, results, streams, *_ = mounts.pop(name)
        assert (data["source"], data["target"], data["read_only"]) == (GIVEN["EVENKEEL_DATA_DIR"], "/srv/data", True)
        assert (results["source"], results["target"], "read_only" in results) == ("results", "/srv/results", False)
        assert (streams["source"], streams["target"], "read_only" in streams) == ("streams", "/srv/streams", False)
    assert not any(mounts.values())


@pytest.mark.parametrize("given", ["", "jobs.example.org,jobs.example.com"])
def test_the_health_check_and_prometheus_may_ask_whatever_the_proxy_is_called(given: str) -> None:
    api = with_given(EVENKEEL_API_HOST_NAMES=given)["api"]
    names = api["environment"]["EVENKEEL_API_ALLOWED_HOSTS"].split(",")
    assert names == ["127.0.0.1", "localhost", "api", *given.split(",")] if given else ["127.0.0.1", "localhost", "api"]
    assert urlsplit(api["healthcheck"]["test"][-1]).hostname in names


def test_metrics_are_served_to_other_containers_and_not_published() -> None:
    worker = SERVICES["worker"]
    assert worker["environment"]["EVENKEEL_WORKER_METRICS_HOST"] == "0.0.0.0"
    targets = re.findall(r'targets: \["(\w+):(\d+)"\]', (ROOT / "service/monitoring/prometheus-rules.yml").read_text())
    assert targets == [
        ("api", str(SERVICES["api"]["environment"]["EVENKEEL_API_PORT"])),
        ("worker", str(worker["environment"]["EVENKEEL_WORKER_METRICS_PORT"])),
    ]


@pytest.mark.parametrize(
    ("name", "variable"),
    [("api", "EVENKEEL_APIS"), ("worker", "EVENKEEL_WORKERS"), ("spark-worker", "EVENKEEL_SPARK_WORKERS")],
)
def test_the_number_of_replicas_outlives_the_next_up(name: str, variable: str) -> None:
    """`up` goes back to what the file says, whatever `--scale` said before."""
    assert int(with_given(**{variable: "5"})[name]["deploy"]["replicas"]) == 5
    assert int(SERVICES[name]["deploy"]["replicas"]) >= 1


def test_the_defaults_fit_together_and_into_the_machine_of_the_guide() -> None:
    def replicas(name: str) -> int:
        return int(SERVICES[name]["deploy"].get("replicas", 1))

    limits = {
        name: parse_bytes(service["deploy"]["resources"]["limits"]["memory"]) for name, service in SERVICES.items()
    }
    (machine,) = re.findall(r"one machine of (\d+) GiB", GUIDE)
    # A GiB is left to the machine itself; these are limits, and not what is taken.
    assert sum(limit * replicas(name) for name, limit in limits.items()) <= (int(machine) - 1) << 30

    cluster = dict(zip(command := SERVICES["spark-worker"]["command"], command[1:], strict=False))
    worker = SERVICES["worker"]["environment"]
    offered = int(cluster["--cores"]) * replicas("spark-worker")
    assert int(worker["EVENKEEL_SPARK_CORES_MAX"]) * replicas("worker") <= offered
    heaps = int(cluster["--cores"]) * parse_bytes(worker["EVENKEEL_SPARK_EXECUTOR_MEMORY"])
    assert heaps <= parse_bytes(cluster["--memory"]) < limits["spark-worker"]


def test_every_other_setting_can_be_given_in_a_file_that_may_be_absent() -> None:
    given = {name: service["env_file"] for name, service in SERVICES.items() if "env_file" in service}
    assert set(given) == {"migrate", "api", "worker"}
    assert all(files == [{"path": "evenkeel.env", "required": False}] for files in given.values())
    fixed = {variable for name in given for variable in SERVICES[name]["environment"]}
    assert not {name for name in fixed if name.startswith(("EVENKEEL_RETENTION_", "EVENKEEL_DATA_", "EVENKEEL_LOG_"))}
    ignored = (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines()
    assert {".env", "evenkeel.env"} <= set(ignored)


def test_spark_properties_come_from_a_file_of_the_machine() -> None:
    def of(worker: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        return worker["environment"]["EVENKEEL_SPARK_PROPERTIES_FILE"], worker["volumes"][-1]

    variable, mount = of(with_given(EVENKEEL_SPARK_PROPERTIES_FILE="/etc/evenkeel/spark.properties")["worker"])
    assert mount["source"] == "/etc/evenkeel/spark.properties"
    assert (variable, True) == (mount["target"], mount["read_only"])
    variable, mount = of(SERVICES["worker"])
    assert (variable, mount["source"]) == ("", "/dev/null")


def test_what_executors_print_is_bounded() -> None:
    options = dict(
        option.removeprefix("-D").split("=")
        for option in SERVICES["spark-worker"]["environment"]["SPARK_WORKER_OPTS"].split()
    )
    rolling = {name.rpartition(".")[2]: value for name, value in options.items() if ".logs.rolling." in name}
    # Spark reads the size as a number of bytes alone.
    assert rolling == {"strategy": "size", "maxSize": str(10 << 20), "maxRetainedFiles": "3"}


def test_the_commands_of_the_guide_name_what_the_file_has() -> None:
    scripts = re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL)
    assert len(scripts) >= 3
    for script in scripts:
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
    written = set(re.findall(r"^(EVENKEEL_\w+)=", "\n".join(scripts), re.MULTILINE))
    assert set(GIVEN) <= written <= {one.name for one in placeholders(read_compose())}
    parts = {part for script in scripts for part in re.findall(r"(?<=[\s\"$])[a-z]+(?:-[a-z]+)?(?=[\s;)])", script)}
    assert {"api", "worker", "spark-worker", "spark-master", "migrate"} <= parts
    commands = set(re.findall(r"docker compose ([a-z]+)", GUIDE))
    assert commands <= {"build", "up", "run", "ps", "stop", "rm", "logs"}
    volumes = set(re.findall(r"docker volume rm evenkeel_([\w-]+)", GUIDE))
    assert volumes <= set(read_compose()["volumes"])
