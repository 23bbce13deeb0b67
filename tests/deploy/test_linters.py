"""The files of deploy/ by the linters of their formats. `make check-deploy` installs those from PyPI."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import Any

import pytest
import yaml

from tests.deploy.linters import PROGRAM
from tests.deploy.test_deploy import DEPLOY, KUBERNETES, manifests

KUBERNETES_VERSIONS = ("1.29", "1.33")
DASHBOARD = DEPLOY / "grafana" / "tidelog.json"


def run(*command: str) -> str:
    """The output of a linter, which has to accept the files."""
    done = subprocess.run(command, cwd=DEPLOY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_compose_file_is_one_by_the_schema_of_compose() -> None:
    pytest.importorskip("check_jsonschema", reason="make check-deploy installs it")
    run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "compose.yaml")


@pytest.mark.parametrize("version", KUBERNETES_VERSIONS)
def test_manifests_are_objects_of_kubernetes(version: str) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="make check-deploy installs it")
    for name, manifest in manifests().items():
        try:
            validator.validate(manifest, version, strict=True)
        except validator.ValidationError as error:
            pytest.fail(f"{name}: {error}")


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="needs kubectl")
def test_kubectl_renders_the_manifests() -> None:
    rendered = [*yaml.safe_load_all(run("kubectl", "kustomize", str(KUBERNETES)))]
    assert {f"{each['kind']}/{each['metadata']['name']}" for each in rendered} == set(manifests())


@pytest.mark.skipif(not PROGRAM.exists(), reason="make check-deploy builds dashboard-linter")
def test_grafanas_linter_accepts_the_dashboard() -> None:
    run(str(PROGRAM), "lint", "--strict", "--verbose", str(DASHBOARD))


def faults(dashboard: dict[str, Any]) -> list[str]:
    """What a reader of the dashboard misses: the rules of Grafana's linter that need no parser."""
    found = []
    variables = {each["name"]: each for each in dashboard["templating"]["list"]}
    for name in ("datasource", "job", "instance"):
        if not variables.get(name, {}).get("label"):
            found.append(f"variable {name}: no label")
    for name in ("job", "instance"):
        if not variables[name]["multi"] or variables[name]["allValue"] != ".+":
            found.append(f"variable {name}: not for several values")
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            continue
        title = panel["title"]
        if not panel.get("description"):
            found.append(f"{title}: no description")
        if not panel["fieldConfig"]["defaults"].get("unit"):
            found.append(f"{title}: no unit")
        for target in panel["targets"]:
            expression = target["expr"]
            for selector in re.findall(r"[a-z_]\w*\{([^}]*)\}", expression):
                found += [
                    f"{title}: no {label} in {{{selector}}}"
                    for label in ("job", "instance")
                    if f'{label}=~"${label}"' not in selector
                ]
            if re.search(r"\b(i?rate)\([^()]*\[(?!\$__rate_interval)", expression):
                found.append(f"{title}: rate without $__rate_interval")
            if target["datasource"]["uid"] != "${datasource}":
                found.append(f"{title}: a fixed data source")
    return found


def test_panels_say_what_they_show_and_follow_the_variables() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    assert faults(dashboard) == []
    # Each of the rules finds its fault.
    panel = next(each for each in dashboard["panels"] if "rate(" in str(each.get("targets")))
    del panel["description"], panel["fieldConfig"]["defaults"]["unit"]
    panel["targets"][0].update(expr='rate(a_total{job="x"}[5m])', datasource={"uid": "P1"})
    dashboard["templating"]["list"][0]["label"] = ""
    dashboard["templating"]["list"][1]["multi"] = False
    assert len(faults(dashboard)) == 8
