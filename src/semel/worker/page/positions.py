"""Where a connector is: its ledger beside the ends of the logs, and offsets set by hand."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Depends, Request, Response

from semel.core.errors import SemelError
from semel.core.redact import redacted
from semel.driver.base import State
from semel.driver.offsets import OffsetChange, Offsets
from semel.worker.errors import BadRequest
from semel.worker.page.connector import head
from semel.worker.page.site import Form, PageContext, json_of, required, see
from semel.worker.rest.app import who

_OFFSET = "kafka_offset"
_ROWS = 1000
"""How many positions a page shows: each has three fields of its form."""


def add(router: APIRouter, context: PageContext) -> None:
    """Add the page of a connector's positions."""
    herder, writers = context.herder, [Depends(context.check_writer)]

    @router.get("/positions")
    def positions(request: Request, name: str) -> Response:
        facts = herder.with_offsets(name, _stored)
        return context.show(request, "positions.html", **head(herder, name), **facts, preview=None)

    @router.post("/positions", dependencies=writers)
    def change(request: Request, name: str, form: Form) -> Response:
        do = required(form, "do")
        if do == "reset":
            if "sure" not in form:
                raise BadRequest("Tick the box beside Forget all offsets first")
            herder.reset_offsets(name, who(request))
            return see("/connector", name=name, did="reset")
        if do == "apply":
            herder.alter_offsets(
                name, {"offsets": json_of(required(form, "offsets"))}, who(request)
            )
            return see("/connector", name=name, did="offsets")
        if herder.status(name)["connector"]["state"] != State.STOPPED:
            raise BadRequest("Stop the connector first: its tasks would go on from where they are")

        def look(offsets: Offsets) -> Mapping[str, Any]:
            changes = _wanted(offsets, form)
            stored = {_text(partition): offset for partition, offset in offsets.read()}
            meant = [_meant(offsets, stored, each) for each in offsets.checked(changes)]
            preview = {"offsets": json.dumps(changes), "changes": meant}
            return _stored(offsets) | {"preview": preview}

        facts = herder.with_offsets(name, look)
        return context.show(request, "positions.html", **head(herder, name), **facts)


def _stored(offsets: Offsets) -> dict[str, Any]:
    """The stored offsets of a connector, with how far each is behind where that is known."""
    trouble = ""
    try:
        lag = offsets.lag()
    except SemelError as error:
        lag, trouble = None, redacted(str(error))
    parts = {_key(each): each for each in (lag.partitions if lag is not None else ())}
    rows, stored = [], offsets.read()
    for partition, offset in stored[:_ROWS]:
        where, at = offsets.text((partition, offset))
        far = parts.get(_text(partition), {})
        rows.append(
            {
                "where": where,
                "at": at,
                "partition": json.dumps(partition),
                "end": far.get("end"),
                "lag": far.get("lag"),
            }
        )
    holes = [
        {
            "where": str(hole.topic_partition),
            "from": hole.from_offset,
            "until": hole.until_offset,
            "reason": hole.reason,
            "by": hole.by,
            "at": hole.at,
        }
        for hole in offsets.holes()
    ]
    unit = (lag.unit if lag is not None else "") or "records"
    return {
        "rows": rows,
        "more": len(stored) - len(rows),
        "holes": holes,
        "trouble": trouble,
        "unit": unit,
        "is_source": offsets.is_source,
    }


def _key(part: Mapping[str, Any]) -> str:
    """What a part of a lag and a stored offset have in common."""
    partition = part.get("partition")
    if isinstance(partition, int):
        partition = {"kafka_topic": part["topic"], "kafka_partition": partition}
    return _text(partition)


def _text(partition: Any) -> str:
    """A partition, the same whatever the order of its parts."""
    return json.dumps(partition, sort_keys=True)


def _wanted(offsets: Offsets, form: Mapping[str, str]) -> list[dict[str, Any]]:
    """The offsets of a form as the REST API has them: those that differ from what it showed, and
    those of partitions that it did not show.

    Raises:
        BadRequest: there are none.
    """
    changes = []
    for field, text in form.items():
        number = field.removeprefix("offset.")
        if field == number or text.strip() == form.get(f"before.{number}", "").strip():
            continue
        partition = json_of(required(form, f"partition.{number}"))
        offset: Any = text.strip()
        if offset in ("", "null"):
            offset = None
        else:
            offset = json_of(text) if offsets.is_source else {_OFFSET: offset}
        changes.append({"partition": partition, "offset": offset})
    for line in form.get("more", "").split("\n"):
        if line.strip():
            partition, offset = offsets.parsed(line.strip())
            changes.append({"partition": dict(partition), "offset": offset})
    if not changes:
        raise BadRequest("No offset differs from what is stored")
    return changes


def _meant(
    offsets: Offsets, stored: Mapping[str, Mapping[str, Any]], change: OffsetChange
) -> dict[str, str]:
    """A change, and what it means for the records."""
    partition, offset = change
    before = stored.get(_text(partition))
    where, now = offsets.text((partition, before))
    after = offsets.text((partition, offset))[1] if offset is not None else "forgotten"
    return {
        "where": where,
        "before": now if before is not None else "none",
        "after": after,
        "meaning": _meaning(offsets, before, offset),
    }


def _meaning(offsets: Offsets, before: Mapping[str, Any] | None, after: Any) -> str:
    if after is None:
        return f"The next run begins where its configuration says. {offsets.reread}."
    if offsets.is_source or before is None:
        return "The next run goes on from there."
    further = after[_OFFSET] - before[_OFFSET]
    if further < 0:
        return f"{-further} offsets are read again. {offsets.reread}."
    if further > 0:
        return f"{further} offsets are left out{offsets.noted}."
    return "Nothing changes."
