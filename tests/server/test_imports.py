"""What the start of a broker in a cluster does not import: each module costs CPU before the first answer."""

from __future__ import annotations

import subprocess
import sys


def imported_with(module: str) -> set[str]:
    code = f"import sys, tidelog.server.broker, {module}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_a_broker_of_a_cluster_imports_the_controller_and_the_clients_when_it_needs_them() -> None:
    found = imported_with("tidelog.server.zookeeper_membership")
    assert "tidelog.controller.cluster_controller" in found
    assert not {name for name in found if name.startswith("tidelog.clients")}
    assert found.isdisjoint({"tidelog.controller.active_controller", "tidelog.controller.term"})
