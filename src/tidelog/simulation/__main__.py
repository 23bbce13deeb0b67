"""`tidelog-sim SEED`, also `python -m tidelog.simulation SEED`: replays a seed and prints its history.

A list of seeds and ranges such as 17,0-49 runs many seeds and prints only what went wrong, one JSON object
for each.
The exit code is 1 if a seed breaks a promise.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Final

from tidelog.simulation.story import FAULT_SECONDS, Outcome, Story

HASH_SEED: Final = "0"

Run = Callable[[int], Outcome]


def main() -> int:
    options = parser("tidelog-sim", __doc__).parse_args()
    with_fixed_hashes("tidelog.simulation")
    return replay(options, lambda seed: run(seed, options))


def parser(name: str, description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(name, description=description)
    made.add_argument("seeds", type=_seeds, metavar="SEED", help="a seed, or a list such as 17,0-49")
    made.add_argument(
        "--brokers",
        type=int,
        default=3,
        help="how many brokers run: one has an embedded tree, more have a ZooKeeper (default: 3)",
    )
    made.add_argument(
        "--replicas",
        type=int,
        default=1,
        help="the replication factor of all topics (default: %(default)s)",
    )
    made.add_argument(
        "--seconds",
        type=float,
        default=FAULT_SECONDS,
        help="for how many simulated seconds faults happen (default: %(default)s)",
    )
    made.add_argument(
        "--log",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
        default="WARNING",
        help="the lowest level of log lines in the history (default: WARNING)",
    )
    made.add_argument(
        "--fill-disks", action="store_true", help="let brokers have no room for some records at times"
    )
    made.add_argument(
        "--fill-whole-disks",
        action="store_true",
        help="let brokers have no room for any file at times, often while their session expires",
    )
    made.add_argument(
        "--fail-folders",
        action="store_true",
        help="let one of the two log folders of a broker break at times",
    )
    made.add_argument(
        "--delay-connections",
        action="store_true",
        help="let brokers get old requests of the controller after newer ones at times",
    )
    made.add_argument("--who", action="append", help="print only the lines of this process; may be repeated")
    made.add_argument("--until-found", action="store_true", help="stop at the first seed with a problem")
    return made


def _seeds(text: str) -> Sequence[int]:
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def with_fixed_hashes(module: str) -> None:
    """Start this process again unless its hashes are those of every replay: sets are ordered by them."""
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]])


def run(seed: int, options: argparse.Namespace) -> Outcome:
    level = logging.getLevelNamesMapping()[options.log]
    return Story(
        seed,
        options.brokers,
        options.seconds,
        level,
        options.replicas,
        fills_disks=options.fill_disks,
        fills_whole_disks=options.fill_whole_disks,
        fails_folders=options.fail_folders,
        delays_connections=options.delay_connections,
    ).run()


def replay(options: argparse.Namespace, run: Run) -> int:
    """Run the seeds and print the histories or problems; returns the exit code."""
    found = False
    for seed in options.seeds:
        outcome = run(seed)
        found = found or bool(outcome.problems)
        if len(options.seeds) == 1:
            print(
                *(event for event in outcome.history if event.who in (options.who or [event.who])), sep="\n"
            )
            print(f"{len(outcome.problems)} problems", *outcome.problems, sep="\n")
        elif outcome.problems:
            print(json.dumps({"seed": seed, "problems": outcome.problems}), flush=True)
        if found and options.until_found:
            break
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
