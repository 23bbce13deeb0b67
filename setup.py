"""Builds the compiled twins of the record loops and of the reader of JSON values.

Without a C compiler or Cython the install goes on without it: `tidelog.records` then uses its plain Python
functions, which do the same.
"""

from glob import glob
from pathlib import Path

from setuptools import Extension, setup

TWINS = ("_speed", "_json")


def extensions() -> list[Extension]:
    folder = "src/tidelog/records"
    if not Path(__file__).parent.joinpath(folder, "_speed.pyx").exists():
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    twins = [
        Extension(
            f"tidelog.records.{name}",
            [f"{folder}/{name}.pyx"],
            depends=sorted(glob(f"{folder}/{name}_*.pxi")),  # a change in one of its parts builds it again
            extra_compile_args=["-O3"],
        )
        for name in TWINS
    ]
    built: list[Extension] = cythonize(twins, language_level=3)
    for extension in built:
        extension.optional = True  # Cython makes new objects and forgets this one
    return built


setup(ext_modules=extensions())
