"""Builds the compiled twin of the record loops.

Without a C compiler or Cython the install goes on without it: `tidelog.records` then uses its plain Python
functions, which do the same.
"""

from pathlib import Path

from setuptools import Extension, setup

SOURCE = "src/tidelog/records/_speed.pyx"


def extensions() -> list[Extension]:
    if not Path(__file__).with_name("src").joinpath("tidelog/records/_speed.pyx").exists():
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    twin = Extension("tidelog.records._speed", [SOURCE], extra_compile_args=["-O3"], optional=True)
    built: list[Extension] = cythonize([twin], language_level=3)
    for extension in built:
        extension.optional = True  # Cython makes new objects and forgets this one
    return built


setup(ext_modules=extensions())
