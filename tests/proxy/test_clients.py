"""Published clients of Confluent's REST Proxy run unchanged. Both are of version 1, which version 2
has taken over but for how consumers read."""

from __future__ import annotations

import json
import os
import shutil
import sys
import uuid
from pathlib import Path
from typing import Any

import httpx
import pytest

from semel_lab.embedded import Kafka
from tests.conftest import MakeTopic
from tests.patience import PATIENCE
from tests.processes import run_to_end
from tests.proxy.test_v2 import raw, refused

V1 = "application/vnd.kafka.v1+json"

NODE = """
const Client = require('kafka-rest'), [url, name, group] = process.argv.slice(1);
const client = new Client({url}), topic = client.topic(name), found = {};
const done = (what, next) => (error, result) => {
    if (error) throw error;
    found[what] = result;
    next(result);
};
topic.produce({key: 'k', value: 'a'}, {value: 'b', partition: 0}, done('produced', () =>
client.topics.list(done('topics', () =>
topic.partitions.list(done('partitions', () =>
topic.partition(0).messages({offset: 1, count: 1}, done('messages', () =>
client.consumer(group).join({format: 'binary', 'auto.offset.reset': 'smallest'},
    done('joined', instance => {
        const read = [], stream = instance.subscribe(name);
        stream.on('data', messages => {
            read.push(...messages.map(each => String(each.value)));
            if (read.length == 2) instance.commit(done('committed', () =>
                instance.shutdown(() => console.log(JSON.stringify({
                    read, topics: found.topics.map(each => each.name),
                    partitions: found.partitions.length, offsets: found.produced.offsets,
                    messages: found.messages,
                })))));
        });
    }))))))))));
"""
PYTHON = """
import collections, collections.abc, json, sys, threading
import avro.errors, avro.io

# What the packages that it needs take from Python 2, and from the avro of that time.
collections.MutableMapping = collections.abc.MutableMapping
avro.io.AvroTypeException = avro.errors.AvroTypeException

from kafka_rest.client import KafkaRESTClient

url, topic, schema, value = sys.argv[1:]
host, _, port = url.rpartition(":")
client = KafkaRESTClient(host, int(port), flush_length_threshold=2)
sent, sends = [], threading.Event()

def succeeded(_, done, failed):
    sent.extend(offset for _, offset in done)
    sends.set()

client.registrar.register("produce_success", succeeded)
for _ in range(2):
    client.produce(topic, json.loads(value), json.loads(schema))
sends.wait(60)
client.shutdown(block=True)
print(json.dumps(sent))
"""


def run(command: list[str], directory: Path, **environment: str) -> str:
    done = run_to_end(
        command, cwd=directory, env={**os.environ, **environment}, timeout=2 * PATIENCE
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


@pytest.mark.long
def test_npms_client_runs_unchanged(proxy: httpx.Client, topic: MakeTopic, tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("needs npm")
    run(["npm", "install", "--silent", "kafka-rest@0.0.5"], tmp_path)
    name, group = topic(), f"group-{uuid.uuid4().hex[:8]}"
    command = ["node", "-e", NODE, str(proxy.base_url).rstrip("/"), name, group]
    found = json.loads(run(command, tmp_path))
    assert found["read"] == ["a", "b"]
    assert name in found["topics"]
    assert found["partitions"] == 1
    assert [each["offset"] for each in found["offsets"]] == [0, 1]
    assert [each["value"] for each in found["messages"]] == ["Yg=="]


@pytest.mark.long
def test_pypis_client_runs_unchanged(proxy: httpx.Client, topic: MakeTopic, tmp_path: Path) -> None:
    """With the release of tornado that it asks for."""
    packages = [
        "kafka-rest==0.0.12",
        "tornado==4.5.3",
        "avro==1.12.2",
        "avro-json-serializer==1.0.4",
        "six",
    ]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", "."]
    run([*pip, *packages], tmp_path)
    name, url = topic(), str(proxy.base_url).rstrip("/")
    schema = json.dumps({"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]})
    command = [sys.executable, "-c", PYTHON, url, name, schema, '{"id": 1}']
    found = json.loads(run(command, tmp_path, PYTHONPATH=str(tmp_path)))
    assert [each["offset"] for each in found] == [0, 1]


def test_version_1_is_understood(proxy: httpx.Client, kafka: Kafka, topic: MakeTopic) -> None:
    name = topic()
    kind = "application/vnd.kafka.binary.v1+json"
    accept = {"accept": f"{V1}, application/vnd.kafka+json; q=0.9, application/json; q=0.8"}
    body = {"records": [{"key": None, "value": "YQ==", "partition": None}] * 3}
    answer = proxy.post(f"/topics/{name}", json=body, headers=accept | {"content-type": kind})
    assert (answer.status_code, answer.headers["content-type"]) == (200, V1)
    assert [message.value() for message in raw(kafka, name, 3)] == [b"a"] * 3
    given = {"id": "one", "format": "binary", "auto.offset.reset": "smallest"}
    group = f"group-{uuid.uuid4().hex[:8]}"
    made = proxy.post(f"/consumers/{group}", json=given, headers={"content-type": V1}).json()
    found: list[Any] = []
    while len(found) < 3:
        read = proxy.get(f"{made['base_uri']}/topics/{name}", headers={"accept": kind})
        assert (read.status_code, read.headers["content-type"]) == (200, kind), read.text
        found += read.json()
    assert [(each["value"], each["offset"]) for each in found] == [("YQ==", n) for n in range(3)]
    assert proxy.post(f"{made['base_uri']}/offsets", headers={"content-type": V1}).json()
    refused(proxy.get(f"{made['base_uri']}/topics/{topic()}", headers={"accept": kind}), 409, 40901)
    refused(proxy.get(f"{made['base_uri']}/topics/none", headers={"accept": kind}), 404, 40401)
    path = f"/topics/{name}/partitions/0/messages"
    page = proxy.get(path, params={"offset": 1, "count": 2}, headers={"accept": V1})
    assert [each["offset"] for each in page.json()] == [1, 2]
    refused(proxy.get(path, headers=accept), 400, 400)
    assert proxy.delete(made["base_uri"]).status_code == 204
