"""Kafka over HTTP as one would write it oneself: aiohttp, aiokafka and fastavro, and no more than
producing and reading JSON and Avro takes."""

from __future__ import annotations

import asyncio
import io
import json
import sys
from functools import cache
from typing import Any

import aiohttp
import fastavro
from aiohttp import web
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

SERVERS, REGISTRY, PORT = sys.argv[1:]


@cache
def schema(number: int) -> asyncio.Future[Any]:
    async def ask() -> Any:
        async with aiohttp.ClientSession() as http:
            answer = await http.get(f"{REGISTRY}/schemas/ids/{number}")
            return fastavro.parse_schema(json.loads((await answer.json())["schema"]))

    return asyncio.ensure_future(ask())


def avro(number: int, parsed: Any, value: Any) -> bytes:
    out = io.BytesIO(b"\0" + number.to_bytes(4, "big"))
    out.seek(5)
    fastavro.schemaless_writer(out, parsed, value)
    return out.getvalue()


async def produce(request: web.Request) -> web.Response:
    body = json.loads(await request.read())
    number = body.get("value_schema_id")
    parsed = None if number is None else await schema(number)
    sent = []
    for record in body["records"]:
        value = record["value"]
        raw = json.dumps(value).encode() if parsed is None else avro(number, parsed, value)
        sent.append(await request.app["producer"].send(request.match_info["topic"], raw))
    done = await asyncio.gather(*sent)
    return web.json_response(
        {"offsets": [{"partition": d.partition, "offset": d.offset} for d in done]}
    )


async def read(request: web.Request) -> web.Response:
    consumer = request.app["consumer"]
    async with request.app["reading"]:
        place = TopicPartition(request.match_info["topic"], int(request.match_info["partition"]))
        consumer.assign([place])
        consumer.seek(place, int(request.query["offset"]))
        batches = await consumer.getmany(
            timeout_ms=1000, max_records=int(request.query["max_records"])
        )
    shown = []
    for each in batches.get(place, ()):
        value = each.value
        if value[:1] == b"\0":
            parsed = await schema(int.from_bytes(value[1:5], "big"))
            shown.append(
                {
                    "offset": each.offset,
                    "value": fastavro.schemaless_reader(io.BytesIO(value[5:]), parsed, None),
                }
            )
        else:
            shown.append({"offset": each.offset, "value": json.loads(value)})
    return web.json_response({"records": shown})


async def application() -> web.Application:
    app = web.Application(client_max_size=8 * 2**20)
    app["producer"] = AIOKafkaProducer(
        bootstrap_servers=SERVERS, acks="all", enable_idempotence=True
    )
    app["consumer"] = AIOKafkaConsumer(bootstrap_servers=SERVERS, isolation_level="read_committed")
    app["reading"] = asyncio.Lock()
    await app["producer"].start()
    await app["consumer"].start()
    app.router.add_post("/topics/{topic}", produce)
    app.router.add_get("/topics/{topic}/partitions/{partition}/records", read)
    return app


if __name__ == "__main__":
    web.run_app(application(), host="127.0.0.1", port=int(PORT), print=None, access_log=None)
