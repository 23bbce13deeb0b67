"""The files of deploy/ fit together: names, ports, settings and expressions that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import PROJECT
from tidelog.config.properties import parse_properties
from tidelog.server.config.broker_definition import broker_definition

DEPLOY = PROJECT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
NAME = {"app.kubernetes.io/name": "tidelog"}


def manifests() -> dict[str, dict[str, Any]]:
    """The objects of Kubernetes that kustomization.yaml names, by kind and name."""
    listed = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    assert {*listed, "kustomization.yaml"} == {path.name for path in KUBERNETES.iterdir()}
    found = [each for name in listed for each in yaml.safe_load_all((KUBERNETES / name).read_text())]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in found}


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = manifests()["StatefulSet/tidelog"]["spec"]["template"]["spec"]
    return spec


def test_settings_of_kubernetes_exist_and_have_values_that_can_be_used() -> None:
    text = manifests()["ConfigMap/tidelog"]["data"]["server.properties"]
    given = parse_properties(text)
    assert "metrics.listener" in given
    commented = parse_properties("\n".join(re.findall(r"^#   (\S+=\S+)$", text, re.MULTILINE)))
    assert "zookeeper.connect" in commented
    for setting, value in {**given, **commented}.items():
        key = broker_definition()[setting]
        assert key.served
        key.parse(value)


def test_services_and_budget_select_the_pods_of_the_stateful_set() -> None:
    found = manifests()
    stateful = found["StatefulSet/tidelog"]["spec"]
    assert stateful["selector"]["matchLabels"] == stateful["template"]["metadata"]["labels"] == NAME
    assert f"Service/{stateful['serviceName']}" in found
    assert found["Service/tidelog-brokers"]["spec"]["clusterIP"] == "None"
    assert found["PodDisruptionBudget/tidelog"]["spec"]["selector"]["matchLabels"] == NAME
    for name in ("Service/tidelog", "Service/tidelog-brokers"):
        assert found[name]["spec"]["selector"] == NAME


def test_ports_probes_and_folders_are_those_of_the_settings() -> None:
    [container] = pod()["containers"]
    settings = parse_properties(manifests()["ConfigMap/tidelog"]["data"]["server.properties"])
    ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
    assert settings["listeners"].endswith(":" + ports["kafka"])
    assert settings["metrics.listener"].endswith(":" + ports["metrics"])
    for probe in ("startupProbe", "readinessProbe"):
        assert container[probe]["httpGet"] == {"path": "/health", "port": "metrics"}
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert settings["log.dirs"].startswith(mounts["data"] + "/")
    assert "/etc/tidelog/server.properties" in container["args"][0]
    assert mounts["settings"] == "/etc/tidelog"
    user = re.search(r"--uid (\d+)", (PROJECT / "packaging" / "Dockerfile").read_text())
    assert user is not None
    assert pod()["securityContext"]["runAsUser"] == int(user[1])


def test_a_pod_starts_the_broker_of_its_number_at_its_own_address(tmp_path: Path) -> None:
    """The command of the container as a shell runs it, with a program that shows its arguments."""
    fake = tmp_path / "tidelog"
    fake.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    [container] = pod()["containers"]
    environment = {"HOSTNAME": "tidelog-2", "NAMESPACE": "shop", "PATH": f"{tmp_path}:/bin:/usr/bin"}
    command = [*container["command"], *container["args"]]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines() == [
        "start",
        "/etc/tidelog/server.properties",
        "--override",
        "broker.id=2",
        "--override",
        "advertised.listeners=PLAINTEXT://tidelog-2.tidelog-brokers.shop.svc:9092",
    ]


def test_the_compose_file_uses_files_settings_and_volumes_that_exist() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    services = compose["services"]
    build = services["tidelog"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
    command = services["tidelog"]["command"]
    assert command[::2] == ["--override"] * (len(command) // 2)
    for override in command[1::2]:
        name, _, value = override.partition("=")
        broker_definition()[name].parse(value)
    for service in services.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (DEPLOY / source).exists()
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    [job] = prometheus["scrape_configs"]
    assert job["static_configs"] == [{"targets": ["tidelog:9404"]}]
    [source] = yaml.safe_load((DEPLOY / "grafana" / "datasource.yaml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"


def test_panels_of_the_dashboard_do_not_overlap_and_have_expressions() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "tidelog.json").read_text())
    used: set[tuple[int, int]] = set()
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(ids) == len(set(ids)) > 25
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & used, panel["title"]
        used |= cells
        if panel["type"] != "row":
            assert all(target["expr"] for target in panel["targets"]), panel["title"]


def test_each_alert_has_a_severity_and_a_sentence_and_stands_on_the_page() -> None:
    [group] = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
    page = (PROJECT / "docs" / "deployment.md").read_text()
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]
        assert f"`{rule['alert']}`" in page


@pytest.mark.prometheus
@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs Debian's package prometheus")
@pytest.mark.parametrize(
    "command",
    [
        ("check", "rules", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
        ("check", "config", "prometheus.yml"),
    ],
    ids=lambda command: " ".join(command),
)
def test_promtool_accepts_rules_and_configuration(command: tuple[str, ...]) -> None:
    done = subprocess.run(
        ["promtool", *command], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
