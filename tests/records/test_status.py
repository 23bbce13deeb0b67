"""The numbers of findings are the same in plain Python and in the compiled module."""

from __future__ import annotations

import re
from pathlib import Path

from tidelog.records import status

CYTHON = Path(status.__file__).parent / "_speed_status.pxi"


def test_cython_has_the_numbers_of_the_public_module() -> None:
    public = {name: value for name, value in vars(status).items() if name.isupper()}
    assert {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", CYTHON.read_text())} == public


def test_each_number_has_one_meaning() -> None:
    numbers = [value for name, value in vars(status).items() if name.isupper()]
    assert sorted(numbers) == list(range(len(numbers)))
