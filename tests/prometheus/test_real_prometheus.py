"""A real Prometheus scrapes a loaded broker and evaluates every expression of the field's dashboards."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.prometheus.dashboards import Dashboard, Variable, dashboards, own_dashboard, why_absent
from tests.prometheus.loaded_broker import loaded_broker
from tests.server.scrape import metrics_url
from tests.support.ports import free_port
from tests.support.wait import eventually

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="needs Debian's package prometheus"),
]

SCRAPES = 4
"""How many scrapes there are before the queries: a rate needs two, and the second of the newest values."""


@dataclass
class Prometheus:
    url: str
    target: str
    cluster: str

    def ask(self, expression: str) -> list[object]:
        query = urllib.parse.urlencode({"query": expression})
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{query}", timeout=30) as answer:
            body = json.load(answer)
        assert body["status"] == "success"
        return list(body["data"]["result"])

    def values(self, variable: Variable, chosen: dict[str, str]) -> set[str]:
        """The values that a variable offers after the choices before it, as Grafana asks for them."""
        if not variable.metric:
            path = f"label/{variable.label}/values"
        else:
            matchers = [f'{label}="{chosen[name]}"' for label, name in variable.given.items()]
            selector = f"{variable.metric}{{{','.join(matchers)}}}"
            path = "series?" + urllib.parse.urlencode({"match[]": selector})
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}", timeout=30) as answer:
            found = json.load(answer)["data"]
        return set(found) if not variable.metric else {series.get(variable.label, "") for series in found}

    def filled(self, expression: str) -> str:
        """An expression with a value for each variable of its dashboard."""
        values = {
            "instance": self.target,
            "broker_id": ".*",
            "cluster_name": self.cluster,
            "env": "test",
            "job": "kafka",
            "kubernetes_namespace": "shop",
            "strimzi_cluster_name": "tide",
            "kafka_broker": "kafka-0",
            "__rate_interval": "1m",
        }

        def value(found: re.Match[str]) -> str:
            return values.get(found[1], ".*")

        # These panels are empty while nobody is throttled: the series behind the comparison has to be there.
        shown = expression.removesuffix("> 0") if "throttle_time" in expression else expression
        return re.sub(r"\$\{?(\w+)\}?", value, shown)


def configuration(target: str) -> dict[str, object]:
    """Two jobs for one broker, with the labels that the dashboards expect from Prometheus."""
    strimzi = {
        "namespace": "shop",
        "strimzi_io_cluster": "tide",
        "strimzi_io_name": "tide-kafka",
        "kubernetes_pod_name": "tide-kafka-0",
        "container": "kafka",
    }
    return {
        "global": {"scrape_interval": "3s", "scrape_timeout": "3s"},
        "scrape_configs": [
            {"job_name": "kafka", "static_configs": [{"targets": [target], "labels": strimzi}]},
            {
                "job_name": "kafka-broker",
                "params": {"dialect": ["confluent"]},
                "static_configs": [{"targets": [target], "labels": {"env": "test"}}],
            },
        ],
    }


@contextmanager
def running(folder: Path, target: str, cluster: str) -> Iterator[Prometheus]:
    config = folder / "prometheus.yml"
    config.write_text(yaml.safe_dump(configuration(target)))
    port = free_port()
    command = [
        "prometheus",
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        prometheus = Prometheus(f"http://127.0.0.1:{port}", target, cluster)

        def is_up() -> bool:
            try:
                return len(prometheus.ask("up == 1")) == 2
            except OSError:
                return False

        eventually(is_up, "Prometheus has scraped both dialects", timeout=180.0)
        yield prometheus
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    with loaded_broker(folder / "broker") as (broker, load):
        url = metrics_url(broker)
        target = urllib.parse.urlsplit(url).netloc
        with urllib.request.urlopen(url + "?dialect=confluent", timeout=30) as answer:
            cluster = re.search(r'cluster_name="([^"]+)"', answer.read().decode())
        assert cluster is not None
        with running(folder, target, cluster[1]) as started:

            def enough() -> bool:
                load.step()
                scrapes = started.ask("min(count_over_time(up[5m]))")
                return bool(scrapes) and int(scrapes[0]["value"][1]) >= SCRAPES  # type: ignore[index]

            eventually(enough, "enough scrapes", timeout=300.0)
            yield started


@pytest.mark.parametrize("dashboard", [*dashboards(), own_dashboard()], ids=lambda dashboard: dashboard.name)
def test_every_panel_of_a_dashboard_has_data(dashboard: Dashboard, prometheus: Prometheus) -> None:
    wrong: list[str] = []
    shown = 0
    for expression in dashboard.expressions:
        reason = why_absent(expression)
        found = bool(prometheus.ask(prometheus.filled(expression)))
        shown += found
        if found == (reason is not None):
            wrong.append(f"{'data' if found else 'no data'}: {expression}")
    print(f"{dashboard.name}: {shown} of {len(dashboard.expressions)} expressions have data")
    assert wrong == []


@pytest.mark.parametrize("dashboard", [*dashboards(), own_dashboard()], ids=lambda dashboard: dashboard.name)
def test_every_variable_of_a_dashboard_has_a_value(dashboard: Dashboard, prometheus: Prometheus) -> None:
    chosen: dict[str, str] = {}
    for variable in dashboard.variables:
        offered = prometheus.values(variable, chosen) - {""}
        if variable.name == "user":
            assert offered == set(), "nobody logs in to this broker, so that no series names a user"
            continue
        assert offered, f"${variable.name} offers nothing after {chosen}"
        chosen[variable.name] = min(offered)
    assert {name for each in dashboard.variables for name in each.given.values()} <= chosen.keys()
