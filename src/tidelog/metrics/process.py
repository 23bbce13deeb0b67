"""CPU, memory and descriptors of this process, under the names of Prometheus' own clients."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

from tidelog.metrics.registry import Family

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class ProcessMetrics:
    """Reads /proc. Without it, as on macOS, only the CPU time and the limit of descriptors are known."""

    def __init__(self, started_seconds: float) -> None:
        self._started_seconds = started_seconds

    def families(self) -> Iterator[Family]:
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
            open_files = len(os.listdir("/proc/self/fd")) - 1  # the listing itself has one open
        except OSError:
            return
        yield _family("resident_memory_bytes", "gauge", resident, "Memory that is resident.")
        yield _family("virtual_memory_bytes", "gauge", virtual, "Memory that is mapped.")
        yield _family("open_fds", "gauge", open_files, "Descriptors that are open.")


def _family(name: str, kind: str, value: float, help_text: str) -> Family:
    return Family(f"process_{name}", kind, [((), value)], help_text)
