"""Kafka's own admin client moves a partition of ours to another folder and watches it arrive."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.kafka.jars import JAVA, class_path
from tests.support.broker import Broker

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
