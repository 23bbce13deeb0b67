"""One controller per epoch: what the brokers' logs say about elections and state changes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

_ELECTED = re.compile(r"broker (\d+) is the controller with epoch (\d+)")
_STATE_CHANGE = re.compile(r" controller=(\d+) epoch=(\d+)")


class Claim(NamedTuple):
    """A broker that acted as the controller in an epoch."""

    epoch: int
    broker: int
    is_election: bool


def claims(log: str) -> Iterable[Claim]:
    """The elections and state changes in the log of a broker."""
    for line in log.splitlines():
        if match := _ELECTED.search(line):
            yield Claim(int(match[2]), int(match[1]), True)
        elif "part=state.change" in line and (match := _STATE_CHANGE.search(line)):
            yield Claim(int(match[2]), int(match[1]), False)


def check_controllers(logs: Mapping[int, Iterable[str]], last_epoch: int) -> list[str]:
    """What is wrong; `logs` are those of each broker's processes, `last_epoch` is in /controller_epoch."""
    problems: list[str] = []
    elected: defaultdict[int, list[int]] = defaultdict(list)
    actors: defaultdict[int, set[int]] = defaultdict(set)
    for texts in logs.values():
        newest = 0
        for claim in (claim for text in texts for claim in claims(text)):
            if claim.epoch < newest:
                problems.append(f"broker {claim.broker} acts in epoch {claim.epoch} after epoch {newest}")
            newest = max(newest, claim.epoch)
            actors[claim.epoch].add(claim.broker)
            if claim.is_election:
                elected[claim.epoch].append(claim.broker)
    for epoch, brokers in sorted(actors.items()):
        if len(brokers) > 1:
            problems.append(f"brokers {sorted(brokers)} are controllers in epoch {epoch}")
        if len(elected[epoch]) != 1:
            problems.append(f"epoch {epoch} has {len(elected[epoch])} elections")
    if actors and max(actors) > last_epoch:
        problems.append(f"epoch {max(actors)} is in a log, and the tree has {last_epoch}")
    return problems
