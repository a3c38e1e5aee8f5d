"""A server of S3 and Glue for tests, and its buckets as they are seen without fsspec."""

from __future__ import annotations

import io
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pyarrow.parquet as pq
from moto.glue.exceptions import GlueClientError
from moto.glue.responses import GlueResponse
from moto.s3.responses import S3Response
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

    def read(self, key: str) -> bytes:
        """An object below ``where``."""
        found = self._client.get_object(Bucket=self.name, Key=f"lake/{key}")["Body"].read()
        return bytes(found)

    def ids(self) -> list[int]:
        """The contents of the visible Parquet files."""
        found: list[int] = []
        for key in self.all():
            if key.endswith(".parquet"):
                found += pq.read_table(io.BytesIO(self.read(key))).column("id").to_pylist()
        return sorted(found)


def glue(bucket: Bucket, endpoint: str) -> dict[str, str]:
    """The properties of a catalog in Glue whose tables are in a bucket, as PyIceberg names them."""
    return {
        "type": "glue",
        "warehouse": bucket.where,
        "glue.endpoint": endpoint,
        "s3.endpoint": endpoint,
        "client.region": "us-east-1",
        "client.access-key-id": "k",
        "client.secret-access-key": "s",
    }


def _update_table(self: Any) -> Any:
    """AWS refuses to update another version of a table than the one that is named
    (https://docs.aws.amazon.com/glue/latest/webapi/API_UpdateTable.html); moto does not look."""
    given = self.parameters
    with _ONE_UPDATE:
        backend, name = self.glue_backend, given["TableInput"]["Name"]
        table = backend.get_table(given["DatabaseName"], name)
        wanted = given.get("VersionId")
        if wanted is not None and wanted != table.as_dict()["VersionId"]:
            why = f"{name} is not at version {wanted}"
            raise GlueClientError("ConcurrentModificationException", why)
        return _UNCHECKED(self)


_ONE_UPDATE = threading.Lock()
_UNCHECKED = GlueResponse.update_table


def _put(self: Any, query: dict[str, Any], key_name: str) -> Any:
    """S3 judges If-None-Match and stores the object in one step; moto does so in two, and may let
    two of them pass."""
    with _ONE_PUT:
        return _PUT_AT_ANY_TIME(self, query, key_name)


_ONE_PUT = threading.Lock()
_PUT_AT_ANY_TIME = S3Response._key_response_put


@contextmanager
def server() -> Iterator[str]:
    """The endpoint of a server, which other processes reach too."""
    GlueResponse.update_table = _update_table
    S3Response._key_response_put = _put
    running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()
