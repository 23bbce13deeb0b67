"""Finds pipelines: built-in ones by name, others by file or module.

A pipeline is a module with a `PIPELINE`. A file needs no installation: its functions are pickled by value for
Spark's workers.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from tidelog.spark.pipelines.declare import Flow, Pipeline, Table
from tidelog.spark.pipelines.expectations import mistake

BUILT_IN: dict[str, str] = {
    "collect": "tidelog.spark.pipelines.collect",
    "device-watch": "tidelog.spark.pipelines.device_watch",
    "invite-watch": "tidelog.spark.pipelines.invite_watch",
    "region": "tidelog.spark.pipelines.region",
    "earnings": "tidelog.spark.pipelines.earnings",
}
ALL = "all"


def find(name: str) -> Pipeline:
    """The pipeline of a name, a file (`./mine.py`) or a module (`package.module`)."""
    if name in BUILT_IN:
        return declared(importlib.import_module(BUILT_IN[name]), name)
    if name.endswith(".py") or "/" in name:
        return declared(load_file(Path(name)), name)
    if "." in name:
        return declared(load_module(name), name)
    near = difflib.get_close_matches(name, [*BUILT_IN, ALL], n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(BUILT_IN)}."
    raise UnknownPipeline(
        f"no pipeline is named {name}; {hint} Name your own by its file, ./{name}.py, or its module"
    )


def find_all(names: Iterable[str | Pipeline]) -> tuple[Pipeline, ...]:
    """The pipelines of several names; `all` stands for the built-in ones."""
    found: dict[str, Pipeline] = {}
    for name in names:
        for single in BUILT_IN if name == ALL else (name,):
            pipeline = find(single) if isinstance(single, str) else single
            other = found.setdefault(pipeline.name, pipeline)
            if other is not pipeline:
                raise UnknownPipeline(
                    f"two different pipelines are named {pipeline.name}: checkpoint and status have the same "
                    "name, so rename one of them"
                )
    if not found:
        raise UnknownPipeline(f"no pipeline was named; there are {', '.join(BUILT_IN)}")
    return tuple(found.values())


class UnknownPipeline(ValueError):
    """No pipeline has this name, or its file or module has none."""


def declared(module: ModuleType, name: str) -> Pipeline:
    found = getattr(module, "PIPELINE", None)
    if not isinstance(found, Pipeline):
        what = "has no PIPELINE" if found is None else f"has a PIPELINE that is a {type(found).__name__}"
        raise UnknownPipeline(
            f"{name} {what}; expected PIPELINE = Pipeline(...) of tidelog.spark.pipelines.declare"
        )
    return found


def load_file(path: Path) -> ModuleType:
    """Import the module of a file. It can import the modules beside it, as any Python program."""
    path = path.expanduser().resolve()
    if not path.is_file():
        raise UnknownPipeline(f"there is no file {path}")
    name = path.stem
    already = sys.modules.get(name)
    if already is not None and getattr(already, "__file__", None) == str(path):
        return already
    if already is not None or not name.isidentifier():
        name = "tidelog_pipeline_" + "".join(letter if letter.isalnum() else "_" for letter in name)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UnknownPipeline(f"{path} is not a Python file")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise failed_import(str(path), error) from error
    _pickle_by_value(module)
    return module


def load_module(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.append("")  # for packages in the working directory
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise UnknownPipeline(f"there is no module {name}; name a file by its path, ./mine.py") from None
        raise failed_import(name, error) from error
    except Exception as error:
        raise failed_import(name, error) from error
    _pickle_by_value(module)
    return module


def failed_import(name: str, error: Exception) -> Exception:
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in SPARK_PACKAGES:
        return error  # its one line about the missing installation is clearer
    return UnknownPipeline(f"{name} cannot be imported: {type(error).__name__}: {error}")


SPARK_PACKAGES = frozenset({"pyspark", "pandas", "pyarrow", "phonenumbers"})


def _pickle_by_value(module: ModuleType) -> None:
    """Pickle the functions of a module by value, since workers on other machines do not have it."""
    try:
        from pyspark import cloudpickle
    except ImportError:
        return
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def check_flows(pipeline: Pipeline, flows: tuple[Flow, ...]) -> None:
    """Raise UnknownPipeline for an invalid declaration, before a stream is started."""
    if not flows:
        raise UnknownPipeline(f"{pipeline.name} declares no flow")
    names = [flow.name for flow in flows]
    for name in (pipeline.name, *names):
        if not name or any(letter in name for letter in "/\\:?*\0") or name.startswith("."):
            raise UnknownPipeline(
                f"{name!r} cannot be the name of a pipeline or a flow: a folder gets the same name"
            )
    for flow in flows:
        if names.count(flow.name) > 1:
            raise UnknownPipeline(
                f"{pipeline.name} has two flows named {flow.name}: each has its own checkpoint"
            )
        if not flow.sinks:
            raise UnknownPipeline(f"flow {flow.name} of {pipeline.name} has no sink")
        if not flow.source.topics:
            raise UnknownPipeline(f"flow {flow.name} of {pipeline.name} reads no topic")
        sinks = [(type(sink), sink.name) for sink in flow.sinks]
        for sink in sinks:
            if sinks.count(sink) > 1:
                raise UnknownPipeline(f"flow {flow.name} of {pipeline.name} has two sinks named {sink[1]}")
        wrong = mistake(flow.expect, None)
        for one in flow.sinks:
            if isinstance(one, Table):
                wrong = wrong or mistake(one.expect, one.partition_by)
        if wrong is not None:
            raise UnknownPipeline(f"flow {flow.name} of {pipeline.name}: {wrong}")
