"""The size of a test: a seeded short form for every run, the long form for `make test-long`."""

import os


def scale(short: int, long: int) -> int:
    return long if os.environ.get("TIDELOG_LONG") == "1" else short
