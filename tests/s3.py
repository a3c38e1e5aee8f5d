"""An S3 server for tests, and its buckets as they are seen without fsspec."""

from __future__ import annotations

import io
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pyarrow.parquet as pq
from moto.server import ThreadedMotoServer

_KEYS = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}


class Bucket:
    """One bucket of a server."""

    def __init__(self, endpoint: str) -> None:
        self.name = f"bucket-{uuid.uuid4().hex}"
        self.where = f"s3://{self.name}/lake"
        self.options = {
            "aws.access.key.id": "k",
            "aws.secret.access.key": "s",
            "s3.region": "us-east-1",
            "storage.options.endpoint_url": endpoint,
        }
        self._client: Any = boto3.client("s3", endpoint_url=endpoint, **_KEYS)
        self._client.create_bucket(Bucket=self.name)

    def all(self) -> list[str]:
        """Every object below ``where``."""
        found: list[str] = []
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name):
            found += [o["Key"].removeprefix("lake/") for o in page.get("Contents", [])]
        return sorted(found)

    def ids(self) -> list[int]:
        """What stands in the Parquet files that are seen."""
        found: list[int] = []
        for key in self.all():
            if key.endswith(".parquet"):
                body = self._client.get_object(Bucket=self.name, Key=f"lake/{key}")["Body"].read()
                found += pq.read_table(io.BytesIO(body)).column("id").to_pylist()
        return sorted(found)


@contextmanager
def server() -> Iterator[str]:
    """The endpoint of a server, which other processes reach too."""
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()
