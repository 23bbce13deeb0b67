"""The blocking and the asynchronous clients have the same calls, and all that these name is in `tidelog`."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import types
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import tidelog
from tidelog import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Consumer,
    HandlerConsumer,
    Producer,
    errors,
)
from tidelog.clients import errors as client_errors
from tidelog.clients.consumer import errors as consumer_errors
from tidelog.clients.handlers import plan
from tidelog.config import ConfigError

PAIRS = [(Producer, AsyncProducer), (Consumer, AsyncConsumer)]
# A blocking client starts in its constructor, which cannot await.
ASYNCHRONOUS_ONLY = {"start"}
SPECIAL = {
    "__enter__": "__aenter__",
    "__exit__": "__aexit__",
    "__init__": "__init__",
    "__iter__": "__aiter__",
}


def public(client: type) -> dict[str, object]:
    return {name: inspect.getattr_static(client, name) for name in dir(client) if not name.startswith("_")}


def shape(call: object) -> tuple[object, ...]:
    """Parameters with kinds, defaults and annotations, and the result without the wait for it."""
    if isinstance(call, property):
        call = call.fget
    assert callable(call)
    signature = inspect.signature(call)
    result = re.sub(r"^Async(?=Iterator\[)", "", str(signature.return_annotation))
    return (*signature.parameters.values(), result)


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS, ids=["producer", "consumer"])
def test_both_forms_of_a_client_have_the_same_calls(blocking: type, asynchronous: type) -> None:
    ours, theirs = public(blocking), public(asynchronous)
    assert set(theirs) - set(ours) == ASYNCHRONOUS_ONLY
    assert set(ours) <= set(theirs)
    for name, call in ours.items():
        assert type(call) is type(theirs[name]), name
        assert shape(call) == shape(theirs[name]), name
    for name, other in SPECIAL.items():
        if hasattr(blocking, name):
            assert shape(getattr(blocking, name)) == shape(getattr(asynchronous, other)), name


def test_a_difference_of_two_calls_is_seen() -> None:
    def call(topic: str, key: bytes | None = None) -> Iterator[int]: ...
    async def same(topic: str, key: bytes | None = None) -> AsyncIterator[int]: ...
    async def other_default(topic: str, key: bytes | None = b"") -> Iterator[int]: ...
    async def other_kind(topic: str, *, key: bytes | None = None) -> Iterator[int]: ...
    async def other_type(topic: str, key: str | None = None) -> Iterator[int]: ...
    async def other_result(topic: str, key: bytes | None = None) -> Iterator[str]: ...

    assert shape(call) == shape(same)
    for other in (other_default, other_kind, other_type, other_result):
        assert shape(call) != shape(other)


# -- what `tidelog` exports


@cache
def imports_of(module: types.ModuleType) -> dict[str, str]:
    """The module that each imported name comes from, imports for type checkers alone included."""
    tree = ast.parse(inspect.getsource(module))
    return {
        name.asname or name.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }


def named_in(text: str, module: types.ModuleType) -> set[type]:
    """The classes of tidelog that an annotation in a module names, also by way of type aliases."""
    found: set[type] = set()
    for node in ast.walk(ast.parse(text, mode="eval")):
        if isinstance(node, ast.Name):
            home = imports_of(module).get(node.id, module.__name__)
            if home.startswith("tidelog."):
                origin = importlib.import_module(home)
                found |= classes_in(getattr(origin, node.id, None), origin)
    return found


def classes_in(value: object, module: types.ModuleType) -> set[type]:
    if isinstance(value, typing.ForwardRef | str):
        return named_in(value if isinstance(value, str) else value.__forward_arg__, module)
    if isinstance(value, list | tuple):
        return set().union(*(classes_in(part, module) for part in value))
    if isinstance(value, type) and typing.get_origin(value) is None:
        return {value} if value.__module__.startswith("tidelog.") else set()
    if value is None:
        return set()
    return classes_in(typing.get_origin(value), module) | classes_in(typing.get_args(value), module)


def annotated(call: Callable[..., object]) -> set[type]:
    """The classes of tidelog that the annotations of a call name."""
    inner = inspect.unwrap(call)
    module = importlib.import_module(inner.__module__)
    return set().union(*(named_in(str(text), module) for text in inner.__annotations__.values()))


def test_classes_are_found_behind_aliases_and_in_imports_for_type_checkers() -> None:
    sent = annotated(Producer.send_offsets_to_transaction) | annotated(Producer.send)
    assert {tidelog.ConsumerGroupMetadata, tidelog.OffsetAndMetadata, tidelog.RecordMetadata} <= sent
    assert {tidelog.ProducerConfig, tidelog.Serializer} <= annotated(Producer.__init__)
    assert tidelog.SentColumns in annotated(Producer.send_arrow)


@pytest.mark.parametrize(
    "client",
    [Producer, AsyncProducer, Consumer, AsyncConsumer, HandlerConsumer, Admin, AsyncAdmin],
    ids=lambda client: client.__name__,
)
def test_every_class_in_the_annotations_of_a_client_is_exported(client: type) -> None:
    members = {name: getattr(client, name) for name in public(client)}
    calls = [call.fget if isinstance(call, property) else call for call in members.values()]
    reached = set().union(*(annotated(call) for call in [client.__init__, *calls]))  # type: ignore[misc]
    reached -= set(AsyncAdmin.__mro__)  # `self` of the admin's calls, which are functions of their modules
    hidden = {kind.__qualname__ for kind in reached if kind is not getattr(tidelog, kind.__name__, None)}
    assert hidden == set()


def test_every_exception_is_exported() -> None:
    modules = (errors, client_errors, consumer_errors, plan)
    raised = {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__.startswith("tidelog.")
    }
    assert {errors.ProducerFenced, client_errors.WakeupException, plan.HandlerFailed, ConfigError} <= raised
    assert [kind.__name__ for kind in raised if getattr(tidelog, kind.__name__, None) is not kind] == []


def test_every_exported_name_is_found_and_is_the_one_that_type_checkers_see() -> None:
    tree = ast.parse(Path(tidelog.__file__).read_text())
    shown = {
        name.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tidelog.")
        for name in node.names
        if name.name != "*"
    }
    shown |= dict.fromkeys(set(tidelog.__all__) - shown.keys(), "tidelog.errors")
    assert set(shown) == set(tidelog.__all__)
    assert set(dir(tidelog)) >= set(tidelog.__all__)
    for name, module in shown.items():
        assert getattr(tidelog, name) is getattr(import_module(module), name)
