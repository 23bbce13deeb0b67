"""Clusters of three brokers on one ZooKeeper: creation of topics, failover, idle cost, start, produce."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import load
import workloads
from broker import TIDELOG, Broker, BrokerFailed
from kazoo.client import KazooClient
from load import Load
from report import Figure
from suite import Bench, Skipped
from targets import figure
from wire import ClusterView

from cluster import Cluster, cluster_of

PARTITIONS = 1_000
DUE_US = 5_000
IDLE_SECONDS = 30.0
SETTLED_SECONDS = 5.0
ELECTION_TIMEOUT = 60.0
BATCHES = 2_000


def create(bench: Bench) -> list[Figure]:
    """1,000 topics through one request, then one topic of 1,000 partitions, with small requests beside each.

    The time ends when every broker knows the leaders of all new partitions. Brokers learn of their own
    leaderships before.
    """
    bench.needs_own_broker()
    count = bench.scaled(PARTITIONS)
    names = [f"many-{index}" for index in range(count)]
    topics = _Creation("topics", lambda cluster: _create_topics(cluster, names), None, count)
    partitions = _Creation("partitions", lambda cluster: _create_partitions(cluster, count), ["large"], count)
    for _ in range(2 if bench.quick else 3):
        topics.measure(bench)
        partitions.measure(bench)
    return [*topics.figures(), *partitions.figures()]


def _create_topics(cluster: Cluster, names: list[str]) -> None:
    with cluster.client_of_controller() as client:
        client.create_topics(names)


def _create_partitions(cluster: Cluster, count: int) -> None:
    with cluster.client_of_controller() as client:
        client.create_topic("large", count)


class _Creation:
    """The rounds of one kind of creation, each on a new cluster. `topics` are created, None for all."""

    def __init__(
        self, kind: str, work: Callable[[Cluster], None], topics: list[str] | None, count: int
    ) -> None:
        self._kind = kind
        self._work = work
        self._topics = topics
        self._count = count
        self._times: list[float] = []
        self._answers: list[float] = []
        self._cpu: list[float] = []
        self._p99: list[float] = []
        self._max: list[float] = []

    def measure(self, bench: Bench) -> None:
        with cluster_of(bench.source) as cluster, _produced_beside(cluster, bench.warmup) as loads:
            cpu, begun = cluster.cpu(), time.monotonic()
            self._work(cluster)
            self._answers.append(time.monotonic() - begun)
            cluster.await_leaders(self._count, self._topics)
            self._times.append(time.monotonic() - begun)
            self._cpu.append(cluster.cpu() - cpu)
        # The slowest broker counts.
        self._p99.append(max(done.p99_us for done in loads) / 1000)
        self._max.append(max(done.max_us for done in loads) / 1000)

    def figures(self) -> list[Figure]:
        answer, cpu = statistics.median(self._answers), statistics.median(self._cpu)
        return [
            figure(
                f"create {self._kind}", self._times, f"answer after {answer:.2f} s, {cpu:.2f} CPU-s in sum"
            ),
            figure(
                f"create {self._kind} beside",
                self._p99,
                f"the slowest of 3 brokers; longest {statistics.median(self._max):.1f} ms",
            ),
        ]


@contextmanager
def _produced_beside(cluster: Cluster, warmup: int) -> Iterator[list[Load]]:
    """One-record requests to a topic on each broker, one due every 5 ms. The list gets their results."""
    results: list[Load] = []
    for broker_id, broker in cluster.brokers.items():
        topic = cluster.topic_on(f"beside-{broker_id}", broker_id)
        workloads.one_connection(broker, topic, 1_000 * warmup)
    processes = [
        load.start(broker, "latency", topic=f"beside-{broker_id}", interval_us=DUE_US, seconds=300)
        for broker_id, broker in cluster.brokers.items()
    ]
    try:
        yield results
    finally:
        for process in processes:
            process.terminate()
        results += [load.finish(process) for process in processes]


def failover(bench: Bench) -> list[Figure]:
    """A controller that takes over 1,000 partitions after the previous one was killed.

    The time begins when /controller is created (ZooKeeper's clock, in milliseconds). It ends when both other
    brokers name the new controller and have the new leader epochs of the partitions that lost their leader.
    """
    bench.needs_own_broker()
    count = bench.scaled(PARTITIONS)
    times: list[float] = []
    cpu: list[float] = []
    for _ in range(2 if bench.quick else 3):
        with cluster_of(bench.source) as cluster:
            topic = cluster.topic("large", count)
            seconds, used = _take_over(cluster, topic)
        times.append(seconds)
        cpu.append(used)
    note = f"{statistics.median(cpu):.2f} CPU-s of both brokers since the kill"
    return [figure("failover", times, note)]


def _take_over(cluster: Cluster, topic: str) -> tuple[float, float]:
    killed = cluster.controller
    with cluster.client_of_controller() as client:
        view = client.cluster([topic])
    lost = [partition for partition, leader in view.leaders.items() if leader == killed]
    zookeeper = KazooClient(cluster.zookeeper)
    zookeeper.start()
    try:
        former = zookeeper.exists("/controller").czxid
        cluster.kill(killed)
        before = cluster.cpu()
        deadline = time.monotonic() + ELECTION_TIMEOUT
        while not (found := zookeeper.exists("/controller")) or found.czxid == former:
            if time.monotonic() > deadline:
                raise BrokerFailed(f"no controller was elected within {ELECTION_TIMEOUT:.0f} s")
            time.sleep(0.005)
    finally:
        zookeeper.stop()
        zookeeper.close()
    elected = found.ctime / 1000

    def is_told(now: ClusterView) -> bool:
        is_elected = now.controller not in (killed, -1)
        return is_elected and all(now.leader_epochs[one] > view.leader_epochs[one] for one in lost)

    cluster.await_all(is_told, [topic])
    return time.time() - elected, cluster.cpu() - before


def idle(bench: Bench) -> list[Figure]:
    """CPU of three brokers without clients, and their memory."""
    bench.needs_own_broker()
    count, seconds = bench.scaled(PARTITIONS), 4.0 if bench.quick else IDLE_SECONDS
    shares: list[float] = []
    resident: list[float] = []
    with cluster_of(bench.source) as cluster:
        cluster.topic("large", count)
        time.sleep(SETTLED_SECONDS * bench.warmup)
        for _ in range(2):
            before, begun = cluster.cpu(), time.monotonic()
            time.sleep(seconds)
            shares.append(100 * (cluster.cpu() - before) / (time.monotonic() - begun))
            resident.append(max(broker.resident_mb() for broker in cluster.brokers.values()))
        each = ", ".join(f"{broker.resident_mb():.0f}" for broker in cluster.brokers.values())
    return [
        figure("idle cluster", shares, f"over {seconds:.0f} s, without ZooKeeper's process"),
        figure("idle cluster memory", resident, f"{each} MB"),
    ]


def start(bench: Bench) -> list[Figure]:
    """A broker that joins the others again, from the start of its process to its first answer."""
    bench.needs_own_broker()
    times: list[float] = []
    cpu: list[float] = []
    with cluster_of(bench.source) as cluster:
        joining = max(cluster.brokers)
        for _ in range(bench.rounds):
            cluster.stop(joining)
            times.append(cluster.start(joining))
            cpu.append(cluster.brokers[joining].cpu())
            cluster.await_members()
    return [figure("cluster start", times, f"{statistics.median(cpu):.2f} CPU-s")]


def produce(bench: Bench) -> list[Figure]:
    """CPU of small requests on a broker of a cluster, in turns with a single broker."""
    bench.needs_own_broker()
    if bench.source.command != TIDELOG:
        raise Skipped("compares with a broker that needs no ZooKeeper")
    requests = bench.scaled(50_000)
    costs: dict[tuple[str, str], list[float]] = {}
    with cluster_of(bench.source) as cluster, bench.source.broker() as alone:
        member = next(broker for id, broker in cluster.brokers.items() if id != cluster.controller)
        member_id = next(id for id, broker in cluster.brokers.items() if broker is member)
        topic = cluster.topic_on("small", member_id)
        works = {
            "member": _small_requests(member, topic, requests),
            "alone": _small_requests(alone, alone.topic("small"), requests),
        }
        brokers = {"member": member, "alone": alone}
        for round_ in range(bench.rounds + 1):
            for kind in ("produce", "fetch"):
                for place in works if round_ % 2 else reversed(works):
                    before = brokers[place].cpu()
                    works[place][kind]()
                    used = (brokers[place].cpu() - before) / requests * 1e6
                    if round_:  # the first round warms up
                        costs.setdefault((kind, place), []).append(used)
    return [_ratio(kind, costs[kind, "member"], costs[kind, "alone"]) for kind in ("produce", "fetch")]


def _small_requests(broker: Broker, topic: str, requests: int) -> dict[str, Callable[[], Load]]:
    load.run(broker, "produce", topic=topic, requests=BATCHES)
    return {
        "produce": lambda: workloads.one_record(broker, topic, requests),
        "fetch": lambda: load.run(
            broker,
            "fetch",
            topic=topic,
            connections=16,
            requests=requests,
            to=BATCHES,
            max_bytes=1,
            random=True,
        ),
    }


def _ratio(kind: str, member: list[float], alone: list[float]) -> Figure:
    ratios = [one / other for one, other in zip(member, alone, strict=True)]
    note = f"{statistics.median(member):.1f} us against {statistics.median(alone):.1f}"
    return figure(f"cluster {kind}", ratios, note)
