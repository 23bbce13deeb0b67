"""Builds the compiled twins of the record loops, of the reader of JSON values, and of what is done with every
small request.

Without a C compiler or Cython the install goes on without them: their packages then use plain Python, which
does the same.
"""

import os
from glob import glob
from pathlib import Path

from setuptools import Extension, setup

TWINS = (("records", "_speed"), ("records", "_json"), ("network", "_speed"))


def extensions() -> list[Extension]:
    source = "src/tidelog"
    if os.environ.get("TIDELOG_WITHOUT_COMPILED") == "1":
        return []  # a wheel for every machine
    if not Path(__file__).parent.joinpath(source, "records", "_speed.pyx").exists():
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    twins = [
        Extension(
            f"tidelog.{package}.{name}",
            [f"{source}/{package}/{name}.pyx"],
            # A change in one of its parts builds it again.
            depends=sorted(glob(f"{source}/{package}/{name}_*.pxi")),
            extra_compile_args=["-O3"],
        )
        for package, name in TWINS
    ]
    built: list[Extension] = cythonize(twins, language_level=3)
    for extension in built:
        extension.optional = True  # Cython makes new objects and forgets this one
    return built


setup(ext_modules=extensions())
