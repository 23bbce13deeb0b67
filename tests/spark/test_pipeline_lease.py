"""The lease of a pipeline: one driver at a time on any number of hosts, takeover, and a driver that wakes up.

Drivers are processes of their own. Their host is a name that they are told; in one test it is a namespace.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest
from click.testing import CliRunner
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError, DeltaError

from tests.support.wait import eventually
from tidelog.cli.main import main
from tidelog.config import ConfigError
from tidelog.spark.pipelines import lease, state
from tidelog.spark.pipelines.lease import Holder, Leases, Times
from tidelog.spark.pipelines.state import AlreadyRunning, StateFolder
from tidelog.spark.tables.store import KEY, SECRET, Store

SECONDS = 60.0
QUICK = Times(renew=0.2, lease=1.5)
PIPELINE = "mine"


class Driver:
    """A driver that acquires, checks and releases the lease when it is told."""

    def __init__(
        self,
        data: str,
        host: str = "",
        options: Mapping[str, object] | None = None,
        times: Times = QUICK,
        prefix: tuple[str, ...] = (),
    ) -> None:
        given = {"renew": times.renew, "lease": times.lease, **(options or {})}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.spark.lease_driver", data, host, json.dumps(given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.reads()

    def tell(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def reads(self) -> str:
        assert self.process.stdout is not None
        found: dict[str, str] = json.loads(self.process.stdout.readline())
        return next(iter(found.values()))

    def does(self, word: str) -> str:
        self.tell(word)
        return self.reads()

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(SECONDS)

    def close(self) -> None:
        if self.process.poll() is None:
            self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


class StartDriver(Protocol):
    def __call__(
        self,
        data: str,
        host: str = ...,
        options: Mapping[str, object] | None = ...,
        times: Times = ...,
        prefix: tuple[str, ...] = ...,
    ) -> Driver: ...


@pytest.fixture
def start() -> Iterator[StartDriver]:
    with ExitStack() as stack:

        def started(*arguments: object, **others: object) -> Driver:
            driver = Driver(*arguments, **others)  # type: ignore[arg-type]
            stack.callback(driver.close)
            return driver

        yield started


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(tmp_path / "data")


def race(drivers: list[Driver]) -> list[str]:
    for driver in drivers:
        driver.tell("acquire")
    return [driver.reads() for driver in drivers]


def test_of_drivers_that_start_at_the_same_moment_one_wins(start: StartDriver, data: str) -> None:
    drivers = [start(data, host) for host in ("alpha", "beta", "gamma")]
    answers = race(drivers)
    assert answers.count("done") == 1, answers
    winner = answers.index("done")
    name = ("alpha", "beta", "gamma")[winner]
    for answer in answers[:winner] + answers[winner + 1 :]:
        assert answer.startswith(f"AlreadyRunning: {PIPELINE} already runs on this data folder (process ")
        assert f"(process {drivers[winner].process.pid} on {name} since 2" in answer
    assert drivers[winner].does("check") == "done"
    assert drivers[winner].does("close") == "done"
    assert drivers[winner - 1].does("acquire") == "done", "a released lease can be had at once"


def test_a_commit_from_a_new_snapshot_would_let_both_win(start: StartDriver, data: str) -> None:
    """The race is decided by the snapshot before the check, not by the transaction alone."""
    drivers = [start(data, host, {"unsafe": True}) for host in ("alpha", "beta")]
    assert race(drivers) == ["commit", "commit"]
    assert [driver.does("go on") for driver in drivers] == ["done", "done"]


def test_a_driver_on_another_host_is_succeeded_when_its_lease_has_expired(
    start: StartDriver, data: str
) -> None:
    first, second = start(data, "alpha"), start(data, "beta")
    assert first.does("acquire") == "done"
    assert second.does("acquire").startswith("AlreadyRunning")
    first.kill()
    begin = time.monotonic()
    assert second.does("acquire") == "done"
    assert time.monotonic() - begin >= QUICK.lease - QUICK.renew - 0.5, "not before the lease expired"


def test_a_killed_driver_of_this_host_is_succeeded_at_once(start: StartDriver, data: str) -> None:
    hour = Times(renew=1.0, lease=3600.0)
    first = start(data, times=hour)
    assert first.does("acquire") == "done"
    with pytest.raises(AlreadyRunning, match=f"process {first.process.pid} on"):
        Leases(StateFolder(data).files, hour).acquire(PIPELINE)
    first.kill()
    Leases(StateFolder(data).files, hour).acquire(PIPELINE).close()


@pytest.mark.parametrize("host", ["alpha", ""], ids=["another host", "this host"])
def test_a_driver_that_slept_through_its_lease_stops_when_it_wakes(
    start: StartDriver, data: str, host: str
) -> None:
    first, second = start(data, host), start(data, "beta")
    assert first.does("acquire") == "done"
    os.killpg(first.process.pid, signal.SIGSTOP)
    assert second.does("acquire") == "done"
    first.tell("check")
    os.killpg(first.process.pid, signal.SIGCONT)
    answer = first.reads()
    assert answer.startswith(
        f"LeaseLost: {PIPELINE} was taken over by process {second.process.pid} on beta since 2"
    )
    assert answer.endswith("this driver stops and writes nothing more")
    assert first.does("close") == "done"
    assert second.does("check") == "done", "the end of the first changes nothing for the second"
    assert start(data, "gamma").does("acquire").startswith("AlreadyRunning")


def test_a_renewed_lease_is_kept_whatever_the_clock_of_its_holder_says(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = StateFolder(data, times=Times(renew=0.05, lease=3.0))
    held = folder.leases.acquire(PIPELINE)
    with monkeypatch.context() as patch:
        slow = lease.this_holder()
        patch.setattr(lease, "this_machine", lambda: "another kernel")
        patch.setattr(
            lease, "replace", lambda holder, **new: replace(holder, **{**new, "at": slow.at - 7200})
        )
        with pytest.raises(AlreadyRunning):
            folder.leases.acquire(PIPELINE)
        assert folder.runs(PIPELINE)
    held.close()


def test_a_driver_that_died_between_its_commit_and_its_first_renewal_is_known_by_the_commit(
    data: str,
) -> None:
    leases = StateFolder(data).leases
    table = leases._table()
    gone = Holder("here", 2**22 + 1, time.time(), lease.this_machine(), "1", at=time.time())
    assert lease._commit(table, PIPELINE, 1, gone)
    assert leases.holder(PIPELINE) is None
    alive = lease.this_holder()
    assert lease._commit(leases._table(), PIPELINE, 2, alive)
    assert leases.holder(PIPELINE) == alive
    with pytest.raises(AlreadyRunning, match=f"process {alive.pid}"):
        leases.acquire(PIPELINE)


@pytest.mark.parametrize("error", [CommitFailedError("version 1 exists"), DeltaError("timed out")], ids=repr)
def test_a_driver_whose_commit_was_taken_although_its_answer_was_lost_holds_the_lease(
    data: str, monkeypatch: pytest.MonkeyPatch, error: DeltaError
) -> None:
    commit = DeltaTable.create_write_transaction

    def lost(self: DeltaTable, *arguments: object, **named: object) -> None:
        commit(self, *arguments, **named)  # type: ignore[arg-type]
        raise error

    folder = StateFolder(data, times=QUICK)
    monkeypatch.setattr(DeltaTable, "create_write_transaction", lost)
    held = folder.leases.acquire(PIPELINE)
    monkeypatch.undo()
    held.check()
    assert held.epoch == 1
    with pytest.raises(AlreadyRunning, match=f"process {os.getpid()} on "):
        folder.leases.acquire(PIPELINE)
    held.close()
    folder.leases.acquire(PIPELINE).close()


def test_files_of_older_epochs_are_removed(data: str) -> None:
    folder = StateFolder(data, times=QUICK)
    for _ in range(12):  # the table of leases has a checkpoint by then
        folder.leases.acquire(PIPELINE).close()
    other = folder.leases.acquire(f"{PIPELINE}.9")
    last = folder.leases.acquire(PIPELINE)
    assert [name for name in folder.files.names() if name.endswith(".lease")] == [
        f"{PIPELINE}.13.lease",
        f"{PIPELINE}.9.1.lease",
    ]
    for each in (other, last):
        each.check()
        each.close()


def test_a_thread_that_cannot_reach_the_store_tries_again(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = StateFolder(data, times=Times(renew=0.02, lease=60))
    held = folder.leases.acquire(PIPELINE)
    write, failed = folder.files.write, []

    def failing(name: str, text: str) -> None:
        if len(failed) < 3:
            failed.append(name)
            raise OSError("the store is away")
        write(name, text)

    monkeypatch.setattr(folder.files, "write", failing)
    eventually(lambda: len(failed) == 3, "three renewals failed", SECONDS)
    beat = held.holder.beat
    eventually(lambda: held.holder.beat > beat + 1, "it goes on", SECONDS)
    held.close()
    assert held.lost is None
    assert not folder.runs(PIPELINE)


def test_a_process_that_ended_or_became_another_is_gone() -> None:
    me = lease.this_holder()
    assert not me.gone
    assert replace(me, process_start="1").gone, "the id was given to another process"
    assert not replace(me, machine="another kernel", process_start="1").gone, "it cannot be seen from here"
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    born = replace(me, pid=child.pid, process_start=lease.process(child.pid)[1])
    assert (born.gone, born.at_work) == (False, True)
    child.send_signal(signal.SIGSTOP)
    eventually(lambda: not born.at_work, "it is stopped")
    assert not born.gone
    child.kill()
    eventually(lambda: born.gone, "a process that nobody waited for has ended")
    child.communicate()
    assert born.gone


def test_a_process_that_the_system_hides_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def hidden(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", hidden)
    other = replace(lease.this_holder(), pid=2**22 + 1)
    assert (other.gone, other.at_work) == (False, False)


def test_a_busy_driver_of_this_host_keeps_its_lease(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread had no time to renew the lease for longer than the lease lasts."""
    folder = StateFolder(data, times=Times(renew=3600, lease=0.01))
    held = folder.leases.acquire(PIPELINE)
    with pytest.raises(AlreadyRunning, match=f"process {os.getpid()} on"):
        folder.leases.acquire(PIPELINE)
    assert folder.runs(PIPELINE)
    held.close()


def test_processes_of_another_namespace_are_on_another_machine(start: StartDriver, data: str) -> None:
    """A container on the same kernel has process ids of its own."""
    apart = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
    if shutil.which("unshare") is None or subprocess.run([*apart, "true"], check=False).returncode:
        pytest.skip("this system gives no namespaces to users")
    drivers = [start(data, prefix=apart) for _ in range(2)]
    answers = race(drivers)
    assert sorted(answer.partition(":")[0] for answer in answers) == ["AlreadyRunning", "done"], answers
    inside = drivers[answers.index("done")]
    found = Leases(StateFolder(data).files, QUICK).holder(PIPELINE)
    assert found is not None
    assert not found.is_here
    with pytest.raises(AlreadyRunning, match=rf"process {found.pid} on"):
        Leases(StateFolder(data).files, QUICK).acquire(PIPELINE)
    inside.kill()
    assert drivers[1 - drivers.index(inside)].does("acquire") == "done", "the other one takes over"


def tool(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["pipeline", *arguments])
    return done.exit_code, done.output


def test_status_and_stop_reach_a_run_of_another_host(start: StartDriver, data: str) -> None:
    away = start(data, "alpha")
    assert away.does("acquire") == "done"
    folder = StateFolder(data)
    status = state.this_process(PIPELINE)
    status.host, status.machine, status.pid = "alpha", "kernel of alpha", 77
    status.state = state.RUNNING
    folder.write(status)
    code, told = tool("status", "--data", data)
    assert (code, told.split(",")[:2]) == (0, ["mine: running", " process 77 on alpha"])
    code, told = tool("stop", PIPELINE, "--data", data, "--timeout", "0.1")
    assert (code, folder.stop_requested(PIPELINE)) == (1, True)
    away.does("close")
    code, told = tool("stop", PIPELINE, "--data", data)
    assert told.startswith(f"{PIPELINE} does not run with its data in")
    code, told = tool("status", "--data", data)
    assert (code, told.split(",")[0]) == (1, "mine: killed")


@pytest.fixture(scope="module")
def bucket() -> Iterator[dict[str, str]]:
    """The options of a store of objects at `s3://leases`."""
    import boto3
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        port = server.get_host_and_port()[1]
        options = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "someone",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }
        client = boto3.client(
            "s3",
            endpoint_url=options["AWS_ENDPOINT_URL"],
            region_name="us-east-1",
            aws_access_key_id="someone",
            aws_secret_access_key="secret",
        )
        client.create_bucket(Bucket="leases")
        yield options
    finally:
        server.stop()


def test_on_a_store_of_objects_it_is_the_same(start: StartDriver, bucket: dict[str, str]) -> None:
    data, slower = "s3://leases/data", Times(renew=0.5, lease=3.0)
    drivers = [start(data, host, bucket, slower) for host in ("alpha", "beta")]
    answers = race(drivers)
    assert answers.count("done") == 1, answers
    winner, loser = drivers[answers.index("done")], drivers[1 - answers.index("done")]
    assert f"(process {winner.process.pid} on " in answers[drivers.index(loser)]
    os.killpg(winner.process.pid, signal.SIGSTOP)
    assert loser.does("acquire") == "done"
    os.killpg(winner.process.pid, signal.SIGCONT)
    assert winner.does("check").startswith("LeaseLost: mine was taken over by process")
    folder = StateFolder(data, Store(data, bucket), slower)
    status = state.this_process(PIPELINE)
    status.state = state.RUNNING
    folder.write(status)
    assert folder.names() == [PIPELINE]
    found = folder.read(PIPELINE)
    assert found is not None
    assert found.state == state.RUNNING
    assert not folder.stop_requested(PIPELINE)
    folder.request_stop(PIPELINE)
    assert folder.stop_requested(PIPELINE)
    assert loser.does("close") == "done"
    claim = folder.claim(PIPELINE)
    assert claim.before is not None
    assert claim.before.state == state.KILLED
    assert not folder.stop_requested(PIPELINE), "the request was for the run before"
    claim.close()
    conf = {"endpoint": bucket["AWS_ENDPOINT_URL"], "access.key": "someone", "secret.key": "secret"}
    flags: list[str] = []
    for name, value in conf.items():
        flags += ["--spark-conf", f"spark.hadoop.fs.s3a.{name}={value}"]
    assert tool("status", "--data", "s3a://leases/data", *flags)[1].startswith("mine: killed")


def test_the_store_of_the_data_has_the_credentials_of_sparks_settings(tmp_path: Path) -> None:
    conf = {"access.key": "a", "secret.key": "b"}
    conf |= {f"bucket.cold.{name}": value * 2 for name, value in conf.items()}
    given = {f"spark.hadoop.fs.s3a.{name}": value for name, value in conf.items()}
    hot, cold = state.store_of("s3a://hot/data", given), state.store_of("s3://cold/data", given)
    assert (hot.uri, hot.options[KEY], hot.options[SECRET]) == ("s3://hot/data", "a", "b")
    assert (cold.uri, cold.options[KEY], cold.options[SECRET]) == ("s3://cold/data", "aa", "bb")
    assert state.store_of(str(tmp_path), given) == Store(str(tmp_path))


def test_a_path_that_spark_takes_for_another_file_system_is_refused(data: str) -> None:
    state.check_same_place(StateFolder(data), f"file:{data}")
    with pytest.raises(ConfigError, match=r"hdfs://names/data: .*give the whole address"):
        state.check_same_place(StateFolder(data), "hdfs://names/data")
