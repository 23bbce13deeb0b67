"""`tidelog-sim` for tests: `python -m tests.simulation SEED --plant NAME` breaks the program on purpose."""

from __future__ import annotations

import sys

from tests.simulation.planted import PLANTED, planted
from tidelog.simulation.__main__ import parser, replay, run, with_fixed_hashes
from tidelog.simulation.story import Outcome


def main() -> int:
    made = parser("tests.simulation", __doc__)
    made.add_argument("--plant", choices=sorted(PLANTED), help="the fault that the program has")
    options = made.parse_args()
    with_fixed_hashes("tests.simulation")

    def run_planted(seed: int) -> Outcome:
        with planted(options.plant):
            return run(seed, options)

    return replay(options, run_planted)


if __name__ == "__main__":
    sys.exit(main())
