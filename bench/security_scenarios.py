"""What logins by SCRAM over TLS, handshakes, and produce under an authorizer cost."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import load
import workloads
from broker import Broker, Source, free_port
from load import Load
from report import Figure
from security_load import MECHANISM, Keys, add_rules, add_user, connect_often, rules_for
from suite import Bench
from targets import figure
from tls_scenarios import PROTOCOLS, make_keys

PASSWORD = b"bench-secret"
LOGINS = 1_000
RULES = (10, 1_000, 10_000)
# With the second setting only topics with rules are looked at: brokers and admins need no rules.
AUTHORIZER = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@dataclass(slots=True, frozen=True)
class LoginBroker:
    """A broker by its plain listener, and the ports of its listeners with TLS."""

    broker: Broker
    login_port: int
    tls_port: int
    trusted: Path
    keys: Keys

    def log_in(self, count: int) -> Load:
        return connect_often(self.broker.host, self.login_port, self.trusted, count, self.keys)

    def shake_hands(self, count: int) -> Load:
        return connect_often(self.broker.host, self.tls_port, self.trusted, count, None)


@contextmanager
def login_broker(source: Source) -> Iterator[LoginBroker]:
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-keys-", dir=source.folder) as folder:
        private, trusted = make_keys(Path(folder))
        with _login_broker(source, private, trusted) as target:
            yield target


@contextmanager
def _login_broker(source: Source, private: Path, trusted: Path) -> Iterator[LoginBroker]:
    login_port, tls_port = free_port(), free_port()
    module = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    settings = {
        "listeners": f"{{listeners}},SASL_SSL://127.0.0.1:{login_port},SSL://127.0.0.1:{tls_port}",
        "listener.security.protocol.map": f"{PROTOCOLS},SASL_SSL:SASL_SSL",
        "sasl.enabled.mechanisms": MECHANISM,
        f"listener.name.sasl_ssl.{MECHANISM.lower()}.sasl.jaas.config": module,
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(private),
    }
    keys = Keys.of(PASSWORD)
    with source.broker(settings) as broker:
        add_user(broker.host, broker.port, keys)
        yield LoginBroker(broker, login_port, tls_port, trusted, keys)


def logins(bench: Bench) -> list[Figure]:
    """1,000 logins by TLS and SCRAM, 1,000 handshakes alone, and one-record requests beside the logins."""
    bench.needs_own_broker()
    count = bench.scaled(LOGINS)
    with login_broker(bench.source) as target:
        broker = target.broker
        topic = broker.topic("beside")
        for _ in range(bench.warmup):
            target.log_in(count)
        works = [partial(target.log_in, count), partial(target.shake_hands, count)]
        with_login, handshakes = bench.measure_in_turns(broker, works)
        beside = [_slowest_beside(target, topic, count) for _ in range(bench.rounds)]
    rate = statistics.median(done.requests / done.seconds for done in with_login.done)
    return [
        figure("logins", with_login.per_request(LOGINS), f"{rate:,.0f} logins/s, one after the other"),
        figure("handshakes", handshakes.per_request(LOGINS)),
        figure("logins beside", beside),
    ]


def _slowest_beside(target: LoginBroker, topic: str, count: int) -> float:
    """The p99.9 of one-record requests, one after the other, while clients log in; in ms."""
    beside = load.start(target.broker, "latency", topic=topic, requests=20 * count, warmup=100)
    while beside.poll() is None:
        target.log_in(max(1, count // 10))
    return load.finish(beside).p999_us / 1000


@contextmanager
def ruled_broker(source: Source, rules: int) -> Iterator[tuple[Broker, str]]:
    """A broker with an authorizer and so many rules, and a topic that the load may write to by a rule."""
    with source.broker(AUTHORIZER) as broker:
        topic = broker.topic("ruled")
        add_rules(broker.host, broker.port, rules_for(topic, rules))
        yield broker, topic


def acl_produce(bench: Bench) -> list[Figure]:
    """One-record requests on brokers with rules, in turns with a broker without an authorizer."""
    bench.needs_own_broker()
    requests = bench.scaled(100_000)
    with ExitStack() as running:
        plain = running.enter_context(bench.source.broker())
        targets = [(plain, plain.topic("plain"))]
        targets += [running.enter_context(ruled_broker(bench.source, rules)) for rules in RULES]
        for broker, topic in targets:
            workloads.one_record(broker, topic, bench.scaled(50_000) * bench.warmup)
        costs: list[list[float]] = [[] for _ in targets]
        for _ in range(bench.rounds):
            for (broker, topic), rounds in zip(targets, costs, strict=True):
                before = broker.cpu()
                workloads.one_record(broker, topic, requests)
                rounds.append(broker.cpu() - before)
    return [
        figure(f"acl {rules}", [cost / base for cost, base in zip(rounds, costs[0], strict=True)])
        for rules, rounds in zip(RULES, costs[1:], strict=True)
    ]
