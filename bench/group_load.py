"""Load of consumer groups, as its own process: members that commit, heartbeat and join, one per connection.

    group_load.py HOST:PORT commits    a closed loop of OffsetCommit requests, one partition each
    group_load.py HOST:PORT fill       commits offsets for many groups, many partitions in a request
    group_load.py HOST:PORT beats      groups of members that heartbeat, evenly spread over the interval
    group_load.py HOST:PORT rebalance  one group in which everybody joins again

Prints one JSON object. `beats` first prints a line when all members have joined, and ends with its stdin.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import struct
import sys
import time
from collections.abc import Callable, Iterable, Sequence

from tidelog.clients.connection import answer_body, request_frame
from tidelog.protocol.message import Message
from tidelog.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from tidelog.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from tidelog.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from tidelog.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from tidelog.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

COMMIT_VERSION, JOIN_VERSION, SYNC_VERSION, HEARTBEAT_VERSION = 9, 3, 5, 4
LIMIT = 120.0
NOT_READY = (14, 15, 16)  # COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR


class Failed(Exception):
    """An answer was an error, or did not arrive."""


class CoordinatorNotReady(Failed):
    """The coordinator of a group is not elected, or is loading: the same request succeeds later."""


class Link:
    """One connection of one member."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, timeout=LIMIT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""

    def send(self, frame: bytes) -> None:
        self.socket.sendall(frame)

    def receive(self) -> list[bytes]:
        """The complete answers, without their lengths."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise Failed("the broker closed a connection")
        self._received += data
        answers = []
        while len(self._received) >= 4:
            end = 4 + struct.unpack_from(">i", self._received)[0]
            if len(self._received) < end:
                break
            answers.append(self._received[4:end])
            self._received = self._received[end:]
        return answers


class Links:
    """Many connections with one selector."""

    def __init__(self, address: tuple[str, int], count: int) -> None:
        self.all = [Link(address) for _ in range(count)]
        self._poll = select.epoll()
        self._by_fd = {link.socket.fileno(): (number, link) for number, link in enumerate(self.all)}
        for fd in self._by_fd:
            self._poll.register(fd, select.EPOLLIN)

    def answers(self, timeout: float) -> Iterable[tuple[int, bytes]]:
        """The answers that arrive within the time-out: the number of the connection and the frame."""
        for fd, _ in self._poll.poll(timeout):
            number, link = self._by_fd[fd]
            for frame in link.receive():
                yield number, frame

    def exchange(self, requests: dict[int, Message], version: int) -> dict[int, bytes]:
        """Send a request on each of these connections; returns the body of every answer."""
        for number, request in requests.items():
            self.all[number].send(request_frame(request, version, 1, "bench"))
        return self.await_answers(requests, version)

    def await_answers(self, requests: dict[int, Message], version: int) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        deadline = time.monotonic() + LIMIT
        while len(found) < len(requests):
            if time.monotonic() > deadline:
                raise Failed(f"{len(requests) - len(found)} requests are not answered after {LIMIT:.0f} s")
            for number, frame in self.answers(1.0):
                found[number] = answer_body(type(requests[number]), version, frame)
        return found


def check(code: int, what: str) -> None:
    if code:
        kind = CoordinatorNotReady if code in NOT_READY else Failed
        raise kind(f"{what} was answered with error {code}")


def await_coordinator(address: tuple[str, int]) -> None:
    """Wait for a coordinator. The first request for one creates its topic."""
    links = Links(address, 1)
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        body = links.exchange({0: FindCoordinatorRequest(key="bench")}, 3)[0]
        if FindCoordinatorResponse.decode(body, 3).error_code == 0:
            return
        time.sleep(0.05)
    raise Failed("no coordinator was found")


# -- offsets -------------------------------------------------------------------------------------------


def commit_request(group_id: str, topic: str, partitions: Sequence[int], offset: int) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=group_id,
        topics=[
            OffsetCommitRequest.OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequest.OffsetCommitRequestPartition(
                        partition_index=partition, committed_offset=offset
                    )
                    for partition in partitions
                ],
            )
        ],
    )


def closed_loop(links: Links, frames: Sequence[bytes], count: int) -> list[float]:
    """Send `count` frames, one at a time on each connection; returns the seconds of each."""
    begun = [0.0] * len(links.all)
    taken: list[float] = []
    sent = 0

    def issue(number: int) -> None:
        nonlocal sent
        begun[number] = time.monotonic()
        links.all[number].send(frames[sent % len(frames)])
        sent += 1

    for number in range(min(count, len(links.all))):
        issue(number)
    while len(taken) < count:
        for number, frame in links.answers(LIMIT):
            taken.append(time.monotonic() - begun[number])
            if sent < count:
                issue(number)
            elif len(taken) == count:
                check_commit(frame)
    return taken


def check_commit(frame: bytes) -> None:
    body = answer_body(OffsetCommitRequest, COMMIT_VERSION, frame)
    for topic in OffsetCommitResponse.decode(body, COMMIT_VERSION).topics:
        for partition in topic.partitions:
            check(partition.error_code, f"a commit for {topic.name}-{partition.partition_index}")


def await_commits(links: Links, frames: Sequence[bytes]) -> None:
    """Send each frame until its commit succeeds: the groups have coordinators on many partitions."""
    deadline = time.monotonic() + LIMIT
    for frame in frames:
        while True:
            try:
                closed_loop(links, [frame], 1)
                break
            except CoordinatorNotReady:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


def commits(address: tuple[str, int], options: argparse.Namespace) -> dict[str, float]:
    await_coordinator(address)
    links = Links(address, options.connections)
    frames = [
        request_frame(
            commit_request(f"group-{number}", options.topic, [number % options.partitions], 1000 + number),
            COMMIT_VERSION,
            1,
            "bench",
        )
        for number in range(options.groups)
    ]
    await_commits(links, frames)
    begun = time.monotonic()
    taken = sorted(closed_loop(links, frames, options.requests))
    return {
        "requests": len(taken),
        "bytes": 0,
        "seconds": time.monotonic() - begun,
        "p50_us": taken[len(taken) // 2] * 1e6,
        "p99_us": taken[len(taken) * 99 // 100] * 1e6,
        "p999_us": taken[len(taken) * 999 // 1000] * 1e6,
        "max_us": taken[-1] * 1e6,
    }


def fill(address: tuple[str, int], options: argparse.Namespace) -> dict[str, float]:
    """Commit an offset for every partition of the topic and every group."""
    await_coordinator(address)
    links = Links(address, 4)
    step = min(20, options.partitions)
    begun = time.monotonic()
    for first in range(0, options.groups, 500):
        frames = [
            request_frame(
                commit_request(
                    f"group-{group}", options.topic, range(start, start + step), 1_000_000 + group
                ),
                COMMIT_VERSION,
                1,
                "bench",
            )
            for group in range(first, min(first + 500, options.groups))
            for start in range(0, options.partitions, step)
        ]
        closed_loop(links, frames, len(frames))
    return {"offsets": options.groups * options.partitions, "seconds": time.monotonic() - begun}


# -- members -------------------------------------------------------------------------------------------


class Group:
    """The members of one group, by the numbers of their connections."""

    def __init__(self, group_id: str, numbers: Sequence[int]) -> None:
        self.group_id = group_id
        self.numbers = numbers
        self.ids = dict.fromkeys(numbers, "")
        self.leader = numbers[0]
        self.generation = -1

    def join(self, number: int) -> JoinGroupRequest:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name="range", metadata=bytes(200))
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            member_id=self.ids[number],
            protocol_type="consumer",
            protocols=[protocol],
        )

    def joined(self, number: int, body: bytes) -> None:
        answer = JoinGroupResponse.decode(body, JOIN_VERSION)
        check(answer.error_code, "a join")
        self.ids[number], self.generation = answer.member_id, answer.generation_id
        if answer.leader == answer.member_id:
            self.leader = number

    def sync(self, number: int) -> SyncGroupRequest:
        assignments = [
            SyncGroupRequest.SyncGroupRequestAssignment(member_id=member_id, assignment=bytes(200))
            for member_id in (self.ids.values() if number == self.leader else ())
        ]
        return SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.ids[number],
            protocol_type="consumer",
            protocol_name="range",
            assignments=assignments,
        )

    def heartbeat(self, number: int) -> HeartbeatRequest:
        return HeartbeatRequest(
            group_id=self.group_id, generation_id=self.generation, member_id=self.ids[number]
        )


def checked_syncs(bodies: dict[int, bytes]) -> None:
    for body in bodies.values():
        check(SyncGroupResponse.decode(body, SYNC_VERSION).error_code, "a sync")


def beats(address: tuple[str, int], options: argparse.Namespace) -> dict[str, float]:
    """Members send heartbeats in turn, each once in an interval."""
    await_coordinator(address)
    links = Links(address, options.groups * options.members)
    groups = [
        Group(f"group-{number}", range(number * options.members, (number + 1) * options.members))
        for number in range(options.groups)
    ]
    by_number = {number: group for group in groups for number in group.numbers}
    joins: dict[int, Message] = {number: group.join(number) for number, group in by_number.items()}
    for number, body in links.exchange(joins, JOIN_VERSION).items():
        by_number[number].joined(number, body)
    checked_syncs(links.exchange({n: group.sync(n) for n, group in by_number.items()}, SYNC_VERSION))
    frames = [
        request_frame(group.heartbeat(number), HEARTBEAT_VERSION, 1, "bench")
        for number, group in by_number.items()
    ]
    print("ready", flush=True)
    return pace(links, frames, options.interval)


def pace(links: Links, frames: Sequence[bytes], interval: float) -> dict[str, float]:
    """Send the frames again and again, each once in an interval, until stdin ends."""
    sent = answered = 0
    last = b""
    begun = time.monotonic()
    watch = select.poll()
    watch.register(sys.stdin, select.POLLIN | select.POLLHUP)
    while not watch.poll(0):
        due = (time.monotonic() - begun) * len(frames) / interval
        while sent < due:
            number = sent % len(frames)
            links.all[number].send(frames[number])
            sent += 1
        for _, frame in links.answers(0.005):
            answered += 1
            last = frame
    body = answer_body(HeartbeatRequest, HEARTBEAT_VERSION, last)
    check(HeartbeatResponse.decode(body, HEARTBEAT_VERSION).error_code, "a heartbeat")
    return {"requests": answered, "seconds": time.monotonic() - begun}


def rebalance(address: tuple[str, int], options: argparse.Namespace) -> dict[str, float]:
    """Measure from the last join to the last member with an assignment.

    The first member is alone at first. When the others wait in their joins, it joins again as the last.
    """
    await_coordinator(address)
    links = Links(address, options.members)
    group = Group("rebalance", range(options.members))
    group.joined(0, links.exchange({0: group.join(0)}, JOIN_VERSION)[0])
    checked_syncs(links.exchange({0: group.sync(0)}, SYNC_VERSION))
    joins: dict[int, Message] = {number: group.join(number) for number in range(1, options.members)}
    for number, request in joins.items():
        links.all[number].send(request_frame(request, JOIN_VERSION, 1, "bench"))
    time.sleep(1.0)  # by now all of them wait
    joins[0] = group.join(0)
    last = request_frame(joins[0], JOIN_VERSION, 1, "bench")
    begun = time.monotonic()
    links.all[0].send(last)
    for number, body in links.await_answers(joins, JOIN_VERSION).items():
        group.joined(number, body)
    checked_syncs(
        links.exchange({number: group.sync(number) for number in range(options.members)}, SYNC_VERSION)
    )
    return {"members": options.members, "seconds": time.monotonic() - begun}


MODES: dict[str, Callable[[tuple[str, int], argparse.Namespace], dict[str, float]]] = {
    "commits": commits,
    "fill": fill,
    "beats": beats,
    "rebalance": rebalance,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", metavar="HOST:PORT")
    parser.add_argument("mode", choices=list(MODES))
    parser.add_argument("--topic", default="bench")
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--groups", type=int, default=100)
    parser.add_argument("--members", type=int, default=3)
    parser.add_argument("--interval", type=float, default=3.0)
    options = parser.parse_args()
    host, _, port = options.address.rpartition(":")
    try:
        result = MODES[options.mode]((host, int(port)), options)
    except (Failed, OSError) as error:
        print(f"group_load: {error}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
