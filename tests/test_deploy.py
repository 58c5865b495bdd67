"""What ``examples/deploy`` and Dockerfiles say is what the code has: names, paths, flags, times."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import kubernetes_validate
import pytest
import uvicorn
import yaml
from gunicorn.config import Config
from prometheus_client import CollectorRegistry
from starlette.testclient import TestClient

from examples import gate
from gpu_admission import Admission
from gpu_admission.observe.families import Families
from gpu_admission.settings import from_environment, variable
from gpu_admission.sizes import parse_bytes
from tests.observe.programs import program
from tests.waiting import free_port, wait_for

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "deploy"
FILES = sorted(path for path in FOLDER.rglob("*") if path.is_file())
YAML = [path for path in FILES if path.suffix == ".yml"]
DOCKERFILES = [FOLDER / "Dockerfile", ROOT / "examples" / "qwen_service" / "Dockerfile"]
COMPOSE = [FOLDER / "compose.yml", FOLDER / "compose.gpu.yml", ROOT / "examples" / "workers" / "compose.yml"]
NEEDS_TORCH = "the chat service needs torch"
README = (FOLDER / "README.md").read_text(encoding="utf-8")


VARIABLES = {variable(name) for name in ("capacity", "max_waiting", "mode", "name", "shared", "timeout")}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def arguments(words: list[str]) -> Any:
    """The options of the chat service as it reads ``words``."""
    pytest.importorskip("torch", reason=NEEDS_TORCH)
    from examples.qwen_service.__main__ import arguments as parsed

    return parsed(words)


COMPOSED: dict[str, Any] = read(FOLDER / "compose.yml")["services"]
CLUSTER: dict[str, Any] = {
    each["kind"]: each for each in yaml.safe_load_all((FOLDER / "kubernetes.yml").read_text())
}
POD: dict[str, Any] = CLUSTER["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]
UNIT = (FOLDER / "qwen.service").read_text(encoding="utf-8")


def of_unit(name: str) -> list[str]:
    return re.findall(rf"^{name}=(.*)$", UNIT, flags=re.MULTILINE)


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


# schemas


@pytest.mark.parametrize("path", COMPOSE, ids=names)
def test_compose_files_follow_the_compose_specification(path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("kind", [kind for kind in CLUSTER if kind != "ScaledObject"])
def test_manifests_follow_the_schemas_of_kubernetes(kind: str) -> None:
    for version in ("1.30", "1.34"):
        kubernetes_validate.validate(CLUSTER[kind], version, strict=True)


def test_the_scaled_object_is_one_of_keda() -> None:
    scaled = CLUSTER["ScaledObject"]
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    assert scaled["spec"]["scaleTargetRef"]["name"] == CLUSTER["Deployment"]["metadata"]["name"]
    assert 0 < scaled["spec"]["minReplicaCount"] < scaled["spec"]["maxReplicaCount"]
    (trigger,) = scaled["spec"]["triggers"]
    assert trigger["type"] == "prometheus"
    assert set(trigger["metadata"]) == {"serverAddress", "query", "threshold"}
    assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA reads strings"


@pytest.mark.parametrize("path", DOCKERFILES, ids=names)
def test_dockerfiles_have_nothing_that_their_linter_minds(path: Path) -> None:
    lint = shutil.which("hadolint") or str(Path(sys.executable).with_name("hadolint"))
    if not Path(lint).exists():
        pytest.skip("hadolint is not installed")
    checked = subprocess.run([lint, str(path)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


def test_prometheus_takes_its_configuration_with_the_rules_that_are_mounted(tmp_path: Path) -> None:
    mounted = dict(volume.split(":")[:2] for volume in COMPOSED["prometheus"]["volumes"])
    for source, target in mounted.items():
        if source.startswith("."):
            shutil.copy(FOLDER / source, tmp_path / Path(target).name)
    command = [program("promtool"), "check", "config", "prometheus.yml"]
    checked = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_the_query_for_scaling_is_one(tmp_path: Path) -> None:
    query = CLUSTER["ScaledObject"]["spec"]["triggers"][0]["metadata"]["query"]
    rules = {"groups": [{"name": "scaling", "rules": [{"record": "demand_bytes", "expr": query}]}]}
    (tmp_path / "rules.yml").write_text(yaml.safe_dump(rules))
    command = [program("promtool"), "check", "rules", str(tmp_path / "rules.yml")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    verify = program("systemd-analyze")
    (tmp_path / "qwen.service").write_text(UNIT.replace("/opt/qwen/venv/bin/python", sys.executable))
    command = [verify, "verify", "--man=no", str(tmp_path / "qwen.service")]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    complaints = [line for line in checked.stderr.splitlines() if "qwen.service" in line]
    assert complaints == []


# names


def test_every_metric_that_is_named_exists() -> None:
    registry = CollectorRegistry()
    Families.of(registry)
    known = {family.name for family in registry.collect()}
    text = "".join(path.read_text(encoding="utf-8") for path in FILES)
    named = set(re.findall(r"\bgpu_admission_[a-z_]+", text))
    assert named
    assert named <= known, named - known


def environments() -> Iterator[dict[str, str]]:
    for path in COMPOSE:
        for each in read(path)["services"].values():
            yield {name: str(value) for name, value in each.get("environment", {}).items()}
    yield {each["name"]: each.get("value", "secret") for each in CONTAINER["env"]}
    yield dict(each.split("=", 1) for each in of_unit("Environment"))


def test_every_setting_in_an_environment_is_one_and_has_a_value_that_it_takes() -> None:
    taken = [from_environment(env) for env in environments()]
    assert sum(map(len, taken)) >= 8
    for settings in taken:
        Admission(estimator=1, **{"capacity": "1GiB", **settings})


def test_every_other_variable_is_read_somewhere() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "examples").rglob("*.py"))
    given = {name for env in environments() for name in env if not name.startswith(("GPU_ADMISSION_", "GF_"))}
    on_command_lines = set(re.findall(r"(?:^|\s)-e ([A-Z_]+)=", "".join(map(Path.read_text, DOCKERFILES))))
    for name in given | on_command_lines:
        assert f'"{name}"' in sources, f"{name} is set, and nobody reads it"


def test_every_variable_that_prose_names_is_a_setting() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in [*FILES, *DOCKERFILES])
    for name in set(re.findall(r"GPU_ADMISSION_[A-Z_]+", text)):
        assert name in VARIABLES


def test_every_file_that_is_mounted_copied_or_mentioned_is_there() -> None:
    for service_ in COMPOSED.values():
        for volume in service_.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (FOLDER / source).exists(), source
    for path in DOCKERFILES:
        for sources in re.findall(r"^COPY (.*) \S+$", path.read_text(), flags=re.MULTILINE):
            assert [name for name in sources.split() if not (ROOT / name).exists()] == []
    text = README + "".join(path.read_text(encoding="utf-8") for path in FILES)
    for name in set(re.findall(r"(?<![\w/.])examples/[\w./-]*\w", text)):
        assert (ROOT / name).exists(), name


def test_extras_that_are_installed_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    text = UNIT + README + "".join(map(Path.read_text, DOCKERFILES))
    asked = {
        name
        for group in re.findall(r"(?:package|gpu-admission)\[([\w,]+)\]", text)
        for name in group.split(",")
    }
    assert asked
    assert asked <= set(extras)


# paths


@pytest.fixture(scope="module")
def qwen() -> Iterator[TestClient]:
    pytest.importorskip("torch", reason=NEEDS_TORCH)
    from examples.qwen_service import app as service

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_ADMISSION_CAPACITY", "96MiB")
        with TestClient(service.build()) as client:
            yield client


def test_every_path_that_is_probed_or_scraped_answers(qwen: TestClient) -> None:
    probes = [CONTAINER[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")]
    annotations = CLUSTER["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    scraped = [
        annotations["prometheus.io/path"],
        read(FOLDER / "prometheus.yml")["scrape_configs"][0]["metrics_path"],
    ]
    for path in [*(probe["path"] for probe in probes), *scraped, *checked_by(DOCKERFILES[1])]:
        assert qwen.get(path, follow_redirects=False).status_code == 200, path
    with TestClient(gate.app) as client:
        for path in checked_by(DOCKERFILES[0]):
            assert client.get(path).status_code == 200, path


def checked_by(dockerfile: Path) -> list[str]:
    found = re.findall(r"http://127\.0\.0\.1:\d+(/[^']*)'", dockerfile.read_text())
    assert found
    return found


def test_what_is_scaled_on_is_told_by_the_service(qwen: TestClient) -> None:
    told = qwen.get("/metrics/").text
    query = CLUSTER["ScaledObject"]["spec"]["triggers"][0]["metadata"]["query"]
    for metric, budget in re.findall(r"(gpu_admission_\w+)\{budget=\"(\w+)\"\}", query):
        assert re.search(rf'^{metric}\{{budget="{budget}"', told, flags=re.MULTILINE), metric


def test_ports_are_those_that_are_listened_on() -> None:
    ports = {each["containerPort"] for each in CONTAINER["ports"]}
    assert ports == {arguments(CONTAINER["args"][3:]).port} == {8000}
    assert read(FOLDER / "prometheus.yml")["scrape_configs"][0]["dns_sd_configs"][0]["port"] == 8000
    assert COMPOSED["qwen"]["ports"] == ["8000-8001:8000"]


# command lines


def found_commands() -> Iterator[list[str]]:
    """Every command line that starts a server."""
    for path in DOCKERFILES:
        yield yaml.safe_load(re.findall(r"^CMD (\[.*\])$", path.read_text(), flags=re.MULTILINE)[-1])
    yield CONTAINER["args"]
    for line in of_unit("ExecStart"):
        yield shlex.split(line.replace("/opt/qwen/venv/bin/", ""))
    for line in re.findall(r"```sh\n(.*?)```", README, flags=re.DOTALL)[0].splitlines():
        yield [word for word in shlex.split(line) if not re.match(r"[A-Z_]+=", word)]


COMMANDS = list(found_commands())


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_line_is_understood_by_its_program(command: list[str]) -> None:
    program_, *words = command
    if program_ == "uvicorn":
        asked = uvicorn.main.make_context("uvicorn", words).params
        found, grace = asked["app"], asked["timeout_graceful_shutdown"]
    elif program_ == "gunicorn":
        parsed = Config().parser().parse_args(words)
        found, grace = parsed.args[0], parsed.graceful_timeout
        assert parsed.timeout >= 2 * grace, "up to half of it is over when a worker begins to stop"
    else:
        assert (program_, words[:2]) == ("python", ["-m", "examples.qwen_service"])
        found, grace = "examples.qwen_service.app:build", arguments(words[2:]).grace
    assert grace == 90
    module, _, name = found.partition(":")
    path = ROOT / f"{module.replace('.', '/')}.py"
    assert re.search(rf"^(def )?{name.removesuffix('()')}\b", path.read_text(), flags=re.MULTILINE)


def test_redis_takes_its_options(tmp_path: Path) -> None:
    name, *words = COMPOSED["redis"]["command"].split()
    command = [
        program(name),
        *words,
        "--port",
        "0",
        "--unixsocket",
        str(tmp_path / "s"),
        "--dir",
        str(tmp_path),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as redis:
        assert redis.stdout is not None
        assert any("ready to accept" in line.lower() for line in redis.stdout)
        redis.terminate()


def test_prometheus_has_the_flags_that_it_is_given() -> None:
    known = subprocess.run([program("prometheus"), "--help"], capture_output=True, text=True, check=False)
    for flag in re.findall(r"--([\w.-]+)", COMPOSED["prometheus"]["command"]):
        assert f"--{flag}" in known.stdout + known.stderr


# times and sizes


def test_nothing_is_killed_before_its_answer_may_have_ended() -> None:
    """``preStop``, the longest wait and the longest answer, one after the other."""
    settings = from_environment({each["name"]: each.get("value", "") for each in CONTAINER["env"]})
    stop = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    grace = arguments(CONTAINER["args"][3:]).grace
    answer = 60
    assert grace == settings["timeout"] + answer
    assert POD["terminationGracePeriodSeconds"] == stop + grace
    assert int(COMPOSED["qwen"]["stop_grace_period"].removesuffix("s")) > grace
    (command,), (limit,) = of_unit("ExecStart"), of_unit("TimeoutStopSec")
    assert int(limit) > arguments(shlex.split(command)[3:]).grace


def test_a_replica_is_added_when_four_fifths_of_the_others_are_asked_for() -> None:
    (capacity,) = [each["value"] for each in CONTAINER["env"] if each["name"] == "GPU_ADMISSION_CAPACITY"]
    threshold = CLUSTER["ScaledObject"]["spec"]["triggers"][0]["metadata"]["threshold"]
    assert int(threshold) == parse_bytes(capacity, name="capacity") * 8 // 10


# for real


@pytest.mark.slow
@pytest.mark.parametrize("line", [c for c in COMMANDS if c[0] in ("uvicorn", "gunicorn")], ids=" ".join)
def test_every_server_starts_answers_and_stops_in_peace(line: list[str], tmp_path: Path) -> None:
    port = free_port()
    words = [re.sub(r"\b(8000|9000)$", str(port), word) for word in line]
    if "--port" not in words and words[0] == "uvicorn":
        words += ["--port", str(port)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GPU_ADMISSION_SHARED": str(tmp_path / "gpu0")}
    with subprocess.Popen([sys.executable, "-m", *words], cwd=ROOT, env=environment) as server:
        try:
            wait_for(port, 90)
            own = "/gate" if "examples.gate:app" in words else ""
            assert httpx.get(f"http://127.0.0.1:{port}{own}/health/ready", timeout=30).json()["ready"]
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) in (0, -signal.SIGTERM)
        finally:
            server.kill()
