"""Kafka clients of other languages, each behind the same four tasks.

The programs of franz-go, sarama and KafkaJS are in programs/. They are built once, into .cache/other-clients,
with packages from Go's proxy and npm's registry. `python -m tests.other_clients.programs` builds them, and
says in one line for each client what is missing.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

SOURCES = Path(__file__).parent / "programs"
CACHE = Path(__file__).parent.parent.parent / ".cache" / "other-clients"
BUILD_SECONDS = 600
TASK_SECONDS = 60
QUICK_SECONDS = 25
MODES = ("plain", "idempotent", "transactional")
MEMBERS = ("first", "second")


@dataclass(slots=True, frozen=True)
class Cluster:
    """The cluster as a client saw it."""

    brokers: frozenset[int]
    controller: int | None
    leaders: dict[int, int]


@dataclass(slots=True, frozen=True)
class Read:
    """A record, and the member of the group that read it."""

    member: str
    partition: int
    offset: int
    value: str


@dataclass(slots=True, frozen=True)
class Administered:
    """What a client was told about a topic that it created, and about a group whose offsets it committed."""

    replicas: list[int]
    retention: str
    committed: dict[int, int]
    ends: dict[int, int]
    group: bool


@dataclass(slots=True, frozen=True)
class Security:
    """How a client proves who it is, and whom it trusts; paths are those of PEM files.

    Without a mechanism the certificate says who the client is. `token` is for OAUTHBEARER; clients on
    librdkafka make an unsecured token for the user themselves. `keytab`, `realm` and `kerberos`, the path of
    krb5.conf, are for GSSAPI.
    """

    ca: str
    mechanism: str = ""
    username: str = ""
    password: str = ""
    token: str = ""
    certificate: str = ""
    key: str = ""
    keytab: str = ""
    realm: str = ""
    kerberos: str = ""

    def of_librdkafka(self) -> dict[str, str]:
        settings = {"security.protocol": "SASL_SSL" if self.mechanism else "SSL", "ssl.ca.location": self.ca}
        if self.certificate:
            settings |= {"ssl.certificate.location": self.certificate, "ssl.key.location": self.key}
        if self.mechanism == "OAUTHBEARER":
            settings |= {
                "enable.sasl.oauthbearer.unsecure.jwt": "true",
                "sasl.oauthbearer.config": f"principal={self.username}",
            }
        elif self.mechanism == "GSSAPI":
            settings |= {
                "sasl.kerberos.service.name": "kafka",
                "sasl.kerberos.keytab": self.keytab,
                "sasl.kerberos.principal": f"{self.username}@{self.realm}",
            }
        elif self.mechanism:
            settings |= {"sasl.username": self.username, "sasl.password": self.password}
        return settings | ({"sasl.mechanism": self.mechanism} if self.mechanism else {})


@dataclass(slots=True, frozen=True)
class Task:
    """The arguments of a task; `bootstrap` is the address of one broker."""

    bootstrap: str
    topic: str
    mode: str = ""
    group: str = ""
    partitions: int = 0
    replication: int = 1
    count: int = 0
    members: int = 2
    security: Security | None = None

    def values(self, what: str) -> list[list[str]]:
        """`count` values for each partition."""
        numbers = range(self.count)
        return [
            [f"{what}-{partition}-{number}" for number in numbers] for partition in range(self.partitions)
        ]


class OtherClient(Protocol):
    name: str

    def missing(self) -> str | None:
        """What has to be installed before the client can run, None where nothing is missing."""

    def build(self) -> None: ...

    def metadata(self, task: Task) -> Cluster: ...

    def refusal(self, task: Task) -> str:
        """What the client says, within QUICK_SECONDS, if it is not let in or does not trust the broker."""

    def produce(self, task: Task) -> None:
        """Write `count` records to each partition with acks=all.

        The mode transactional aborts a first transaction of as many records.
        """

    def consume(self, task: Task) -> list[Read]:
        """Read and commit `count` committed records with the members of a group."""


class AdminClient(OtherClient, Protocol):
    def administer(self, task: Task) -> Administered:
        """Create a topic, describe it, commit offsets of a group, list them, delete group and topic."""


class Program:
    """A program of programs/: `PROGRAM TASK ARGUMENTS` takes JSON and prints JSON."""

    def __init__(self, name: str, tools: Sequence[str], build: Callable[[str], list[str]]) -> None:
        self.name = name
        self._tools = tools
        self._build = build

    def missing(self) -> str | None:
        absent = [tool for tool in self._tools if shutil.which(tool) is None]
        return f"{self.name} needs {' and '.join(absent)} on the path" if absent else None

    def build(self) -> None:
        self._command()

    @cache  # noqa: B019
    def _command(self) -> list[str]:
        return self._build(self.name)

    def _run(self, what: str, task: Task) -> object:
        answer: object = json.loads(run([*self._command(), what, json.dumps(asdict(task))]))
        return answer

    def metadata(self, task: Task) -> Cluster:
        match self._run("metadata", task):
            case {"brokers": [*brokers], "controller": int(controller), "leaders": dict(leaders)}:
                return Cluster(frozenset(brokers), controller, numbers(leaders))
            case other:
                raise AssertionError(other)

    def refusal(self, task: Task) -> str:
        return run_refused([*self._command(), "metadata", json.dumps(asdict(task))])

    def produce(self, task: Task) -> None:
        self._run("produce", task)

    def consume(self, task: Task) -> list[Read]:
        found = self._run("consume", task)
        assert isinstance(found, list)
        return [Read(**{name.lower(): value for name, value in entry.items()}) for entry in found]

    def administer(self, task: Task) -> Administered:
        match self._run("admin", task):
            case {
                "replicas": [*replicas],
                "retention": str(retention),
                "committed": dict(committed),
                "ends": dict(ends),
                "group": bool(group),
            }:
                return Administered(replicas, retention, numbers(committed), numbers(ends), group)
            case other:
                raise AssertionError(other)


class Kcat:
    name = "kcat"

    def missing(self) -> str | None:
        return None if shutil.which("kcat") else "kcat is not on the path"

    def build(self) -> None:
        """kcat is installed already."""

    def _command(self, task: Task) -> list[str]:
        settings = {} if task.security is None else task.security.of_librdkafka()
        return ["kcat", "-b", task.bootstrap, *(f"-X{name}={value}" for name, value in settings.items())]

    def metadata(self, task: Task) -> Cluster:
        found = json.loads(run([*self._command(task), "-L", "-J", "-t", task.topic]))
        (topic,) = found["topics"]
        leaders = {entry["partition"]: entry["leader"] for entry in topic["partitions"]}
        return Cluster(frozenset(entry["id"] for entry in found["brokers"]), found["controllerid"], leaders)

    def refusal(self, task: Task) -> str:
        return run_refused([*self._command(task), "-L", "-t", task.topic])

    def produce(self, task: Task) -> None:
        options = ["-X", "acks=all", "-X", f"enable.idempotence={str(task.mode != 'plain').lower()}"]
        if task.mode == "transactional":
            # kcat runs one transaction for all of its input, and aborts none.
            options += ["-X", f"transactional.id={task.topic}-kcat"]
        for partition, values in enumerate(task.values(task.mode)):
            command = [*self._command(task), "-P", "-t", task.topic, "-p", str(partition), *options]
            run(command, "".join(f"{value}\n" for value in values))

    def consume(self, task: Task) -> list[Read]:
        command = [
            *self._command(task), "-G", task.group, "-q", "-u", "-f", "%p %o %s\\n",
            "-X", "auto.offset.reset=earliest", "-X", "isolation.level=read_committed",
            "-X", "fetch.wait.max.ms=100", "-X", "heartbeat.interval.ms=300",
            "-X", "auto.commit.interval.ms=200", task.topic,
        ]  # fmt: skip
        running = {
            name: subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for name in MEMBERS[: task.members]
        }
        left = itertools.count(task.count - 1, -1)

        def follow(name: str) -> list[Read]:
            output = running[name].stdout
            assert output is not None
            reads: list[Read] = []
            for line in output:
                partition, offset, value = line.rstrip("\n").split(" ", 2)
                reads.append(Read(name, int(partition), int(offset), value))
                if next(left) == 0:
                    for process in running.values():
                        process.terminate()
            return reads

        with ThreadPoolExecutor(len(running)) as pool:
            following = [pool.submit(follow, name) for name in running]
            try:
                return [read for future in following for read in future.result(TASK_SECONDS)]
            finally:
                for process in running.values():
                    process.kill()
                    process.communicate()


def all_clients() -> list[OtherClient]:
    return [Kcat(), *admin_clients()]


def admin_clients() -> list[AdminClient]:
    return [
        Program("franz", ("go",), build_go),
        Program("sarama", ("go",), build_go),
        Program("kafkajs", ("node", "npm"), build_node),
    ]


def build_go(name: str) -> list[str]:
    """The command of a Go program; the packages come through Go's proxy."""
    program = CACHE / name / name
    run(
        ["go", "build", "-buildvcs=false", "-o", str(program), "."], cwd=SOURCES / name, seconds=BUILD_SECONDS
    )
    return [str(program)]


def build_node(name: str) -> list[str]:
    """The command of a JavaScript program; the packages come from npm's registry."""
    folder = CACHE / name
    lock, installed = SOURCES / name / "package-lock.json", folder / "package-lock.json"
    current = installed.exists() and installed.read_bytes() == lock.read_bytes()
    shutil.copytree(SOURCES / name, folder, dirs_exist_ok=True)
    if not current or not (folder / "node_modules").exists():
        run(["npm", "ci", "--no-audit", "--no-fund"], cwd=folder, seconds=BUILD_SECONDS)
    return ["node", str(folder / "main.js")]


def run(
    command: Sequence[str], given: str = "", *, cwd: Path | None = None, seconds: float = TASK_SECONDS
) -> str:
    """The standard output of a program that ends with 0."""
    done = subprocess.run(
        command, input=given, capture_output=True, text=True, timeout=seconds, check=False, cwd=cwd
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}: {done.stderr}"
    return done.stdout


def run_refused(command: Sequence[str]) -> str:
    """The error output of a program that must fail, and soon."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=QUICK_SECONDS, check=False)
    assert done.returncode != 0, f"{command[0]} was let in: {done.stdout}"
    return done.stderr


def numbers(by_partition: dict[str, int]) -> dict[int, int]:
    """JSON has text as keys."""
    return {int(partition): value for partition, value in by_partition.items()}


def main() -> None:
    for client in all_clients():
        reason = client.missing()
        if reason is None:
            client.build()
        print(f"{client.name}: {'ready' if reason is None else f'left out, {reason}'}", file=sys.stderr)


if __name__ == "__main__":
    main()
