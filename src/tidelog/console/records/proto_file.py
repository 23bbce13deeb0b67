"""Protobuf schema files: descriptor sets, and `.proto` files, which protoc makes descriptor sets of."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tidelog.console.records.decoder import DecodeError

if TYPE_CHECKING:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

COMPILE_SECONDS = 60
WELL_KNOWN = (
    "any", "source_context", "type", "api", "descriptor", "duration", "empty", "field_mask", "struct",
    "timestamp", "wrappers",
)  # fmt: skip
"""Each after the files that it imports."""


def descriptor_set(path: str | Path) -> bytes:
    """The bytes of a descriptor set file, or of the set that protoc makes of a `.proto` file.

    The files that a `.proto` file imports are searched in its folder. Raises OSError, or DecodeError with
    the words of protoc or without protoc.
    """
    path = Path(path)
    return compile_proto(path) if path.suffix == ".proto" else path.read_bytes()


def compile_proto(path: Path) -> bytes:
    """The descriptor set of a `.proto` file and of all files that it imports."""
    compiler = find_compiler()
    if compiler is None:
        raise DecodeError(
            f"{path.name} cannot be compiled: protoc is not installed. Install it (pip install grpcio-tools "
            f"has it, too), or give a descriptor set that was made elsewhere with "
            f"protoc --include_imports -o schema.desc {path.name}"
        )
    source = path.resolve()
    if not source.is_file():
        raise FileNotFoundError(2, "No such file or directory", str(path))
    with tempfile.TemporaryDirectory() as folder:
        made, known = Path(folder) / "schema.desc", Path(folder) / "known.desc"
        known.write_bytes(_well_known())
        command = [
            *compiler,
            f"--proto_path={source.parent}",
            f"--descriptor_set_in={known}",
            "--include_imports",
            f"-o{made}",
            source.name,
        ]
        try:
            done = subprocess.run(command, capture_output=True, timeout=COMPILE_SECONDS, text=True)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise DecodeError(f"protoc failed on {path.name}: {error}") from None
        if done.returncode:
            raise DecodeError(f"protoc refuses {path.name}: {done.stderr.strip()[:500]}")
        return made.read_bytes()


def _well_known() -> bytes:
    """The descriptor set of Protobuf's own files, such as google/protobuf/timestamp.proto.

    Debian's protoc comes without them. Raises DecodeError without the package protobuf.
    """
    try:
        from google.protobuf import descriptor_pb2
    except ImportError:
        raise DecodeError('Protobuf needs a package: pip install "tidelog[decoders]"') from None
    found = descriptor_pb2.FileDescriptorSet()
    for name in WELL_KNOWN:
        import_module(f"google.protobuf.{name}_pb2").DESCRIPTOR.CopyToProto(found.file.add())
    serialized: bytes = found.SerializeToString()
    return serialized


def find_compiler() -> list[str] | None:
    """The command of protoc: the program, or that of the package grpcio-tools; None without both."""
    program = shutil.which("protoc")
    if program is not None:
        return [program]
    if find_spec("grpc_tools") is not None:
        return [sys.executable, "-m", "grpc_tools.protoc"]
    return None


def message_names(file: FileDescriptorProto) -> Iterator[str]:
    """The messages on the top level of a file, with its package."""
    for message in file.message_type:
        yield f"{file.package}.{message.name}" if file.package else message.name
