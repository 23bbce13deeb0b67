"""What the dashboards of the field ask Prometheus, and what of it no broker of ours can answer.

tests/data/dashboards.json has the expressions of the panels of each dashboard; deploy/ has our own.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

PROJECT = Path(__file__).parents[2]
DATA = PROJECT / "tests" / "data" / "dashboards.json"

ABSENT = {
    r"container_.*|kubelet_.*": "Kubernetes measures its containers and volumes itself",
    r"zookeeper_.*": "ZooKeeper shows its own metrics",
    r"kafka_server_(sessionexpirelistener|zookeeperclientmetrics)_.*": "a broker alone has no ZooKeeper",
    r"tidelog_certificate_.*": "a broker without TLS has no certificates",
    r"kafka_tier_.*|kafka_log_log_tiersize": "there is no tiered storage",
    r"kafka_server_replicamanager_straypartitions.*": "Confluent Server alone has it",
    r"kafka_network_requestmetrics_deprecatedrequestspersec_.*": "no deprecated version is served",
    r"kafka_server_transaction_coordinator_metrics_(transaction_state_error_count"
    r"|prepare_commit_to_complete_commit_latency)": "Confluent Server alone has it",
}
"""Names of metrics that a broker does not have, with the reason that docs/metrics.md gives."""

OF_PROMETHEUS = {
    "container",
    "env",
    "instance",
    "job",
    "kubernetes_pod_name",
    "namespace",
    "persistentvolumeclaim",
    "pod",
    "strimzi_io_cluster",
    "strimzi_io_name",
}
"""Labels that the configuration of Prometheus adds."""

_NAME = re.compile(r"\b((?:kafka|jvm|process|container|kubelet|tidelog|zookeeper)_\w+)\s*(\{[^}]*\})?")
_LABEL_VALUES = re.compile(r"label_values\((\w+)(\{.*\})?, (\w+)\)")
_GIVEN = re.compile(r'(\w+)=~"\$(\w+)"')
_MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")


@dataclass(frozen=True)
class Variable:
    """A choice at the top of a dashboard: the values that a label has in the series of a metric.

    `given` has the labels that variables before it choose. Without a metric, all series count.
    """

    name: str
    metric: str
    given: dict[str, str]
    label: str


@dataclass(frozen=True)
class Dashboard:
    name: str
    dialect: str
    expressions: tuple[str, ...]
    variables: tuple[Variable, ...] = ()


def dashboards() -> list[Dashboard]:
    return [
        Dashboard(
            entry["dashboard"],
            entry["dialect"],
            tuple(entry["expressions"]),
            tuple(Variable(**variable) for variable in entry["variables"]),
        )
        for entry in json.loads(DATA.read_text())
    ]


def own_dashboard() -> Dashboard:
    found = json.loads((PROJECT / "deploy" / "grafana" / "tidelog.json").read_text())
    expressions = [target["expr"] for panel in found["panels"] for target in panel.get("targets", [])]
    variables = []
    for variable in found["templating"]["list"]:
        if variable["type"] == "query":
            asked = _LABEL_VALUES.fullmatch(variable["query"]["query"])
            assert asked is not None, variable
            given = dict(_GIVEN.findall(asked[2] or ""))
            variables.append(Variable(variable["name"], asked[1], given, asked[3]))
    return Dashboard("tidelog", "strimzi", tuple(expressions), tuple(variables))


def own_alerts() -> Dashboard:
    [group] = yaml.safe_load((PROJECT / "deploy" / "prometheus" / "rules.yml").read_text())["groups"]
    return Dashboard("tidelog-alerts", "strimzi", tuple(rule["expr"] for rule in group["rules"]))


def selected(expression: str) -> dict[str, set[str]]:
    """The metrics of an expression, each with the labels that its selectors name."""
    found: dict[str, set[str]] = {}
    for name, selector in _NAME.findall(expression):
        found.setdefault(name, set()).update(set(_MATCHER.findall(selector)) - OF_PROMETHEUS)
    return found


def why_absent(expression: str) -> str | None:
    """Why a broker has no data for an expression; None if it should have some."""
    if 'job="zookeeper"' in expression:
        return "ZooKeeper shows its own metrics"
    for name in selected(expression):
        for pattern, reason in ABSENT.items():
            if re.fullmatch(pattern, name):
                return reason
    return None
