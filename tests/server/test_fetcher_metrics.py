"""The metrics of replica fetchers have Kafka's names."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.scripted_leader import Follower, batches, data
from tidelog.errors import ErrorCode
from tidelog.metrics.prometheus import render
from tidelog.metrics.registry import Registry
from tidelog.server.fetcher_metrics import FetcherMetrics

MANAGER = "kafka_server_replicafetchermanager_"
OF_MANAGER = '{clientId="Replica"}'
FETCHER = 'clientId="ReplicaFetcherThread-0-1"'


def scrape(registry: Registry) -> dict[str, float]:
    lines = [line.rpartition(" ") for line in render(registry).splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in lines}


def find(found: dict[str, float], start: str, *parts: str) -> float:
    (value,) = [
        value for name, value in found.items() if name.startswith(start) and all(p in name for p in parts)
    ]
    return value


def test_lag_bytes_and_failed_partitions_are_shown(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    registry = Registry()
    FetcherMetrics(registry, follower.manager)
    sent = batches((0, 2, 0))

    async def test() -> None:
        follower.manager.add([follower.follow(index) for index in range(2)])
        partition = follower.world.replicas.partition("t", 0)
        partition.adding = [0]
        await follower.asked()
        fenced = data(index=1, error=ErrorCode.FENCED_LEADER_EPOCH)
        await follower.answered(data(sent, hw=7), fenced)
        found = scrape(registry)
        assert found[MANAGER + "maxlag" + OF_MANAGER] == 5
        assert found[MANAGER + "failedpartitionscount" + OF_MANAGER] == 1
        assert found[MANAGER + "deadthreadcount" + OF_MANAGER] == 0
        assert MANAGER + "minfetchrate" + OF_MANAGER in found
        assert find(found, "kafka_server_fetcherlagmetrics_consumerlag", FETCHER, 'partition="0"') == 5
        for name in ("replicationbytesin", "reassignmentbytesin"):
            assert find(found, f"kafka_server_brokertopicmetrics_{name}_total") == len(sent)
        assert find(found, "kafka_server_fetcherstats_bytes_total", FETCHER) == len(sent)
        assert (
            find(found, "kafka_server_fetcherstats_requests_total", FETCHER, 'brokerPort="9092"') == 1
        )
        follower.manager.remove([("t", 0)])
        follower.manager.end_idle()
        scrape(registry)  # the families notice that it has ended
        assert not [name for name in scrape(registry) if FETCHER in name]

    follower.run(test())


def test_a_fetcher_that_begins_again_before_the_next_scrape_is_shown(tmp_path: Path) -> None:
    follower = Follower(tmp_path)
    registry = Registry()
    FetcherMetrics(registry, follower.manager)

    async def test() -> None:
        follower.manager.add([follower.follow()])
        await follower.answered(data(batches((0, 2, 0))))
        follower.manager.remove([("t", 0)])
        follower.manager.end_idle()
        follower.manager.add([follower.follow(epoch=1)])
        scrape(registry)
        assert find(scrape(registry), "kafka_server_fetcherstats_bytes_total", FETCHER) == 0

    follower.run(test())
