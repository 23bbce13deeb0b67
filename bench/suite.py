"""Shared parts of the scenarios: the source of brokers, the amount of work, and the count of CPU time."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import machine
import sampling
from broker import Broker, Source
from load import BUILD, Load
from machine import GIGABYTE, MEGABYTE

CONNECTIONS = 16


class Skipped(Exception):
    """The scenario cannot be measured here. The message says why."""


@dataclass(slots=True)
class Rounds:
    """Several rounds of the same load: CPU seconds and results."""

    cpu: list[float] = field(default_factory=list)
    done: list[Load] = field(default_factory=list)

    def per_request(self, requests: int) -> list[float]:
        return [cpu / load.requests * requests for cpu, load in zip(self.cpu, self.done, strict=True)]

    def per_gigabyte(self) -> list[float]:
        return [cpu / load.bytes * GIGABYTE for cpu, load in zip(self.cpu, self.done, strict=True)]

    def request_rate(self) -> str:
        return f"{statistics.median(load.requests / load.seconds for load in self.done):,.0f} requests/s"

    def byte_rate(self) -> str:
        return f"{statistics.median(load.bytes / load.seconds for load in self.done) / MEGABYTE:,.0f} MB/s"


@dataclass(slots=True)
class Bench:
    """The arguments of a scenario: the source of brokers and the amount of work."""

    source: Source
    quick: bool = False
    warmup: int = 1  # a broker with a JIT compiler needs more
    profile: bool = False
    scenario: str = ""
    profiles: dict[str, str] = field(default_factory=dict)

    def scaled(self, count: int) -> int:
        return max(1, count // 10) if self.quick else count

    @property
    def rounds(self) -> int:
        return 2 if self.quick else 5

    def needs_own_broker(self) -> None:
        if self.source.attached is not None:
            raise Skipped("starts and stops brokers, so it needs --launch instead of --against")

    def warm_memory(self, size: int) -> None:
        """Let the page cache use memory that the machine already holds; see `machine.warm_memory`."""
        machine.warm_memory(self.source.folder, size)

    def measure(self, broker: Broker, work: Callable[[], Load], page_cache: int = 0) -> Rounds:
        """CPU time of the broker for each round of a load that adds `page_cache` bytes to the page cache."""
        return self.measure_in_turns(broker, [work], page_cache)[0]

    def measure_in_turns(
        self, broker: Broker, works: Sequence[Callable[[], Load]], page_cache: int = 0
    ) -> list[Rounds]:
        """The same for several loads in turns, one round of each at a time: a disturbance affects all."""
        measured = [Rounds() for _ in works]
        for _ in range(self.rounds):
            for work, rounds in zip(works, measured, strict=True):
                if page_cache:
                    self.warm_memory(page_cache)
                before = broker.cpu()
                rounds.done.append(work())
                rounds.cpu.append(broker.cpu() - before)
        if self.profile:
            for work in works:
                self.sample(broker, work)
        return measured

    def sample(self, broker: Broker, work: Callable[[], Load]) -> None:
        """Profile one more round, which does not count."""
        title = f"{self.scenario}-{len(self.profiles) + 1}"
        stacks = BUILD / f"{title}.stacks"
        with sampling.sampled(broker.pid, stacks):
            work()
        self.profiles[title] = sampling.summary(stacks)
