"""What the start of a broker does not import: each module costs CPU before the first answer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def imported_with(module: str) -> set[str]:
    code = f"import sys, tidelog.server.broker, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_broker_of_a_cluster_imports_the_controller_and_the_clients_when_it_needs_them() -> None:
    found = imported_with("tidelog.server.zookeeper_membership")
    assert "tidelog.controller.cluster_controller" in found
    assert not {name for name in found if name.startswith("tidelog.clients")}
    assert found.isdisjoint({"tidelog.controller.active_controller", "tidelog.controller.term"})


SECURITY = (
    "cryptography",
    "jwt",
    "tidelog.network.authentication_reader",
    "tidelog.network.tls_",
    "tidelog.security.acl",
    "tidelog.security.authorizer",
    "tidelog.security.delegation_tokens",
    "tidelog.security.exposure",
    "tidelog.security.password_encoder",
    "tidelog.security.sasl",
    "tidelog.security.scram",
    "tidelog.security.tls",
    "tidelog.server.apis.acls",
    "tidelog.server.apis.sasl",
    "tidelog.server.broker_security",
    "tidelog.server.telemetry.client_metrics",
    "tidelog.server.telemetry.otlp",
)


def test_a_plain_broker_that_serves_clients_imports_nothing_of_security(tmp_path: Path) -> None:
    code = f"""
import os, socket, sys
from tidelog.server import run

def announce(broker, ready_file):
    host, _, port = broker.address.rpartition(":")
    socket.create_connection((host, int(port)), 10).detach()
    look(broker)

def look(broker):
    if not broker._server.channels:
        broker._loop.call_soon(look, broker)
        return
    print(*sys.modules, flush=True)
    os._exit(0)

run._announce = announce
run.run_broker(None, {{"listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": {str(tmp_path)!r}}}, None, None)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = set(done.stdout.split())
    assert "tidelog.server.apis.produce" in found
    assert not {name for name in found if name.startswith(SECURITY)}
