"""Faults of a run: which happen when, drawn from the seed; `end` repairs everything."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence

from tidelog.simulation.checks.group_history import BROKER
from tidelog.simulation.checks.group_history import Line as GroupLine
from tidelog.simulation.cluster import LOG_DIR, SECOND_LOG_DIR, SimBroker, SimCluster
from tidelog.simulation.diaries import GroupDiary
from tidelog.simulation.disk_faults import ALL, CHANGES, Fault
from tidelog.simulation.process import Process
from tidelog.simulation.replication import Replication

FARTHEST_MS = 1_500_000
"""Brokers refuse records from more than an hour in the future."""
DOUBT_SECONDS = 0.2
"""A commit that takes longer while faults happen may have been sent twice."""
DOUBTS_AFTER_THE_LAST_FAULT = 50
"""Ten seconds: a request that began during a fault has its answer by then."""


class Nemesis:
    """Does something bad every few moments, until `end`."""

    def __init__(
        self,
        cluster: SimCluster,
        rng: random.Random,
        diary: GroupDiary,
        *,
        keeps_synced_only: bool,
        clients: Callable[[], Sequence[Process]],
        replication: Replication | None = None,
        fills_disks_of: str | None = None,
        fills_whole_disks: bool = False,
        fails_folders: bool = False,
        delays_connections: bool = False,
    ) -> None:
        """With `replication`, power is also lost while nothing is synced, if the others have all of it.

        `fills_disks_of` names a topic whose records have no room at times. With `fills_whole_disks`, no file
        has room at times. With `fails_folders`, one of the two log folders of a broker breaks at times, and
        is whole again before a later start. With `delays_connections`, a request of the controller may arrive
        after others that it has sent later.
        """
        self.cluster = cluster
        self.world = cluster.world
        self.rng = rng
        self.is_over = False
        self._diary = diary
        self._clients = clients
        self._faults: list[tuple[int, Callable[[SimBroker], None]]] = [
            (4, self._kill),
            (2, self._stop),
            (3, self._pause),
            (3, self._cut),
            (2, self._slow_link),
            (2, self._reset),
            (2, self._slow_disk),
            (1, self._jump),
            (3, self._pause_client),
        ]
        if keeps_synced_only:
            self._faults.append((4, self._lose_power))
        if cluster.zookeeper is not None:
            self._zookeeper = cluster.zookeeper
            self._faults += [
                (3, self._lose_zookeeper),
                (2, self._cut_zookeeper),
                (3, self._expire),
                (1, self._stop_zookeeper),
                (4, self._ambush),
                (2, self._refuse),
            ]
        self._lies_in_wait = False
        self._replication = replication
        if replication is not None and not keeps_synced_only:
            self._faults.append((3, self._plan_to_lose_power))
        self._plans_to_lose_power = False
        self._repairs = 0
        self._doubts = DOUBTS_AFTER_THE_LAST_FAULT
        if fills_disks_of is not None:
            self._full_for = f"{LOG_DIR}/{fills_disks_of}-"
            self._faults.append((6, self._fill_disk))
        if fills_whole_disks:
            self._faults.append((6, self._fill_whole_disk))
        if fails_folders:
            self._faults.append((5, self._fail_folder))
        if delays_connections:
            self._faults.append((12, self._delay_connections))

    def begin(self) -> None:
        self._next()
        self._doubt()

    def _next(self) -> None:
        self.world.after(self.rng.expovariate(1 / 1.2), self._strike)

    def _strike(self) -> None:
        if self.is_over:
            return
        if self._has_to_wait():
            self.world.after(0.1, self._strike)
            return
        weights = [weight for weight, _ in self._faults]
        fault = self.rng.choices([fault for _, fault in self._faults], weights)[0]
        fault(self._victim())
        self._next()

    def _victim(self) -> SimBroker:
        """Any broker; often the controller, which has more to lose."""
        controller = self.cluster.controller
        if controller is not None and self.rng.random() < 0.35:
            return controller
        return self.rng.choice(self.cluster.brokers)

    def end(self) -> None:
        """Repair everything that is broken, and break nothing more."""
        self.is_over = True
        self._note("no more faults")
        self.world.network.restore_all()
        if self.cluster.zookeeper is not None:
            self._start_zookeeper()
            for broker in self.cluster.brokers:
                self._zookeeper.heal(broker.host)
        for process in list(self.world.processes):
            if process.is_paused:
                process.resume()
        for host in self.world.hosts.values():
            host.slow_disk_seconds = 0.0
            host.disk.heal()
        for broker in self.cluster.brokers:
            broker.restart_seconds = 0.5
            broker.start()

    def _note(self, what: str) -> None:
        self.world.history.add("nemesis", what)

    def _later(self, shortest: float, longest: float, repair: Callable[[], None]) -> None:
        def repaired() -> None:
            self._repairs -= 1
            self._disturbed()
            repair()

        self._repairs += 1
        self.world.after(self.rng.uniform(shortest, longest), repaired)

    # Brokers

    def _disturbed(self) -> None:
        """Tell the checker that a commit may be sent twice: refused, although the first one took effect."""
        self._diary.write([GroupLine(BROKER, "fell")])

    def _doubt(self) -> None:
        """Every moment, because a fault has effects for a while: replicas are waited for, for example."""
        self._disturbed()
        if self.is_over:
            self._doubts -= 1
        if self._doubts:
            self.world.after(DOUBT_SECONDS, self._doubt)

    def _fell(self, broker: SimBroker) -> None:
        self._disturbed()
        self._later(0.01, 4.0, broker.start)

    def _kill(self, broker: SimBroker) -> None:
        if broker.process is not None:
            broker.kill()
            self._fell(broker)

    def _lose_power(self, broker: SimBroker) -> None:
        if broker.process is not None:
            broker.lose_power()
            self._fell(broker)

    def _plan_to_lose_power(self, _: SimBroker) -> None:
        self._plans_to_lose_power = True

    def _has_to_wait(self) -> bool:
        """Whether another fault would lose records for good, which only one broker has.

        A broker that loses its power loses what it has not synced. The others have it if all is well, and
        until it has left the in-sync replicas nothing else may happen.
        """
        replication = self._replication
        if replication is None:
            return False
        is_well = not self._repairs and self.cluster.is_running and not self.world.network.cut_links
        if self._plans_to_lose_power and is_well and replication.is_whole():
            self._plans_to_lose_power = False
            broker = self._victim()
            replication.power_lost(broker)
            self._lose_power(broker)
        return self._plans_to_lose_power or replication.is_in_doubt

    def _stop(self, broker: SimBroker) -> None:
        if broker.is_running:
            broker.stop()
            self._fell(broker)
            # It may take long to stop, while it is paused for example.
            self._later(4.0, 8.0, broker.start)

    def _pause(self, broker: SimBroker, shortest: float = 0.05, longest: float = 7.0) -> None:
        broker.pause()
        self._disturbed()

        def resume() -> None:
            broker.resume()
            self._disturbed()

        self._later(shortest, longest, resume)

    def _reset(self, broker: SimBroker) -> None:
        broker.reset_connections()
        self._disturbed()

    def _slow_disk(self, broker: SimBroker) -> None:
        host = self.world.host(broker.host)
        host.slow_disk_seconds = self.rng.choice([0.002, 0.02, 0.1])
        self._note(f"the disk of {broker.name} takes up to {host.slow_disk_seconds} s longer")

        def repair() -> None:
            host.slow_disk_seconds = 0.0
            self._note(f"the disk of {broker.name} is fast again")

        self._later(0.5, 5.0, repair)

    def _fill_disk(self, broker: SimBroker) -> None:
        """Mostly for a moment: some of the batches that a producer has in flight are refused, others not."""
        host = self.world.host(broker.host)
        host.disk.faults.add(Fault(errno.ENOSPC, ("write",), ".log", self._full_for))
        self._note(f"the disk of {broker.name} is full")

        def repair() -> None:
            host.disk.faults.clear(self._full_for)
            self._note(f"the disk of {broker.name} has room again")

        self._later(*self.rng.choice([(0.001, 0.1), (0.1, 3.0)]), repair)

    def _fill_whole_disk(self, broker: SimBroker) -> None:
        """No file of the broker grows, and none is made. Often its session expires meanwhile."""
        host = self.world.host(broker.host)
        host.disk.faults.add(Fault(errno.ENOSPC, ("create", "write"), folder=f"{LOG_DIR}/"))
        self._note(f"the disk of {broker.name} is full, for every file")
        self._disturbed()
        if self.cluster.zookeeper is not None and self.rng.random() < 0.7:
            self.world.after(self.rng.uniform(0.0, 1.0), lambda: self._expire_if_on(broker))

        def repair() -> None:
            host.disk.faults.clear(f"{LOG_DIR}/")
            self._note(f"the disk of {broker.name} has room again, for every file")

        self._later(0.2, 5.0, repair)

    def _expire_if_on(self, broker: SimBroker) -> None:
        if not self.is_over:
            self._note(f"the ZooKeeper session of {broker.name} expires")
            self._zookeeper.expire(broker.host)

    def _fail_folder(self, broker: SimBroker) -> None:
        """A broker leaves a folder that broke alone until its next start, also when it is whole again."""
        folder = self.rng.choice((LOG_DIR, SECOND_LOG_DIR))
        operations = self.rng.choice((ALL, CHANGES, ("sync",)))
        self.world.host(broker.host).disk.faults.add(Fault(errno.EIO, operations, folder=folder))
        self._note(f"the folder {folder} of {broker.name} breaks: {', '.join(operations)}")
        self._disturbed()

        def heal() -> None:
            self.world.host(broker.host).disk.faults.clear(folder)
            self._note(f"the folder {folder} of {broker.name} is whole again")
            self._start_again(broker)

        def start_without() -> None:
            self._start_again(broker)
            self._later(0.5, 6.0, heal)

        self._later(0.1, 6.0, self.rng.choice((heal, start_without)))

    def _start_again(self, broker: SimBroker) -> None:
        if self.is_over:
            return
        if broker.process is None:
            broker.start()
        else:
            self.rng.choice((self._kill, self._stop))(broker)

    def _jump(self, broker: SimBroker) -> None:
        clock = self.world.host(broker.host).clock
        clock.jumped_ms = self.rng.randrange(-FARTHEST_MS, FARTHEST_MS)
        self._note(f"the clock of {broker.name} is set to {clock.jumped_ms} ms beside the others")

    # ZooKeeper

    def _lose_zookeeper(self, broker: SimBroker) -> None:
        self._note(f"{broker.name} loses its connection to ZooKeeper")
        self._zookeeper.lose_connection(broker.host)

    def _cut_zookeeper(self, broker: SimBroker) -> None:
        to_server, to_client = self.rng.choice([(True, True), (True, False), (False, True)])
        self._note(f"{broker.name} and ZooKeeper are cut off (requests {to_server}, answers {to_client})")
        self._zookeeper.cut(broker.host, to_server=to_server, to_client=to_client)

        def heal() -> None:
            self._note(f"{broker.name} and ZooKeeper are connected again")
            self._zookeeper.heal(broker.host)

        self._later(0.1, 7.0, heal)

    def _expire(self, broker: SimBroker) -> None:
        if self.rng.random() < 0.5:
            self._slow_disk(broker)  # appends are under way when it leads with new epochs
        self._note(f"the ZooKeeper session of {broker.name} expires")
        self._zookeeper.expire(broker.host)

    def _stop_zookeeper(self, _: SimBroker) -> None:
        self._note("ZooKeeper is stopped")
        self._zookeeper.stop()
        self._later(0.1, 5.0, self._start_zookeeper)

    def _start_zookeeper(self) -> None:
        self._note("ZooKeeper runs")
        self._zookeeper.start()

    # The controller, between a write to the tree and the requests that tell the brokers of it

    def _ambush(self, _: SimBroker) -> None:
        self._lies_in_wait = True

    def state_written(self) -> None:
        """The controller has changed the state of a partition: an ambush strikes it within moments."""
        self._disturbed()  # a coordinator may have moved
        if self._lies_in_wait:
            self._lies_in_wait = False
            self.world.after(self.rng.uniform(0.0, 0.004), self._surprise)

    def _surprise(self) -> None:
        controller = self.cluster.controller
        if controller is None or self.is_over or self._has_to_wait():
            return
        if self.rng.random() < 0.5:
            self._pause(controller, 4.5, 10.0)
        else:
            self._strand(controller)

    def _strand(self, controller: SimBroker) -> None:
        """Hold the requests of a controller until long after its session has expired."""
        network = self.world.network
        others = [broker.host for broker in self.cluster.brokers if broker is not controller]
        self._note(f"{controller.name} is cut off from ZooKeeper, and reaches no other broker")
        for other in others:
            network.cut(controller.host, other)
        self._zookeeper.cut(controller.host)
        self._disturbed()

        def repair() -> None:
            self._note(f"{controller.name} reaches the other brokers and ZooKeeper again")
            for other in others:
                network.restore(controller.host, other)
            self._zookeeper.heal(controller.host)
            self._disturbed()

        self._later(4.5, 10.0, repair)

    # Links

    def _other_host(self, broker: SimBroker) -> str:
        others = [other.host for other in self.cluster.brokers if other is not broker]
        if others and self.rng.random() < 0.4:
            return self.rng.choice(others)
        return self.rng.choice(sorted(name for name in self.world.hosts if name != broker.host))

    def _cut(self, broker: SimBroker) -> None:
        network, other = self.world.network, self._other_host(broker)
        ways = [(broker.host, other), (other, broker.host)]
        if self.rng.random() < 0.5:
            ways = [self.rng.choice(ways)]
        for source, target in ways:
            self._note(f"the link from {source} to {target} is cut")
            network.cut(source, target)
        self._disturbed()

        def repair() -> None:
            for source, target in ways:
                self._note(f"the link from {source} to {target} is back")
                network.restore(source, target)
            self._disturbed()

        self._later(0.1, 6.0, repair)

    def _refuse(self, broker: SimBroker) -> None:
        """A firewall ends the connections to a broker that lives, and refuses new ones, of some or of all."""
        network = self.world.network
        hosts = [name for name in sorted(self.world.hosts) if name != broker.host]
        if self.rng.random() < 0.3:
            hosts = [self.rng.choice(hosts)]
        self._note(f"connections to {broker.name} are refused, of {', '.join(hosts)}")
        for host in hosts:
            network.refuse(host, broker.host)
        broker.reset_connections()
        self._disturbed()

        def repair() -> None:
            self._note(f"connections to {broker.name} are accepted again")
            for host in hosts:
                network.accept(host, broker.host)
            self._disturbed()

        self._later(0.1, 6.0, repair)

    def _slow_link(self, broker: SimBroker) -> None:
        network, other = self.world.network, self._other_host(broker)
        seconds = self.rng.choice([0.01, 0.1, 1.0])
        ways = [(broker.host, other), (other, broker.host)]
        for source, target in ways:
            self._note(f"the link from {source} to {target} takes up to {seconds} s longer")
            network.slow_down(source, target, seconds)
        self._disturbed()

        def repair() -> None:
            for source, target in ways:
                network.slow_down(source, target, 0.0)

        self._later(0.5, 5.0, repair)

    def _delay_connections(self, _: SimBroker) -> None:
        """What the controller has sent another broker, and sends it now, arrives after newer requests."""
        controller = self.cluster.controller
        if controller is None:
            return
        other = self.rng.choice([broker for broker in self.cluster.brokers if broker is not controller])
        seconds = self.rng.uniform(1.5, 6.0)
        self._note(f"the connections of {controller.name} to {other.name} are {seconds:.1f} s late")
        self.world.network.delay_connections(controller.host, other.host, seconds)
        self._disturbed()
        self._later(seconds, seconds, self._disturbed)

    # Clients

    def _pause_client(self, _: SimBroker) -> None:
        running = [process for process in self._clients() if not process.is_paused]
        members = [process for process in running if process.name.startswith("member")]
        if members and self.rng.random() < 0.5:
            running = members  # whose sessions expire
        if running:
            process = self.rng.choice(running)
            self._note(f"{process.name} is paused")
            process.pause()
            self._disturbed()
            shortest, longest = self.rng.choice([(0.1, 2.0), (4.5, 8.0)])
            self._later(shortest, longest, process.resume)
