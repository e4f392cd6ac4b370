"""Deployment files and the documents about them agree with the program."""

import json
import os
import re
import ssl
import subprocess
import sys
import tomllib
from configparser import ConfigParser
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

import penstock
from penstock.cli import cli
from penstock.contract.roles import ADMIN, ROLES
from penstock.http.server import Access, serve_in_thread, tokens
from tests.http.serving import ask, make_certificate

ROOT = Path(__file__).parent.parent
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()


def test_the_settings_of_the_example_are_settings() -> None:
    example = tomllib.loads((ROOT / "deploy" / "penstock.toml").read_text())
    assert set(example) == {"store", "serve"}
    assert set(example["serve"]) <= {option.name for option in cli.commands["serve"].params}


def test_the_unit_starts_the_server_with_that_file() -> None:
    unit = ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(ROOT / "deploy" / "penstock.service")
    assert unit["Service"]["ExecStart"].endswith("/penstock serve --config /etc/penstock/penstock.toml")
    assert unit["Service"]["ExecReload"] == "/bin/kill -HUP $MAINPID"


SERVE = cli.commands["serve"].params
VARIABLES = {
    name
    for option in [*cli.params, *SERVE]
    for name in ([option.envvar] if isinstance(option.envvar, str) else option.envvar or ())
}
FLAGS = {name for option in SERVE for name in option.opts}
CONTAINERFILE = (ROOT / "Containerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
SERVICE: dict[str, Any] = COMPOSE["services"]["penstock"]
RESOURCES: dict[str, Any] = {
    each["kind"]: each for each in yaml.safe_load_all((ROOT / "deploy" / "kubernetes.yaml").read_text())
}
POD: dict[str, Any] = RESOURCES["StatefulSet"]["spec"]["template"]["spec"]
CONTAINER: dict[str, Any] = POD["containers"][0]


def test_the_variables_of_the_image_are_settings() -> None:
    given = re.findall(r"\b(PENSTOCK_\w+)=", CONTAINERFILE)
    assert len(given) == 4
    assert set(given) <= VARIABLES


def test_the_image_is_made_of_a_wheel_and_runs_as_a_user_without_rights() -> None:
    assert "pip wheel" in CONTAINERFILE
    assert "/wheels/penstock-*.whl)[server]" in CONTAINERFILE
    user = re.search(r"^USER (\d+)$", CONTAINERFILE, re.MULTILINE)
    assert user is not None
    assert int(user[1]) == POD["securityContext"]["runAsUser"] > 0
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", CONTAINERFILE, re.MULTILINE):
        assert all((ROOT / each).exists() for each in source.split())


def test_the_compose_file_is_one() -> None:
    schema = json.loads(files("check_jsonschema").joinpath("builtin_schemas/vendor/compose-spec.json").read_text())
    jsonschema.validate(COMPOSE, schema)


@pytest.mark.parametrize("kind", ["Secret", "Service", "StatefulSet"])
def test_kubernetes_takes_each_resource(kind: str) -> None:
    kubernetes_validate.validate(RESOURCES[kind], kubernetes_validate.latest_version(), strict=True)


def test_both_start_the_server_with_settings_that_it_has() -> None:
    assert set(SERVICE["environment"]) <= VARIABLES
    assert {each["name"] for each in CONTAINER["env"]} <= VARIABLES
    for command, *flags in (SERVICE["command"], CONTAINER["args"]):
        assert command == "serve"
        assert {flag for flag in flags if flag.startswith("--")} <= FLAGS


def test_both_run_the_image_of_this_version() -> None:
    images = {each["image"] for each in [SERVICE, *POD["initContainers"], *POD["containers"]]}
    assert images == {f"penstock:{penstock.__version__}"}


def test_both_reach_the_port_on_which_the_server_listens() -> None:
    port = next(option.default for option in SERVE if option.name == "port")
    assert f"EXPOSE {port}" in CONTAINERFILE
    assert SERVICE["ports"] == [f"127.0.0.1:{port}:{port}"]
    assert CONTAINER["ports"] == [{"name": "http", "containerPort": port}]
    assert RESOURCES["Service"]["spec"]["ports"] == [{"name": "http", "port": port, "targetPort": "http"}]


def test_both_keep_the_store_on_a_volume_and_give_the_server_time_to_stop() -> None:
    compose = dict(each.split(":") for each in SERVICE["volumes"])
    kubernetes = {each["name"]: each["mountPath"] for each in CONTAINER["volumeMounts"]}
    (claim,) = RESOURCES["StatefulSet"]["spec"]["volumeClaimTemplates"]
    assert set(compose) == set(COMPOSE["volumes"])
    assert compose["data"] == kubernetes[claim["metadata"]["name"]] == "/data"
    assert compose["etc"] == kubernetes["etc"] == "/etc/penstock"
    assert (SERVICE["stop_grace_period"], POD["terminationGracePeriodSeconds"]) == ("2m", 120)
    assert RESOURCES["StatefulSet"]["spec"]["replicas"] == 1


def test_what_probes_ask_is_answered_without_a_token(tmp_path: Path) -> None:
    paths = {CONTAINER[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")}
    assert paths == {"/-/healthz", "/-/readyz"}
    tokens.create(str(tmp_path / "tokens"), "me", ADMIN)
    with penstock.open(tmp_path / "store") as store:
        server = serve_in_thread(store, access=Access(str(tmp_path / "tokens"), open_monitoring=True))
        try:
            assert {path: ask(server.url, path)[0] for path in (*paths, "/-/metrics", "/default")} == {
                "/-/healthz": 200, "/-/readyz": 200, "/-/metrics": 200, "/default": 401,
            }  # fmt: skip
        finally:
            server.stop()


def test_the_tokens_of_the_secret_are_a_token_file(tmp_path: Path) -> None:
    (file := tmp_path / "tokens").write_text(RESOURCES["Secret"]["stringData"]["tokens"])
    file.chmod(0o600)  # as the init container does
    assert POD["initContainers"][0]["command"][:3] == ["install", "-m", "600"]
    assert [token.name for token in tokens.read(str(file))] == ["example"]


@pytest.mark.parametrize("tls", [False, True])
def test_the_health_check_asks_the_server(tmp_path: Path, tls: bool) -> None:
    with penstock.open(tmp_path / "store") as store:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if tls:
            make_certificate(cert := str(tmp_path / "cert.pem"), key := str(tmp_path / "key.pem"))
            context.load_cert_chain(cert, key)
        server = serve_in_thread(store, tls=context if tls else None)
        try:
            assert health_check(server.url) == 0
        finally:
            server.stop()
    assert health_check(server.url) == 1


def health_check(url: str) -> int:
    """The exit code of what the image and the compose file call."""
    script = "/opt/penstock/healthcheck.py"
    assert SERVICE["healthcheck"]["test"] == ["CMD", "python", script]
    assert f'CMD ["python", "{script}"]' in CONTAINERFILE
    assert f"COPY deploy/healthcheck.py {script}" in CONTAINERFILE
    port = url.rpartition(":")[2]
    command = [sys.executable, str(ROOT / "deploy" / "healthcheck.py")]
    nowhere = "http://127.0.0.1:1"  # a proxy of the machine's, which must not be asked
    return subprocess.run(
        command, env={**os.environ, "PENSTOCK_SERVE_PORT": port, "http_proxy": nowhere, "https_proxy": nowhere}
    ).returncode


@pytest.mark.parametrize("flag", [option.opts[0] for option in cli.commands["serve"].params])
def test_every_setting_is_in_the_document(flag: str) -> None:
    assert flag == "--json" or f"`{flag}" in OPERATIONS


def test_every_role_is_in_the_document() -> None:
    text = (ROOT / "docs" / "http.md").read_text()
    assert all(f"| `{role}` |" in text for role in ROLES)
