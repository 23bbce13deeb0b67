"""The containers of deploy/ as processes, without an engine: commands, settings, environment and probes.

Ports and folders of the containers are replaced by free ones of this machine; nothing else is changed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.deploy.test_deploy import DEPLOY, manifests, pod
from tests.docs.pages import PROJECT
from tests.support.ports import free_ports
from tests.support.wait import answered, eventually
from tidelog import Admin, Consumer, NewTopic, Producer

DOCKERFILE = PROJECT / "packaging" / "Dockerfile"
START_SECONDS = 120.0


class Places:
    """What a container calls its ports and folders, and what they are here."""

    def __init__(self, folder: Path, ports: tuple[int, ...]) -> None:
        self._ports = dict(zip(ports, free_ports(len(ports)), strict=True))
        self._folders = {"/var/lib/tidelog": str(folder / "data"), "/etc/tidelog": str(folder / "etc")}
        for path in self._folders.values():
            Path(path).mkdir()

    def port(self, inside: int) -> int:
        return self._ports[inside]

    def here(self, text: str) -> str:
        """The text of a container with the ports and folders of this machine."""
        for inside, path in self._folders.items():
            text = text.replace(inside, path)
        return re.sub(r"(?<=:)\d{4}\b", lambda found: str(self._ports.get(int(found[0]), found[0])), text)

    def write_settings(self, text: str) -> None:
        Path(self._folders["/etc/tidelog"], "server.properties").write_text(self.here(text))


@contextmanager
def container(command: list[str], environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The process of a container; a broker that has not ended when the test does is killed."""
    tools = Path(sys.executable).parent
    inherited = {name: os.environ[name] for name in ("PYTHONPATH", "HOME", "LANG") if name in os.environ}
    path = f"{tools}:/usr/local/bin:/usr/bin:/bin"
    process = subprocess.Popen(command, env={**inherited, "PATH": path, **environment})
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def round_trip(address: str) -> bytes | None:
    """A record through a new topic, as a client of this machine sends and reads it."""
    with Admin(bootstrap_servers=address) as admin:
        admin.create_topics([NewTopic("orders", 1, 1)])
    with Producer(bootstrap_servers=address) as producer:
        producer.send("orders", b"hello").result(60)
    with Consumer(bootstrap_servers=address, auto_offset_reset="earliest") as consumer:
        consumer.assign([("orders", 0)])
        [record] = eventually(consumer.poll, "the record is read", timeout=60)
        return record.value


def metric(text: str, name: str) -> float:
    """The sum of the series of a metric at /metrics."""
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.MULTILINE))


def stopped(process: subprocess.Popen[bytes], seconds: float) -> int:
    """The exit code after the signal of the engine, within its patience."""
    process.send_signal(signal.SIGTERM)
    return process.wait(seconds)


def instruction(name: str) -> Any:
    """The words of an instruction of the Dockerfile that has a JSON list."""
    found = re.search(rf"^{name} .*?(\[.*\])$", DOCKERFILE.read_text().replace("\\\n", ""), re.MULTILINE)
    assert found is not None
    return json.loads(found[1])


def test_the_broker_of_the_compose_file_serves_clients_prometheus_and_the_console(tmp_path: Path) -> None:
    service = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]["tidelog"]
    places = Places(tmp_path, (9092, 9093, 9404, 8080))
    places.write_settings((PROJECT / "packaging" / "container.properties").read_text())
    command = [places.here(word) for word in instruction("ENTRYPOINT") + service["command"]]
    check = [sys.executable, *(places.here(word) for word in instruction("HEALTHCHECK")[1:])]
    with container(command, {"PYTHONUNBUFFERED": "1"}) as process:
        eventually(
            lambda: subprocess.run(check, capture_output=True, check=False).returncode == 0,
            "the container is healthy",
            timeout=START_SECONDS,
        )
        assert round_trip(f"localhost:{places.port(9092)}") == b"hello"
        prometheus = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
        [target] = prometheus["scrape_configs"][0]["static_configs"][0]["targets"]
        metrics = f"http://localhost:{places.here(target).rpartition(':')[2]}/metrics"
        eventually(
            lambda: metric(httpx.get(metrics).text, "tidelog_end_to_end_roundtrip_latency_seconds_count") > 0,
            "the canary's record makes its round",
            timeout=60,
        )
        page = answered(
            lambda: httpx.get(f"http://localhost:{places.port(8080)}/clusters/local/topics", timeout=60),
            "the console answers",
            (httpx.HTTPError,),
        )
        assert (page.status_code, "orders" in page.text) == (200, True)
        # A site that gives its own name to 127.0.0.1 reads nothing.
        strange = {"Host": f"attacker.example:{places.port(8080)}"}
        address = f"http://127.0.0.1:{places.port(8080)}/clusters/local/topics"
        assert httpx.get(address, headers=strange, timeout=60).status_code == 421
        assert stopped(process, 60) == 0


def test_a_pod_is_ready_by_its_probes_and_ends_on_the_signal(tmp_path: Path) -> None:
    [spec] = pod()["containers"]
    places = Places(tmp_path, (9092, 9404, 8080))
    places.write_settings(manifests()["ConfigMap/tidelog"]["data"]["server.properties"])
    ports = {port["name"]: places.port(port["containerPort"]) for port in spec["ports"]}
    command = [places.here(word) for word in spec["command"] + spec["args"]]
    # The name of a pod is only known in its cluster; here it is this machine.
    command[-1] = command[-1].replace("${HOSTNAME}.tidelog-brokers.${NAMESPACE}.svc", "localhost")
    with container(command, {"HOSTNAME": "tidelog-0", "NAMESPACE": "shop"}) as process:
        probe = spec["startupProbe"]["httpGet"]
        health = f"http://127.0.0.1:{ports[probe['port']]}{probe['path']}"
        answered(
            lambda: httpx.get(health, timeout=60).raise_for_status(),
            "the pod is ready",
            (httpx.HTTPError,),
            timeout=START_SECONDS,
        )
        socket.create_connection(("127.0.0.1", ports[spec["livenessProbe"]["tcpSocket"]["port"]])).close()
        assert round_trip(f"localhost:{ports['kafka']}") == b"hello"
        with Admin(bootstrap_servers=f"localhost:{ports['kafka']}") as admin:
            assert [node.id for node in admin.describe_cluster().nodes] == [0], "the number of the pod"
        assert stopped(process, 60) == 0
