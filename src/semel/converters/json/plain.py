"""JSON without an envelope: ``schemas.enable=false``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from semel.converters.base import Failure
from semel.converters.json import duck
from semel.converters.json.columns import JSON, column_of
from semel.converters.json.infer import (
    ANY,
    BOOL,
    FLOAT,
    INT,
    NULL,
    Kind,
    as_column,
    fits,
    join,
    kinds,
    of_one_kind,
    tells_type,
    widen,
    without_dates,
)
from semel.converters.json.numbers import as_written
from semel.converters.json.read import ObjectReader, malformed
from semel.converters.json.text import (
    kind,
    members,
    moved,
    place,
    shown,
    sort,
    syntax_error,
)
from semel.core.quoting import named
from semel.core.records import DATA_EXCEPTION, absence

_MOST_OTHERS, _SAMPLED = 100, 100
"""How many fields are parsed only to be counted, and from how many values each gets its type."""
_SHOWN = 10
"""Names in a message."""
_HAS_MEMBERS = r'^[ \t\n\r]*\{[ \t\n\r]*"'


class PlainReader:
    """Reads objects into the declared fields, or those the sink expects, or those inferred.

    Fields are inferred from the first block. Later such a field may widen (whole numbers to
    fractions, dates to timestamps, only null to anything), and with ``evolve`` new ones are added
    as soon as they hold a value. Without ``dates``, text is always text.
    """

    def __init__(self, declared: pa.Schema | None, *, evolve: bool, dates: bool = True) -> None:
        self._declared = declared
        self._evolve = evolve
        self.dates = dates
        self.counts = False
        """Whether to count the values of fields that ``expected`` lacks, in ``unread``."""
        self.unread: dict[str, int] = {}
        self.takes_any = False
        """Whether values that are not objects are good even if fields are expected: the caller
        reads values apart."""
        self.guesses = False
        """Whether ``expected`` is only what other values had: values of other types are read apart
        from them, in their own."""
        self.apart: np.ndarray | None = None
        """What :attr:`~semel.converters.base.Decoded.apart` is for the values that were read
        last."""
        self.tells_absence = False
        """Whether to tell objects that lack a field from those in which it is null, see
        :func:`semel.core.records.absence`. With a declared schema none lacks any."""
        self.keeps_numbers = False
        """Whether a field that holds fractions and whole numbers is JSON, to tell 1 from 1.0."""
        self._strange = self._hopeless = False
        self._base: pa.Schema | None = None
        self._inferred: dict[str, Kind] = {}
        self._others: dict[str, Kind] = {}
        self._ignored: set[str] = set()
        self._use(declared)

    def read(self, text: pa.Array, expected: pa.Schema | None) -> tuple[pa.Array, list[Failure]]:
        """Read a string array; null where null or failed."""
        base = self._declared or expected
        if base is not self._base and (base is None or base != self._base):
            self._use(base)
        self.unread, self.apart = {}, None
        values = sort(text)
        others = [(row, value) for row, value in values.others if value not in ("", "null")]
        objects = len(values.objects)
        apart = self._declared is None and (self.takes_any or self._base is None)
        unknown = self._base is None and not self._inferred
        if not objects and (unknown or (others and apart)):
            return self._read_others(others, len(text))
        block, failures = self._read_objects(values.objects)
        if self._declared is None and self._base is not None and not self._evolve:
            unusable = _unusable(block, values.objects, failures)
            if unusable:
                block = _without(block, [f.index for f in unusable])
                failures = [*failures, *unusable]
            if self._strange or (unusable and self.unread):
                self.unread = self._count_unread(values.objects, failures)
                self._strange, self._hopeless = False, self._hopeless and bool(self.unread)
        if self.keeps_numbers and self._declared is None:
            self._take_apart_infinite(block)
            block = _keeping_numbers(block, values.objects)
        if self.tells_absence and self._declared is None:
            block = _telling_absence(block, values.objects)
        if self.apart is not None and values.object_rows is not None:
            labels = np.zeros(len(text), np.int64)
            labels[values.object_rows.to_numpy()] = self.apart
            self.apart = labels
        failures = moved(failures, values.object_rows)
        if others and apart:
            labels = np.zeros(len(text), np.int64) if self.apart is None else self.apart
            labels[[row for row, _ in others]] = labels.max() + 1
            self.apart = labels
        for row, value in others:
            reason = syntax_error(value) or f"{shown(value)} is {kind(value)}, not an object"
            failures.append(Failure(row, DATA_EXCEPTION, reason))
        return place(block, values.object_rows, len(text)), failures

    def _use(self, base: pa.Schema | None) -> None:
        self._base = base
        if base is not None and not self._evolve:
            self._inferred = {}  # before there was a target; now it says which fields are wanted
        fields = [] if base is None else list(base)
        enforced = base is self._declared
        columns = [column_of(f, required=enforced and not f.nullable) for f in fields]
        names = {f.name for f in fields}
        self._ignored -= names
        self._others, self._hopeless = {}, False
        columns += [as_column(n, k) for n, k in self._inferred.items() if n not in names]
        self._objects = ObjectReader(columns, dict.fromkeys(self._ignored, pa.null()))

    def _read_objects(self, text: pa.Array) -> tuple[pa.Array, list[Failure]]:
        if self._base is None and not self._inferred:
            self._inferred = self._kinds(text.to_pylist())
            self._use(None)
        elif (self._evolve or self._base is None) and len(text):
            block = None
            if not self._objects.keeps_json:
                block = self._objects.parse(text, only_known=True)
            if block is not None:
                return block, []
            self._discover(text)
        elif self.counts and self._declared is None and len(text):
            block = None
            if not (self._objects.keeps_json or self._hopeless):
                self._objects.counted.clear()
                block = self._objects.parse(text, only_known=True)
            if block is not None:
                self.unread = dict(+self._objects.counted)
                return block, []
            self._strange = True
        block, failures = self._objects.read(text)
        while failures and self._widen([text[f.index].as_py() for f in failures]):
            block, failures = self._objects.read(text)
        if failures and self._declared is None and (self.guesses or self._base is None):
            return self._read_apart(text, block, failures)
        return block, failures

    def _read_apart(
        self, text: pa.Array, block: pa.Array, failures: list[Failure]
    ) -> tuple[pa.Array, list[Failure]]:
        """Values of other types than those before them: alone they are read in their own types,
        among others they are only marked, by the types of the fields that cannot be read."""
        types = {f.name: f.type for f in block.type}
        rows = [f.index for f in failures]
        texts = text.take(pa.array(rows)).to_pylist()
        typed = [{n: k for n, k in self._kinds([t]).items() if tells_type(k)} for t in texts]
        unfit = [{n for n, k in g.items() if n in types and not fits(k, types[n])} for g in typed]
        strange = set().union(*unfit)
        labels = np.zeros(len(text), np.int64)
        groups: list[dict[str, Kind]] = []
        seen: dict[frozenset[tuple[str, Kind]], int] = {}
        for row, fields, own in zip(rows, typed, unfit, strict=True):
            kinds_ = frozenset(i for i in fields.items() if i[0] in strange or not own)
            if kinds_ and kinds_ not in seen:
                alike = (
                    n for n, g in enumerate(groups) if all(g.get(f, k) == k for f, k in kinds_)
                )
                number = seen[kinds_] = next(alike, len(groups))
                if number == len(groups):
                    groups.append({})
                groups[number].update(kinds_)
            labels[row] = seen.get(kinds_, -1) + 1
        if len(groups) == 1 and labels.all():
            fields = self._kinds(texts)
            kept = [(n, k) for n, k in fields.items() if k != NULL or self.tells_absence]
            return ObjectReader([as_column(n, k) for n, k in kept]).read(text)
        if groups:
            self.apart = labels
        return block, failures

    def _count_unread(self, text: pa.Array, failures: Sequence[Failure]) -> dict[str, int]:
        """How many values the fields have that are not read, in objects that have not failed."""
        if failures:
            kept = np.delete(np.arange(len(text)), [f.index for f in failures])
            text = text.take(pa.array(kept))
        unread = sorted(duck.keys(text) - {c.name for c in self._objects.columns})
        self._learn(text, unread, failed=bool(failures))
        counts = duck.counts(text, unread)
        return {name: count for name, count in counts.items() if count}

    def _learn(self, text: pa.Array, names: Sequence[str], *, failed: bool) -> None:
        """From now on parse these fields, too, if they hold simple values: that counts them at
        little cost."""
        if self._hopeless or not names or self._objects.keeps_json:
            return
        has = [pc.match_substring(text, duck.quoted(n)) for n in names[: _MOST_OTHERS + 1]]
        rows = pc.unique(pa.concat_arrays([pc.indices_nonzero(h)[:_SAMPLED] for h in has]))
        sampled, before = kinds(text.take(rows).to_pylist()), self._others
        self._others = before | {n: join(before.get(n, NULL), sampled.get(n, NULL)) for n in names}
        self._hopeless = (
            len(self._others) > _MOST_OTHERS
            or ANY in self._others.values()
            or (self._others == before and not failed)
        )
        others = {} if self._hopeless else {n: _loose(k) for n, k in self._others.items()}
        self._objects = ObjectReader(self._objects.columns, others)

    def _kinds(self, texts: Sequence[str]) -> dict[str, Kind]:
        field_kinds = kinds(texts)
        return field_kinds if self.dates else without_dates(field_kinds)

    def _discover(self, text: pa.Array) -> None:
        """Add fields that are new."""
        names = {c.name for c in self._objects.columns}
        new = duck.keys(text) - names
        if not new - self._ignored:
            only_null = ObjectReader([as_column(name, NULL) for name in self._ignored])
            if only_null.parse(text) is not None:
                return
        for name, seen in self._kinds(text.to_pylist()).items():
            if name in new and (seen != NULL or self.tells_absence):
                self._inferred[name] = seen
                self._ignored.discard(name)
            elif name in new:
                self._ignored.add(name)
        self._use(self._base)

    def _widen(self, texts: Sequence[str]) -> bool:
        """Widen the inferred fields so that they also hold these values. Returns whether that
        changed anything."""
        seen = self._kinds(texts)
        wider = {name: widen(k, seen.get(name, NULL)) for name, k in self._inferred.items()}
        if wider == self._inferred:
            return False
        self._inferred = wider
        self._use(self._base)
        return True

    def _take_apart_infinite(self, block: pa.StructArray) -> None:
        """Mark objects with numbers that JSON does not have, if there are others."""
        odd = np.zeros(len(block), np.int64)
        for values in block.flatten():
            if pa.types.is_floating(values.type):
                odd[pc.indices_nonzero(pc.invert(pc.is_finite(values))).to_numpy()] = 1
        if odd.any() and not odd.all() and self.apart is None:
            self.apart = odd

    def _read_others(
        self, others: Sequence[tuple[int, str]], length: int
    ) -> tuple[pa.Array, list[Failure]]:
        """Read values that are not objects, such as keys: each kind apart, in its own type."""
        rows = pa.array([row for row, _ in others], pa.int64())
        texts = pa.array([value for _, value in others], pa.string())
        bad = malformed(texts)
        failures = [Failure(rows[n].as_py(), DATA_EXCEPTION, why) for n, why in bad.items()]
        if bad:
            kept = pa.array(np.delete(np.arange(len(texts)), list(bad)))
            rows, texts = rows.take(kept), texts.take(kept)
        parts = [(rows.take(part_rows), values) for part_rows, values in of_one_kind(texts)]
        if not parts:
            return pa.nulls(length, pa.string()), failures
        if len(parts) == 1:
            return place(parts[0][1], parts[0][0], length), failures
        self.apart = np.zeros(length, np.int64)
        for number, (part_rows, _) in enumerate(parts):
            self.apart[part_rows] = number
        return place(pa.ExtensionArray.from_storage(JSON, texts), rows, length), failures


def _unusable(block: pa.StructArray, text: pa.Array, failures: Sequence[Failure]) -> list[Failure]:
    """The objects that have fields, but none that the target takes: each would become a row of
    nulls. Only objects with nothing left but nulls are looked at again, all together."""
    fields = block.flatten()
    if not len(block) or not fields or any(not f.null_count for f in fields):
        return []
    empty = pa.repeat(pa.scalar(True), len(block))
    for values in fields:
        empty = pc.and_(empty, values.is_null())
    rows = pc.indices_nonzero(pc.and_(empty, pc.match_substring_regex(text, _HAS_MEMBERS)))
    failed = pa.array([f.index for f in failures], rows.type)
    rows = rows.filter(pc.invert(pc.is_in(rows, value_set=failed)))
    column_names = [f.name for f in block.type]
    names_by_row = duck.names(text.take(rows))
    is_known = pc.is_in(names_by_row.flatten(), value_set=pa.array(column_names, pa.string()))
    kept = pc.unique(pc.list_parent_indices(names_by_row).filter(is_known))
    every = pa.array(range(len(rows)), kept.type)
    has_names = pc.greater(pc.fill_null(pc.list_value_length(names_by_row), 0), 0)
    strange = pc.indices_nonzero(pc.and_(has_names, pc.invert(pc.is_in(every, value_set=kept))))
    return [
        Failure(row, DATA_EXCEPTION, none_taken(names, column_names))
        for row, names in zip(
            rows.take(strange).to_pylist(), names_by_row.take(strange).to_pylist(), strict=True
        )
    ]


def none_taken(names: Iterable[str], column_names: Iterable[str]) -> str:
    """What is wrong with an object of these fields."""
    return (
        f"none of its fields ({_listed(names)}) is a column that the target takes "
        f"({_listed(column_names)})"
    )


def _telling_absence(block: pa.StructArray, text: pa.Array) -> pa.StructArray:
    """The objects, with what says which of them lack a field. Only where fields are null are names
    looked at."""
    arrays, there = block.flatten(), np.asarray(block.is_valid())
    null = {f.name: np.asarray(a.is_null()) for f, a in zip(block.type, arrays, strict=True)}
    doubtful = {name: rows & there for name, rows in null.items() if (rows & there).any()}
    if not doubtful:
        return block
    rows = np.flatnonzero(np.any(list(doubtful.values()), axis=0))
    text = text.take(pa.array(rows))
    names_by_row = duck.names(text)
    odd = pc.indices_nonzero(names_by_row.is_null()).to_pylist()  # it holds NaN
    names = names_by_row.flatten().dictionary_encode()
    codes = {name: code for code, name in enumerate(names.dictionary.to_pylist())}
    by_name = np.argsort(names.indices, kind="stable")
    having = rows[np.asarray(pc.list_parent_indices(names_by_row))[by_name]]
    ends = np.searchsorted(np.asarray(names.indices)[by_name], np.arange(len(codes) + 1))
    lacking: dict[str, pa.Array] = {}
    for name, lacks in doubtful.items():
        if (code := codes.get(name)) is not None:
            lacks[having[ends[code] : ends[code + 1]]] = False
        lacks[[rows[at] for at in odd if _has(text[at].as_py(), name)]] = False
        if lacks.any():
            lacking[absence(name)] = pa.array(lacks)
    fields = [*block.type, *(pa.field(name, pa.bool_()) for name in lacking)]
    mask = block.is_null() if block.null_count else None
    return pa.StructArray.from_arrays([*arrays, *lacking.values()], fields=fields, mask=mask)


def _keeping_numbers(block: pa.StructArray, text: pa.Array) -> pa.StructArray:
    """The objects, with fractions as JSON in fields where some are written as whole numbers."""
    fields = list(block.type)
    columns = [as_written(v, f, text) for f, v in zip(fields, block.flatten(), strict=True)]
    if all(new is old for (new, _), old in zip(columns, fields, strict=True)):
        return block
    mask = block.is_null() if block.null_count else None
    return pa.StructArray.from_arrays(
        [a for _, a in columns], fields=[f for f, _ in columns], mask=mask
    )


def _has(text: str, name: str) -> bool:
    """Whether an object has a field, or is nested too deeply to tell."""
    try:
        return name in members(text)[0]
    except RecursionError:
        return True


def _loose(kind: Kind) -> pa.DataType:
    """A type that all values of a kind can be parsed as, exactly or not."""
    if kind.item is not None:
        return pa.list_(_loose(kind.item))
    return {NULL: pa.null(), BOOL: pa.bool_(), INT: pa.float64(), FLOAT: pa.float64()}.get(
        kind, pa.string()
    )


def _without(block: pa.StructArray, rows: Sequence[int]) -> pa.StructArray:
    """The block with nulls in some rows."""
    gone = block.is_null().to_numpy(zero_copy_only=False).copy()
    gone[list(rows)] = True
    return pa.StructArray.from_arrays(block.flatten(), fields=list(block.type), mask=pa.array(gone))


def _listed(names: Iterable[str]) -> str:
    shown_ = [named(n) for n in names]
    return ", ".join(shown_[:_SHOWN]) + (", ..." if len(shown_) > _SHOWN else "")
