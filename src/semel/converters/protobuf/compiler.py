"""Compiles the schemas of a registry: ``protoc`` reads them, in a process of its own.

A schema is a text, or a ``FileDescriptorProto`` in base64, as Confluent's serializer of Python
registers it.
"""

from __future__ import annotations

import base64
import binascii
import errno
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from semel.core.errors import Unavailable
from semel.core.quoting import named

_CONFLUENT = {
    "confluent/meta.proto": """
        syntax = "proto3";
        package confluent;
        import "google/protobuf/descriptor.proto";
        message Meta {
          string doc = 1;
          map<string, string> params = 2;
          repeated string tags = 3;
        }
        extend google.protobuf.FileOptions { Meta file_meta = 1088; }
        extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
        extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
        extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
        extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
    """,
    "confluent/type/decimal.proto": """
        syntax = "proto3";
        package confluent.type;
        message Decimal { bytes value = 1; uint32 precision = 2; int32 scale = 3; }
    """,
    "confluent/type/variant.proto": """
        syntax = "proto3";
        package confluent.type;
        message Variant { bytes metadata = 1; bytes value = 2; }
    """,
}
"""Files that every schema may import without registering them, beside Google's."""
_LONGEST = 4 * 1024 * 1024
_PATIENCE = 120
"""Seconds after which the machine is at fault, and not the schema."""
_PROTOC = """
import resource, sys
limits = {"CPU": 20, "AS": 1 << 30, "FSIZE": 64 << 20, "CORE": 0}
for name, limit in limits.items():
    kind = getattr(resource, f"RLIMIT_{name}")
    hard = resource.getrlimit(kind)[1]
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (limit, hard if name == "CPU" else limit))
sys.path.insert(0, sys.argv[1])
from grpc_tools import protoc
sys.exit(protoc.main(["protoc", *sys.argv[2:]]))
"""
_COMPLAINT = re.compile(r"^([^:\n]+):(?:(\d+):\d+:)? *([^\n]+)$", re.MULTILINE)
_UNWRITTEN = re.compile(r"^\.\./out\.set: ", re.MULTILINE)
_MISSING = "File not found."
_SHOWN = 4096


class SchemaError(ValueError):
    """A text that is not a Protobuf schema, or that uses an unsupported feature."""


@lru_cache(maxsize=256)
def compiled(text: str, references: tuple[tuple[str, str], ...] = ()) -> FileDescriptor:
    """The descriptor of a schema.

    Args:
        references: the schemas that it imports, by the names under which it does.

    Raises:
        SchemaError: says what is wrong with it, and in which line.
        Unavailable: the machine is too busy to compile it, or lacks memory or disk.
        OSError: it lacks disk or processes.
    """
    main = "schema.proto"
    while main in dict(references):
        main = f"_{main}"
    files = FileDescriptorSet.FromString(_run(main, {**dict(references), main: text}))
    pool = DescriptorPool()
    try:
        for file in files.file:
            pool.Add(file)
        return pool.FindFileByName(main)
    except (KeyError, TypeError) as error:
        raise SchemaError(f"not a Protobuf schema: {error}") from None


def _run(main: str, schemas: Mapping[str, str]) -> bytes:
    """The descriptors of a file and of all that it imports, each after those it needs itself."""
    # Deeply nested options overflow protoc's stack: it dies alone, in a process of its own.
    with tempfile.TemporaryDirectory(prefix="semel-protoc-") as folder:
        place = Path(folder)
        serialized = FileDescriptorSet()
        for name, text in {**_CONFLUENT, **schemas}.items():
            descriptor = _serialized(name, text)
            if descriptor is None:
                _write(place / "in", name, text)
            else:
                serialized.file.append(descriptor)
        (place / "in.set").write_bytes(serialized.SerializeToString())
        command = [
            *(sys.executable, "-I", "-c", _PROTOC, _packages("grpc_tools")),
            *("--proto_path=.", *(f"--proto_path={folder}" for folder in _included())),
            *("--descriptor_set_in=../in.set", "--descriptor_set_out=../out.set"),
            *("--include_imports", main),
        ]
        with (place / "complaints").open("w+b") as complaints:
            try:
                ended = subprocess.run(
                    command,
                    cwd=place / "in",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=complaints,
                    timeout=_PATIENCE,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise Unavailable(
                    f"protoc has not compiled a Protobuf schema within {_PATIENCE} s: this "
                    "machine is too busy"
                ) from None
            complaints.seek(0)
            shown = complaints.read(_SHOWN).decode(errors="replace")
        if ended.returncode == -signal.SIGKILL or _UNWRITTEN.search(shown):
            raise Unavailable(
                "this machine has not let protoc compile a Protobuf schema: "
                f"{shown.strip() or 'protoc was killed. Does it lack memory?'}"
            )
        if ended.returncode:
            why = _reason(shown, main, schemas) or f"protoc ends with {ended.returncode}"
            raise SchemaError(f"not a Protobuf schema: {why}")
        return (place / "out.set").read_bytes()


def _serialized(name: str, text: str) -> FileDescriptorProto | None:
    """The descriptor in a base64 text; None for a schema in Protobuf's own language, which needs
    characters that base64 does not have."""
    if len(text) > _LONGEST:
        raise SchemaError(f"a schema of {len(text)} characters; the limit is {_LONGEST}")
    try:
        descriptor = FileDescriptorProto.FromString(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    descriptor.name = name
    return descriptor if text.strip() else None


def _write(place: Path, name: str, text: str) -> None:
    parts = name.split("/")
    if {"", ".", ".."} & set(parts) or "\\" in name or not name.isprintable():
        raise SchemaError(f"it has a reference with the name {named(name)}, which names no file")
    path = place / PurePosixPath(name)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    except UnicodeEncodeError:
        raise SchemaError("not a Protobuf schema: it is not Unicode") from None
    except (FileExistsError, NotADirectoryError, IsADirectoryError):
        raise SchemaError(f"its reference {named(name)} is a file and a folder at once") from None
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        raise SchemaError(f"its reference {name[:80]!r}... has too long a name") from None


def _included() -> list[str]:
    """The folders of Google's files: ``google/protobuf`` and ``google/type``."""
    tools = Path(_packages("grpc_tools")) / "grpc_tools" / "_proto"
    return [str(tools), _packages("google.type")]


def _packages(name: str) -> str:
    """The folder in which a package is installed."""
    spec = find_spec(name)
    assert spec is not None and spec.submodule_search_locations
    return str(Path(next(iter(spec.submodule_search_locations))).parents[name.count(".")])


def _reason(complaints: str, main: str, schemas: Iterable[str]) -> str:
    """What protoc says first of these files, in one line."""
    for file, line, why in _COMPLAINT.findall(complaints):
        if why == _MISSING:
            return f"it imports {named(file)}, which is not registered as a reference of it"
        if file in schemas and not why.startswith("warning:"):
            where = [] if file == main else [file]
            return ": ".join([*where, *([f"line {line}"] if line else []), why])
    return ""
