"""The eight rules for losing no record: acks, retries, replicas, elections, commits.

| rule | kept by |
|---|---|
| 1 | a producer that looks at the result of every send |
| 2 | a producer with acks=all |
| 3 | a producer with many retries |
| 4 | topics with unclean.leader.election.enable=false |
| 5 | topics with three replicas or more |
| 6 | topics with min.insync.replicas above 1 |
| 7 | topics with more replicas than min.insync.replicas |
| 8 | a consumer that commits after it has processed a record |
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

TOPIC_RULES = (4, 5, 6, 7)
NAMES_SHOWN = 10
REPLICAS = 3
IN_SYNC = 2
# Retries must outlast an election. It begins when the session of the dead broker ends, 18 s after its last
# sign of life by default; with back-offs up to one second that takes about 20 retries.
RETRIES = 20
DELIVERY_MS = 30_000

RULES = {
    1: "result of every send",
    2: "acks",
    3: "retries",
    4: "unclean election",
    5: "replication factor",
    6: "min.insync.replicas",
    7: "replicas above min.insync.replicas",
    8: "commit after processing",
}


class Status(Enum):
    OK = "ok"
    WARNING = "warning"
    BROKEN = "broken"
    UNSEEN = "unseen"
    """Neither the cluster nor the given files show it."""


@dataclass(slots=True, frozen=True)
class Finding:
    """A finding about a rule. `advice` says what to change, `where` has topics, brokers or files."""

    rule: int
    status: Status
    text: str
    advice: str = ""
    where: tuple[str, ...] = ()

    def as_json(self) -> dict[str, object]:
        return {
            "rule": self.rule,
            "name": RULES[self.rule],
            "status": self.status.value,
            "text": self.text,
            "advice": self.advice,
            "where": list(self.where),
        }


@dataclass(slots=True, frozen=True)
class Durability:
    """The settings of a topic, or the defaults of a broker, that decide whether records can be lost."""

    name: str
    replication_factor: int
    min_insync_replicas: int
    unclean_election: bool


# --- clients


def look_at_producer(file: str, settings: Mapping[str, str]) -> Iterator[Finding]:
    """Rules 2 and 3. The names of Kafka 0.8 count, too."""
    acks = _first(settings, "acks", "request.required.acks")
    if acks is None:
        yield Finding(2, Status.OK, "acks is not set: all, the default from Kafka 3.0 on", "", (file,))
    elif acks in ("all", "-1"):
        yield Finding(2, Status.OK, f"acks={acks}", "", (file,))
    else:
        lost = (
            "a record is lost whenever it does not arrive"
            if acks == "0"
            else "a record is lost if its leader dies before a follower has it"
        )
        yield Finding(2, Status.BROKEN, f"acks={acks}: {lost}", "Set acks=all.", (file,))
    yield _retries(file, settings)


def _retries(file: str, settings: Mapping[str, str]) -> Finding:
    retries = _number(settings, "retries", "message.send.max.retries")
    if retries is not None and retries < RETRIES:
        return Finding(
            3,
            Status.BROKEN,
            f"retries={retries}: the producer gives up before a new leader is elected",
            "Remove retries (the default is 2147483647) and limit the time with delivery.timeout.ms.",
            (file,),
        )
    delivery = _number(settings, "delivery.timeout.ms")
    if delivery is not None and delivery < DELIVERY_MS:
        return Finding(
            3,
            Status.WARNING,
            f"delivery.timeout.ms={delivery}: retries end after it, perhaps before a new leader is elected",
            f"Set delivery.timeout.ms to {DELIVERY_MS} or more; the default is 120000.",
            (file,),
        )
    text = "retries is not set: 2147483647 by default" if retries is None else f"retries={retries}"
    return Finding(3, Status.OK, text, "", (file,))


def look_at_consumer(file: str, settings: Mapping[str, str]) -> Finding:
    """Rule 8, as far as settings show it."""
    given = _first(settings, "enable.auto.commit", "auto.commit.enable")
    if given is not None and given.lower() == "false":
        return Finding(
            8,
            Status.OK,
            "enable.auto.commit=false; whether commits come after processing, the program shows",
            "",
            (file,),
        )
    text = "enable.auto.commit is true by default" if given is None else f"enable.auto.commit={given}"
    return Finding(
        8,
        Status.BROKEN,
        f"{text}; a consumer that hands records to others commits them before they are processed",
        "Set enable.auto.commit=false, and commit after the records are processed.",
        (file,),
    )


def unseen(producers: bool, consumers: bool, cluster: bool) -> Iterator[Finding]:
    """The rules that nothing given shows."""
    yield Finding(
        1,
        Status.UNSEEN,
        "only the program shows it",
        "Give send a callback, or wait for its future: an error there is a record that was not written.",
    )
    if not producers:
        for rule in (2, 3):
            yield Finding(rule, Status.UNSEEN, "a setting of producers", "Give --producer-config FILE.")
    if not cluster:
        for rule in TOPIC_RULES:
            yield Finding(rule, Status.UNSEEN, "a setting of topics", "Leave out --clients-only.")
    if not consumers:
        yield Finding(8, Status.UNSEEN, "a setting of consumers", "Give --consumer-config FILE.")


def _first(settings: Mapping[str, str], *names: str) -> str | None:
    return next((settings[name].strip() for name in names if name in settings), None)


def _number(settings: Mapping[str, str], *names: str) -> int | None:
    text = _first(settings, *names)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{names[0]}={text}: expected a whole number") from None


# --- topics and brokers


def look_at_topics(topics: Iterable[Durability], brokers: int) -> list[Finding]:
    """Rules 4 to 7 of topics; topics with the same finding share one."""
    found = list(topics)
    findings = [finding for topic in found for finding in _durability(topic, _topic_advice(brokers))]
    subject = "1 topic" if len(found) == 1 else f"{len(found):,} topics"
    return [*_kept(findings, subject), *_merged(findings, "topics")]


def look_at_brokers(brokers: Iterable[Durability]) -> list[Finding]:
    """Rules 4 to 7 of the brokers' defaults, which new topics get."""
    findings = [finding for broker in brokers for finding in _durability(broker, _broker_advice)]
    return _merged(findings, "new topics on brokers")


Advice = Mapping[int, str]


def _topic_advice(brokers: int) -> Advice:
    change = "tidelog configs --alter --topic NAME --add-config"
    tool = f"tidelog reassign-partitions --generate --replication-factor {REPLICAS}"
    more = f"Add replicas with {tool}"
    if brokers < REPLICAS:
        more = f"Add brokers, there are {brokers}; then add replicas with {tool}"
    return {
        4: f"{change} unclean.leader.election.enable=false",
        5: f"{more}: three replicas survive the loss of a broker while another is being restarted.",
        6: f"{change} min.insync.replicas={IN_SYNC}",
        7: "Add replicas, or lower min.insync.replicas: one broker that is away stops all producers with "
        "acks=all.",
    }


_broker_advice: Advice = {
    4: "Set unclean.leader.election.enable=false on the brokers.",
    5: f"Set default.replication.factor={REPLICAS} on the brokers.",
    6: f"Set min.insync.replicas={IN_SYNC} on the brokers.",
    7: "Raise default.replication.factor above min.insync.replicas on the brokers.",
}


def _durability(found: Durability, advice: Advice) -> Iterator[Finding]:
    """The rules that are broken."""

    def broken(rule: int, text: str) -> Finding:
        return Finding(rule, Status.BROKEN, text, advice[rule], (found.name,))

    factor, in_sync = found.replication_factor, found.min_insync_replicas
    if found.unclean_election:
        yield broken(4, "unclean.leader.election.enable=true: a replica without the last records may lead")
    if factor < REPLICAS:
        yield broken(5, f"replication factor {factor}; expected {REPLICAS} or more")
    if in_sync < IN_SYNC:
        yield broken(
            6, f"min.insync.replicas={in_sync}: acks=all is satisfied with one replica when others are away"
        )
    if factor <= in_sync:
        yield broken(
            7, f"replication factor {factor} and min.insync.replicas={in_sync}: no replica may be away"
        )


def _merged(findings: Iterable[Finding], kind: str) -> list[Finding]:
    """One finding for all topics or brokers with the same one."""
    groups: dict[tuple[int, str, str], list[str]] = {}
    for finding in findings:
        groups.setdefault((finding.rule, finding.text, finding.advice), []).extend(finding.where)
    return [
        Finding(rule, Status.BROKEN, f"{text} ({kind}: {_some(names)})", advice, tuple(names))
        for (rule, text, advice), names in sorted(groups.items())
    ]


def _kept(findings: Iterable[Finding], subject: str) -> list[Finding]:
    """The rules that no topic breaks."""
    broken = {finding.rule for finding in findings}
    return [Finding(rule, Status.OK, subject) for rule in TOPIC_RULES if rule not in broken]


def _some(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
