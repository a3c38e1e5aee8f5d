"""A store that ignores the condition of a put cannot hold a ledger that fences."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from moto.moto_server.werkzeug_app import DomainDispatcherApplication

from semel.config import ConnectorConfig, read
from semel.core.errors import ConfigError
from semel.sinks.delta.sink import DeltaSink
from tests.faults import Faults, apart
from tests.s3 import Bucket, server
from tests.sinks.delta.conftest import Lake


@contextmanager
def deaf_server() -> Iterator[str]:
    """A server that overwrites whatever the condition of a put says."""
    original = DomainDispatcherApplication.__call__

    def deaf(self: Any, environ: Any, respond: Any) -> Any:
        environ.pop("HTTP_IF_NONE_MATCH", None)
        return original(self, environ, respond)

    with pytest.MonkeyPatch.context() as patch, server() as found:
        patch.setattr(DomainDispatcherApplication, "__call__", deaf)
        yield found


def prepare(bucket: Bucket, endpoint: str, **keys: str) -> None:
    options = {
        "aws_endpoint_url": endpoint,
        "aws_allow_http": "true",
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_region": "us-east-1",
    }
    raw = Lake(Path()).config(keys=keys)
    raw |= {f"storage.options.{name}": value for name, value in options.items()}
    raw["delta.table.path"] = bucket.where
    DeltaSink(read(ConnectorConfig, raw)).prepare(["t"])


def test_a_store_that_keeps_the_condition_is_taken_and_left_clean(faulty_aws: Faults) -> None:
    bucket = Bucket(faulty_aws.backend)
    prepare(bucket, faulty_aws.backend)
    assert bucket.all() == []


def test_a_store_that_overwrites_in_spite_of_the_condition_is_refused() -> None:
    with apart(deaf_server) as deaf:
        bucket = Bucket(deaf.backend)
        with pytest.raises(ConfigError, match="does not create files exclusively"):
            prepare(bucket, deaf.backend)
        assert bucket.all() == []
        prepare(bucket, deaf.backend, delivery="at-least-once")
