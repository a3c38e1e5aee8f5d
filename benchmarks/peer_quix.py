"""The topologies of :mod:`benchmarks.topologies` in Quix Streams, exactly once. It runs in an
environment of its own, without semel: ``python peer_quix.py FACTS``."""

from __future__ import annotations

import json
import sys
from typing import Any

from quixstreams import Application
from quixstreams.dataframe.windows.aggregations import Count, Latest, Sum

MINUTE = 60_000


def _plus(value: dict[str, Any], state: Any) -> dict[str, Any]:
    total = state.get("total", default=[0, 0])
    total = [total[0] + 1, total[1] + value["amount"]]
    state.set("total", total)
    return {"count": total[0], "total": total[1], "last": value["ts"]}


def main(facts: dict[str, Any]) -> None:
    """Build the topology, and run it until it is ended."""
    application = Application(
        broker_address=facts["servers"],
        consumer_group=facts["group"],
        auto_offset_reset="earliest",
        processing_guarantee="exactly-once",
        commit_interval=0.1,
        state_dir=facts["state"],
        producer_extra_config={"compression.type": "lz4"},
        loglevel="WARNING",
    )
    # Nothing is distributed anew, so the partitioner does not matter.
    json_of = {"key_deserializer": "str", "value_deserializer": "json"}
    stream = application.dataframe(application.topic(facts["source"], **json_of))
    target = application.topic(facts["target"], key_serializer="str", value_serializer="json")
    match facts["case"]:
        case "counting":
            results = stream.apply(_plus, stateful=True)
        case "windowing":
            windows = stream.tumbling_window(MINUTE, grace_ms=MINUTE)
            results = windows.agg(count=Count(), total=Sum("amount"), last=Latest("ts")).current()
        case "joining":
            table = application.dataframe(application.topic(facts["table"], **json_of))
            results = stream.join_asof(
                table, how="inner", on_merge=lambda one, other: {**one, "name": other["name"]}
            )
        case other:
            raise ValueError(other)
    results.to_topic(target)
    application.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
