"""AppendRules: the rules for the batches of a topic, for each way that a batch can take to its log."""

from __future__ import annotations

from dataclasses import replace

from tidelog.records.check import ProduceRules

# The most bytes that a batch may unpack to on the loop; the worker takes larger ones.
UNPACKED_ON_LOOP = 1 << 20


class AppendRules:
    """The rules for the batches of a topic, by their checker (loop or worker) and their origin."""

    __slots__ = ("_every", "on_loop", "on_loop_without_zstd", "own_on_loop")

    def __init__(self, rules: ProduceRules) -> None:
        small = replace(rules, max_unpacked=min(rules.max_unpacked, UNPACKED_ON_LOOP))
        self._every = {
            (on_loop, allow_zstd, from_client): replace(
                small if on_loop else rules, allow_zstd=allow_zstd, from_client=from_client
            )
            for on_loop in (False, True)
            for allow_zstd in (False, True)
            for from_client in (False, True)
        }
        self.on_loop = self.of(on_loop=True)
        self.own_on_loop = self.of(on_loop=True, from_client=False)
        # Produce below version 7 does not know zstd.
        self.on_loop_without_zstd = self.of(on_loop=True, allow_zstd=False)

    def of(self, *, on_loop: bool, allow_zstd: bool = True, from_client: bool = True) -> ProduceRules:
        """Batches that the broker makes (not `from_client`) may be control batches and have no sequences."""
        return self._every[on_loop, allow_zstd, from_client]


class AppendRulesTable:
    """Shares one AppendRules between the partitions with the same rules: it stays in the CPU cache."""

    def __init__(self) -> None:
        self._known: dict[ProduceRules, AppendRules] = {}

    def of(self, rules: ProduceRules) -> AppendRules:
        found = self._known.get(rules)
        if found is None:
            found = self._known[rules] = AppendRules(rules)
        return found
