"""Kafka's tools move all partitions of a broker of ours to a new one, and elect leaders, under load."""

from __future__ import annotations

import json
from pathlib import Path

from tests.kafka.jars import run_tool
from tests.replication.elastic_cluster import ElasticCluster
from tests.replication.load import BULK, BULK_BYTES, ClientLoad
from tests.support.wait import eventually, patience

TOOLS = "org.apache.kafka.tools."
REASSIGN = TOOLS + "reassign.ReassignPartitionsCommand"
ELECT = TOOLS + "LeaderElectionCommand"
DESCRIBE = TOOLS + "TopicCommand"
UNDER_REPLICATED = "--under-replicated-partitions"


def tool(cluster: ElasticCluster, name: str, *arguments: str) -> str:
    done = run_tool("kafka3", name, "--bootstrap-server", cluster.bootstrap, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_broker_is_replaced(tmp_path: Path) -> None:
    topics, plan = tmp_path / "topics.json", tmp_path / "proposal.json"
    file = ("--reassignment-json-file", str(plan))
    with ElasticCluster(tmp_path) as cluster, ClientLoad(cluster, tmp_path / "load") as load:
        cluster.add(4).start()
        cluster.await_members()
        named = [{"topic": topic} for topic in sorted({topic for topic, _ in cluster.partitions()})]
        topics.write_text(json.dumps({"version": 1, "topics": named}))
        flags = ("--topics-to-move-json-file", str(topics), "--broker-list", "2,3,4")
        proposal = tool(cluster, REASSIGN, "--generate", *flags).strip().splitlines()[-1]
        plan.write_text(proposal)
        wanted = {
            (entry["topic"], entry["partition"]): entry["replicas"]
            for entry in json.loads(proposal)["partitions"]
        }

        # Begun slowly, cancelled, and begun again.
        tool(cluster, REASSIGN, "--execute", *file, "--throttle", "100000")
        # Adding replicas do not count.
        assert tool(cluster, DESCRIBE, "--describe", "--topic", BULK, UNDER_REPLICATED).strip() == ""
        assert f"Reassignment of partition {BULK}-0 is still in progress." in tool(
            cluster, REASSIGN, "--verify", *file
        )
        tool(cluster, REASSIGN, "--cancel", *file)
        assert cluster.moving() == set()
        load.go_on()
        tool(cluster, REASSIGN, "--execute", *file, "--throttle", str(BULK_BYTES))

        def is_completed() -> bool:
            return "is still in progress" not in tool(cluster, REASSIGN, "--verify", *file)

        eventually(is_completed, "all partitions are moved", patience(90.0), 0.5)
        cluster.await_moved(wanted)
        cluster.await_in_sync()
        assert tool(cluster, DESCRIBE, "--describe", UNDER_REPLICATED).strip() == ""
        tool(cluster, ELECT, "--election-type", "preferred", "--all-topic-partitions")
        leaders = {key: one.leader for key, one in cluster.partitions().items()}
        assert leaders == {key: replicas[0] for key, replicas in wanted.items()}
        cluster.await_empty(1)
        assert cluster[1].terminate(patience(30.0)) == 0
        cluster.await_members()
        load.finish()
