"""Random schemas of Protobuf, as text and as the protobuf library wants them, with values, and what
Kafka Connect's converter makes of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import FileDescriptor
from hypothesis import strategies as st

T = descriptor_pb2.FieldDescriptorProto
NUMBERS = {
    "int32": st.integers(-(2**31), 2**31 - 1),
    "sint32": st.integers(-(2**31), 2**31 - 1),
    "sfixed32": st.integers(-(2**31), 2**31 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "fixed32": st.integers(0, 2**32 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "sint64": st.integers(-(2**63), 2**63 - 1),
    "sfixed64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "fixed64": st.integers(0, 2**64 - 1),
}
SCALARS = {
    **{kind: values | st.integers(0, 200) for kind, values in NUMBERS.items()},
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bool": st.booleans(),
    "string": st.text(max_size=20),
    "bytes": st.binary(max_size=20),
}
KEYS = [k for k in SCALARS if k not in ("float", "double", "bytes")]


@dataclass
class Field:
    name: str
    number: int
    kind: str
    label: str = ""
    key: str = ""
    oneof: str = ""
    type: Any = None
    """The message or the enum."""
    packed: bool | None = None


@dataclass
class Message:
    name: str
    fields: list[Field] = field(default_factory=list)


@dataclass
class Enum:
    name: str
    values: list[tuple[str, int]]


@dataclass
class File:
    syntax: str
    types: list[Any] = field(default_factory=list)

    @property
    def text(self) -> str:
        """As somebody would write it. The root comes first."""
        lines = [f'syntax = "{self.syntax}";', "package p.q;"]
        for one in reversed(self.types):
            lines += _enum_text(one) if isinstance(one, Enum) else _message_text(one)
        return "\n".join(lines)

    def descriptor(self, *, maps: bool) -> descriptor_pb2.FileDescriptorProto:
        """As ``protoc`` makes it. Java's dynamic messages, which Kafka Connect reads, know no maps:
        an entry is a message like any other, and one with unknown fields is still an entry."""
        made = descriptor_pb2.FileDescriptorProto(name="f.proto", package="p.q")
        if self.syntax == "proto3":
            made.syntax = "proto3"
        for one in reversed(self.types):
            if isinstance(one, Enum):
                enum = made.enum_type.add(name=one.name)
                for name, number in one.values:
                    enum.value.add(name=name, number=number)
            else:
                _describe(one, made.message_type.add(name=one.name), self.syntax, maps)
        return made

    def linked(self) -> FileDescriptor:
        """As ``protoc`` would hand it over, without a process for it."""
        pool = descriptor_pool.DescriptorPool()
        pool.Add(self.descriptor(maps=True))
        return pool.FindFileByName("f.proto")

    def root(self) -> Any:
        """The class of the root message."""
        pool = descriptor_pool.DescriptorPool()
        pool.Add(self.descriptor(maps=False))
        name = f"p.q.{self.types[-1].name}"
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def _enum_text(enum: Enum) -> list[str]:
    values = [f"  {name} = {number};" for name, number in enum.values]
    return [f"enum {enum.name} {{", *values, "}"]


def _message_text(message: Message) -> list[str]:
    lines = [f"message {message.name} {{"]
    done = set()
    for f in message.fields:
        if f.oneof and f.oneof in done:
            continue
        if f.oneof:
            done.add(f.oneof)
            members = [m for m in message.fields if m.oneof == f.oneof]
            lines += [f"  oneof {f.oneof} {{", *map(_field_text, members), "  }"]
        else:
            lines.append(_field_text(f))
    return [*lines, "}"]


def _field_text(f: Field) -> str:
    kind = f.type.name if f.type else f.kind
    options = "" if f.packed is None else f" [packed = {str(f.packed).lower()}]"
    if f.key:
        return f"  map<{f.key}, {kind}> {f.name} = {f.number};"
    return f"  {f.label} {kind} {f.name} = {f.number}{options};"


def _describe(message: Message, made: Any, syntax: str, maps: bool) -> None:
    synthetic = []
    for f in message.fields:
        target = made.field.add(name=f.name, number=f.number)
        repeated = f.label == "repeated" or f.key
        required = f.label == "required"
        target.label = 3 if repeated else 2 if required else 1
        if f.key:
            name = f"{f.name.title()}Entry"
            entry = made.nested_type.add(name=name)
            entry.options.map_entry = maps
            key = entry.field.add(name="key", number=1, label=1)
            key.type = getattr(T, f"TYPE_{f.key.upper()}")
            _set_type(entry.field.add(name="value", number=2, label=1), f)
            target.type, target.type_name = T.TYPE_MESSAGE, f".p.q.{message.name}.{name}"
        else:
            _set_type(target, f)
        if f.packed is not None:
            target.options.packed = f.packed
        if f.oneof:
            names = [o.name for o in made.oneof_decl]
            if f.oneof not in names:
                made.oneof_decl.add(name=f.oneof)
                names.append(f.oneof)
            target.oneof_index = names.index(f.oneof)
        elif f.label == "optional" and syntax == "proto3":
            target.proto3_optional = True
            synthetic.append(target)
    for target in synthetic:
        target.oneof_index = len(made.oneof_decl)
        made.oneof_decl.add(name=f"_{target.name}")


def _set_type(target: Any, f: Field) -> None:
    if f.type is None:
        target.type = getattr(T, f"TYPE_{f.kind.upper()}")
    else:
        target.type = T.TYPE_ENUM if isinstance(f.type, Enum) else T.TYPE_MESSAGE
        target.type_name = f".p.q.{f.type.name}"


@st.composite
def files(draw: st.DrawFn) -> File:
    """A schema."""
    made = File(draw(st.sampled_from(["proto3", "proto3", "proto2"])))
    for number in range(draw(st.integers(0, 2))):
        numbers = draw(st.lists(st.integers(-3, 300), max_size=4, unique=True))
        numbers = [0, *(n for n in numbers if n)]
        names = [(f"E{number}_{n}".replace("-", "M"), n) for n in numbers]
        made.types.append(Enum(f"E{number}", names))
    for number in range(draw(st.integers(1, 3))):
        made.types.append(draw(messages(f"M{number}", made)))
    return made


@st.composite
def messages(draw: st.DrawFn, name: str, file: File) -> Message:
    """A message of fields of all kinds."""
    found = Message(name)
    numbers = draw(st.lists(st.integers(1, 40), max_size=6, unique=True))
    enums = [t for t in file.types if isinstance(t, Enum)]
    inner = [t for t in file.types if isinstance(t, Message)]
    labels = ["", "optional", "repeated", "repeated", "map", "oneof", "oneof"]
    if file.syntax == "proto2":
        labels = ["optional", "optional", "required", "repeated", "repeated", "map", "oneof"]
    for at, number in enumerate(numbers):
        kinds = [*SCALARS, *(["enum"] * 4 * bool(enums)), *(["message"] * 6 * bool(inner))]
        kind = draw(st.sampled_from(kinds))
        made = Field(f"f{at}", number, kind, draw(st.sampled_from(labels)))
        if kind in ("enum", "message"):
            made.type = draw(st.sampled_from(enums if kind == "enum" else inner))
        if made.label == "map":
            made.label, made.key = "", draw(st.sampled_from(KEYS))
        elif made.label == "oneof":
            made.label, made.oneof = "", draw(st.sampled_from(["one", "two"]))
        elif made.label == "repeated" and kind not in ("string", "bytes", "message"):
            made.packed = draw(st.sampled_from([None, True, False]))
        found.fields.append(made)
    # The fields of a oneof stand together.
    first = {f.oneof or f.name: n for n, f in reversed([*enumerate(found.fields)])}
    ordered = sorted(found.fields, key=lambda f: first[f.oneof or f.name])
    return Message(name, ordered)


@st.composite
def filled(draw: st.DrawFn, message: Message, made: Any) -> Any:
    """Values for a message of the library."""
    for f in message.fields:
        if f.label != "required" and draw(st.booleans()):
            continue
        if f.key:
            for key in draw(st.lists(SCALARS[f.key], max_size=3)):
                entry = getattr(made, f.name).add(key=key)
                if isinstance(f.type, Message):
                    entry.value.SetInParent()
                    draw(filled(f.type, entry.value))
                else:
                    entry.value = draw(_value(f))
        elif f.label == "repeated":
            for _ in range(draw(st.integers(0, 4))):
                if isinstance(f.type, Message):
                    draw(filled(f.type, getattr(made, f.name).add()))
                else:
                    getattr(made, f.name).append(draw(_value(f)))
        elif isinstance(f.type, Message):
            getattr(made, f.name).SetInParent()
            draw(filled(f.type, getattr(made, f.name)))
        else:
            setattr(made, f.name, draw(_value(f)))
    return made


def _value(f: Field) -> st.SearchStrategy[Any]:
    if isinstance(f.type, Enum):
        return st.sampled_from([n for _, n in f.type.values])
    return SCALARS[f.kind]


def expected(message: Message, found: Any, syntax: str) -> dict[str, Any]:
    """What Kafka Connect's converter makes of a message: oneofs first."""
    shown: dict[str, Any] = {}
    oneofs = list(dict.fromkeys(f.oneof for f in message.fields if f.oneof))
    for number, oneof in enumerate(oneofs):
        chosen = found.WhichOneof(oneof)
        members = [f for f in message.fields if f.oneof == oneof]
        shown[f"{oneof}_{number}"] = chosen and {
            f.name: _one(f, getattr(found, f.name), syntax) if f.name == chosen else None
            for f in members
        }
    for f in message.fields:
        if f.oneof:
            continue
        value = getattr(found, f.name)
        explicit = f.label == "optional" or isinstance(f.type, Message)
        if f.key:
            shown[f.name] = {
                _one(Field("", 1, f.key), e.key, syntax): _one(f, e.value, syntax) for e in value
            }
        elif f.label == "repeated":
            shown[f.name] = [_one(f, each, syntax) for each in value]
        elif explicit and not found.HasField(f.name):
            shown[f.name] = None
        else:
            shown[f.name] = _one(f, value, syntax)
    return shown


def _one(f: Field, value: Any, syntax: str) -> Any:
    if isinstance(f.type, Message):
        return expected(f.type, value, syntax)
    if isinstance(f.type, Enum):
        names = {n: name for name, n in reversed(f.type.values)}
        return names.get(value, f"UNKNOWN_ENUM_VALUE_{f.type.name}_{value}")
    if f.kind == "string" and isinstance(value, bytes):  # proto2 allows any
        return value.decode()
    if f.kind in ("uint64", "fixed64") and value >= 2**63:
        return value - 2**64
    return value


def with_maps(message: Message, value: dict[str, Any]) -> dict[str, Any]:
    """What Arrow shows, with maps as such."""
    shown = dict(value)
    for f in message.fields:
        if f.oneof or f.name not in shown or shown[f.name] is None:
            continue
        if f.key:
            pairs = shown[f.name]
            if isinstance(f.type, Message):
                pairs = [(k, with_maps(f.type, v)) for k, v in pairs]
            shown[f.name] = dict(pairs)
        elif isinstance(f.type, Message) and f.label == "repeated":
            shown[f.name] = [with_maps(f.type, v) for v in shown[f.name]]
        elif isinstance(f.type, Message):
            shown[f.name] = with_maps(f.type, shown[f.name])
    oneofs = list(dict.fromkeys(f.oneof for f in message.fields if f.oneof))
    for number, oneof in enumerate(oneofs):
        union = shown[f"{oneof}_{number}"]
        for f in message.fields:
            if f.oneof == oneof and isinstance(f.type, Message) and union and union[f.name]:
                union = {**union, f.name: with_maps(f.type, union[f.name])}
        shown[f"{oneof}_{number}"] = union
    return shown
