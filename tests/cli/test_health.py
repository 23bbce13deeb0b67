"""`tidelog health`: reasons, exit code 10, and waiting for a healthy cluster."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner

from tests.cli.client_tools import Tool, tool
from tidelog.cli.cluster_health import ClusterHealth, Reason, folder_reasons, state_reasons
from tidelog.cli.cluster_status import BrokerStatus, ClusterStatus
from tidelog.cli.main import main
from tidelog.clients.admin.cluster import LogDirDescription
from tidelog.errors import KafkaStorageError, NetworkException

__all__ = ["tool"]


def test_a_healthy_cluster(tool: Tool) -> None:
    result = tool("health", "--disk-free", "0")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("healthy: cluster ")
    waited = tool("health", "--exit-when-healthy", "--disk-free", "0", "--output", "json")
    assert json.loads(waited.stdout)["healthy"] is True


def test_an_unhealthy_cluster_ends_with_10(tool: Tool) -> None:
    result = tool("health", "--disk-free", "100", "--output", "json")  # no disk is that empty
    assert result.exit_code == 10
    found = json.loads(result.stdout)
    assert found["healthy"] is False
    assert {reason["code"] for reason in found["reasons"]} == {"disk-nearly-full"}
    text = tool("health", "--disk-free", "100")
    assert text.exit_code == 10
    assert "the disk of a log folder is nearly full: /" in text.stdout


def test_no_answer_is_a_failure_and_not_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.cli.health.TIMEOUT_MS", 500)
    result = CliRunner().invoke(main, ["health", "--bootstrap-server", "127.0.0.1:1"])
    assert result.exit_code == 1


def test_who_watches_sees_a_cluster_go_and_come_back(tool: Tool, monkeypatch: pytest.MonkeyPatch) -> None:
    fine = ClusterHealth("c", 1, (1,), 0, 0, ())
    answers = iter(
        [replace(fine, reasons=(Reason("offline", "1 partitions are offline"),)), None, None, fine]
    )

    def answer(*_: object) -> ClusterHealth:
        found = next(answers)
        if found is None:
            raise NetworkException("no broker answered")
        return found

    monkeypatch.setattr("tidelog.cli.cluster_health.ask_health", answer)
    result = tool("health", "--exit-when-healthy", "--interval", "0.05")
    assert result.exit_code == 0, result.output
    states = [line for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert [line.partition(":")[0] for line in states] == ["unhealthy", "unhealthy", "healthy"]
    assert "no broker answered" in result.stdout, "and only once, though it was asked twice"


def test_reasons_of_a_cluster() -> None:
    brokers = [BrokerStatus(1, "a:1", None, 1, 1, 0), BrokerStatus(2, None, None, 0, 1, 1)]
    status = ClusterStatus("c", None, brokers, 1, 2, ["t-0"], ["t-0", "t-1"])
    assert [(each.code, each.where) for each in state_reasons(status)] == [
        ("no-controller", ()),
        ("brokers-down", ("2",)),
        ("offline", ("t-0",)),
        ("under-replicated", ("t-0", "t-1")),
    ]
    fine = ClusterStatus("c", 1, brokers[:1], 1, 2, [], [])
    assert list(state_reasons(fine)) == []


def test_reasons_of_log_folders() -> None:
    def folder(total: int | None, usable: int | None, failed: bool = False) -> LogDirDescription:
        return LogDirDescription("/d", KafkaStorageError() if failed else None, {}, total, usable, False)

    assert [each.code for each in folder_reasons(1, [folder(100, 5)], 10)] == ["disk-nearly-full"]
    assert [each.code for each in folder_reasons(1, [folder(None, None, True)], 10)] == ["failed-log-dir"]
    assert list(folder_reasons(1, [folder(100, 50), folder(None, None)], 10)) == []


def test_long_lists_are_cut_and_names_are_escaped() -> None:
    reason = Reason("offline", "many", tuple(f"t\x1b-{index}" for index in range(12)))
    assert reason.text().endswith("t\\x1b-9 and 2 more")
    assert ClusterHealth("c", 1, (1,), 0, 0, (reason,)).healthy is False
