"""Replays seeds: `python -m tests.simulation SEED [--brokers N] [--plant NAME]` prints the history of a run.

A range such as 0-49 runs many seeds and prints only what went wrong, one JSON object for each.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys

from tests.simulation.planted import PLANTED, planted
from tests.simulation.story import FAULT_SECONDS, Outcome, Story

HASH_SEED = "0"


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.add_argument("seeds", help="a seed, or a range such as 0-49")
    parser.add_argument(
        "--brokers", type=int, default=3, help="1 has an embedded tree, more have a ZooKeeper"
    )
    parser.add_argument("--seconds", type=float, default=FAULT_SECONDS, help="how long faults happen")
    parser.add_argument("--plant", choices=sorted(PLANTED), help="break the program on purpose")
    parser.add_argument("--log", default="WARNING", help="the level of log lines in the history")
    parser.add_argument("--until-found", action="store_true", help="stop at the first seed with a problem")
    options = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != HASH_SEED:
        # The order of sets of names depends on it, and a seed has to replay in every process.
        os.environ["PYTHONHASHSEED"] = HASH_SEED
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])
    first, _, last = options.seeds.partition("-")
    found = 0
    for seed in range(int(first), int(last or first) + 1):
        outcome = _run(seed, options)
        if not last:
            print(outcome.history, end="")
            print(f"{len(outcome.problems)} problems", *outcome.problems, sep="\n")
        elif outcome.problems:
            print(json.dumps({"seed": seed, "problems": outcome.problems}), flush=True)
        found += bool(outcome.problems)
        if found and options.until_found:
            break
    return 1 if found else 0


def _run(seed: int, options: argparse.Namespace) -> Outcome:
    level = logging.getLevelNamesMapping()[options.log]
    with planted(options.plant):
        return Story(seed, options.brokers, options.seconds, level).run()


if __name__ == "__main__":
    sys.exit(main())
