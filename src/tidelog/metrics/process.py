"""CPU, memory and descriptors of this process, under the names of Prometheus' own clients.

Dashboards for Kafka show the JVM's memory, collections and threads. Their names show Python's counterparts.
"""

from __future__ import annotations

import gc
import os
import resource
import threading
import time
from collections.abc import Iterator, Mapping
from weakref import ref

from tidelog.metrics.registry import Family

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
MACHINE_BYTES = PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")


class CollectionTimes:
    """Counts the runs of Python's garbage collector and their time, from the first reading on."""

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0
        self._began = 0.0
        self._is_watching = False

    def families(self) -> Iterator[Family]:
        if not self._is_watching:
            self._is_watching = True
            self._watch()
        labels = (("gc", "python"),)
        text = "Python's garbage collections, under the name of the JVM's."
        yield Family("jvm_gc_collection_seconds_count", "counter", [(labels, self.count)], text)
        text = "Time of Python's garbage collections, under the name of the JVM's."
        yield Family("jvm_gc_collection_seconds_sum", "counter", [(labels, self.seconds)], text)

    def _watch(self) -> None:
        own = ref(self)

        def collected(phase: str, _info: Mapping[str, int]) -> None:
            times = own()
            if times is None:
                gc.callbacks.remove(collected)
            elif phase == "start":
                times._began = time.perf_counter()
            else:
                times.count += 1
                times.seconds += time.perf_counter() - times._began

        gc.callbacks.append(collected)


class ProcessMetrics:
    """Reads /proc. Without it, as on macOS, only the CPU time and the limit of descriptors are known."""

    def __init__(self, started_seconds: float) -> None:
        self._started_seconds = started_seconds
        self._collections = CollectionTimes()

    def families(self) -> Iterator[Family]:
        yield from self._collections.families()
        threads = "Threads of Python, under the name of the JVM's threads."
        yield Family("jvm_threads_current", "gauge", [((), threading.active_count())], threads)
        used = resource.getrusage(resource.RUSAGE_SELF)
        yield _family(
            "cpu_seconds_total", "counter", used.ru_utime + used.ru_stime, "CPU time, user and system."
        )
        yield _family(
            "start_time_seconds", "gauge", self._started_seconds, "When the broker started, since 1970."
        )
        most_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        yield _family("max_fds", "gauge", most_files, "How many descriptors the process may have open.")
        try:
            with open("/proc/self/statm") as statm:
                virtual, resident = (int(pages) * PAGE_BYTES for pages in statm.read().split()[:2])
            open_files = open_descriptors()
        except OSError:
            return
        yield _family("resident_memory_bytes", "gauge", resident, "Memory that is resident.")
        heap = (("area", "heap"),)
        text = "Resident memory of the process, under the name of the JVM's heap."
        yield Family("jvm_memory_used_bytes", "gauge", [(heap, resident)], text)
        text = "Memory of the machine, under the name of the JVM's largest heap."
        yield Family("jvm_memory_bytes_max", "gauge", [(heap, MACHINE_BYTES)], text)
        yield _family("virtual_memory_bytes", "gauge", virtual, "Memory that is mapped.")
        yield _family("open_fds", "gauge", open_files, "Descriptors that are open.")


def open_descriptors() -> int:
    """How many descriptors the process has open. OSError without /proc.

    Linux tells it from 6.2 on as the size of the folder. To list thousands of descriptors takes milliseconds,
    in which the broker answers nobody.
    """
    counted = os.stat("/proc/self/fd").st_size
    return counted or len(os.listdir("/proc/self/fd")) - 1  # the listing itself has one open


def _family(name: str, kind: str, value: float, help_text: str) -> Family:
    return Family(f"process_{name}", kind, [((), value)], help_text)
