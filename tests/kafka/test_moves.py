"""Kafka's own admin client and its tool move a partition of ours to another folder and watch it arrive."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.kafka.jars import JAVA, class_path, run_tool
from tests.support.broker import Broker
from tests.support.wait import eventually
from tidelog import Admin, NewTopic

REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"

PROGRAM = """
import java.util.*;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.*;

public class Move {
  public static void main(String[] given) throws Exception {
    try (Admin admin = Admin.create(Map.<String, Object>of("bootstrap.servers", given[0]))) {
      admin.createTopics(List.of(new NewTopic("t", 1, (short) 1))).all().get();
      TopicPartitionReplica replica = new TopicPartitionReplica("t", 0, 1);
      System.out.println(admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica));
      admin.alterReplicaLogDirs(Map.of(replica, given[1])).all().get();
      for (int look = 0; look < 300; look++) {
        var found = admin.describeReplicaLogDirs(List.of(replica)).all().get().get(replica);
        if (given[1].equals(found.getCurrentReplicaLogDir())) {
          System.out.println(found);
          return;
        }
        Thread.sleep(100);
      }
    }
  }
}
"""


def test_kafkas_admin_client_moves_a_partition(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    program = tmp_path / "Move.java"
    program.write_text(PROGRAM)
    with Broker(tmp_path, {"log.dirs": f"{a},{b}", "broker.id": "1"}) as broker:
        command = [*JAVA, "-cp", class_path("kafka4"), str(program), broker.bootstrap, str(b)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"ReplicaLogDirInfo(currentReplicaLogDir={folder})" for folder in (a, b)]


def test_kafkas_reassignment_tool_moves_a_partition(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    wanted = {"topic": "t", "partition": 0, "replicas": [1], "log_dirs": [str(b)]}
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps({"version": 1, "partitions": [wanted]}))
    with Broker(tmp_path, {"log.dirs": f"{a},{b}", "broker.id": "1"}) as broker:

        def tool(*arguments: str) -> str:
            done = run_tool("kafka4", REASSIGN, "--bootstrap-server", broker.bootstrap, *arguments)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        with Admin(bootstrap_servers=broker.bootstrap) as admin:
            admin.create_topics([NewTopic("t", 1)])
        assert (a / "t-0").is_dir()
        tool("--reassignment-json-file", str(plan), "--execute")
        eventually(lambda: (b / "t-0").is_dir() and not (a / "t-0").exists(), "the partition has moved")
        assert "t-0-1 completed successfully" in tool("--reassignment-json-file", str(plan), "--verify")
        assert "No partition reassignments found" in tool("--list")
