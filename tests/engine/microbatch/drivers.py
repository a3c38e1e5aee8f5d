"""Drivers that can be killed: processes of their own, in the JVM of the tests' session.

A JVM takes ten seconds to start, and dying is what these drivers are for. So a driver borrows the
session's: py4j lets a second Python process in, and Spark calls back whoever has registered last.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaObject
from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

import semel
from semel.core import failpoints
from semel.spark.gateway import tell_token
from tests.engine.microbatch.transforms import TRANSFORMS
from tests.patience import PATIENCE


def drive(spark: SparkSession, config: Mapping[str, Any], transform: str, points: Path) -> int:
    """Run a connector in a driver of its own until it has caught up or died; returns how it ended.

    What its query has begun in the JVM is over then, too.
    """
    context = spark.sparkContext
    gateway: Any = context._gateway
    process = subprocess.run(
        [sys.executable, "-m", __name__, json.dumps(config), transform],
        env={
            **os.environ,
            "PYSPARK_GATEWAY_PORT": str(gateway.gateway_parameters.port),
            "PYSPARK_GATEWAY_SECRET": gateway.gateway_parameters.auth_token,
            failpoints.DIRECTORY: str(points),
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        timeout=PATIENCE,
        check=False,
    )
    _answer_again(gateway)
    deadline = time.monotonic() + PATIENCE
    while spark.streams.active or context.statusTracker().getActiveJobsIds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return process.returncode


def _answer_again(gateway: Any) -> None:
    """Let the JVM call back this process, as it did before the other one came."""
    port = gateway.__dict__.get("_python_proxy_port")
    if port:
        server = JavaObject("GATEWAY_SERVER", gateway._gateway_client)
        server.resetCallbackClient(server.getCallbackClient().getAddress(), port)
        tell_token(gateway)


def _borrowed() -> SparkSession:
    gateway: Any = launch_gateway()
    scala = gateway.jvm.org.apache.spark.SparkContext.getOrCreate()
    context = SparkContext(
        gateway=gateway,
        jsc=gateway.jvm.JavaSparkContext.fromSparkContext(scala),
        conf=SparkConf(_jvm=gateway.jvm, _jconf=scala.getConf()),
    )
    return SparkSession(context)


def _main(config: str, transform: str) -> None:
    semel.run(
        json.loads(config), TRANSFORMS.get(transform), spark=_borrowed(), until_caught_up=True
    )
    os._exit(0)  # the session is not this process's to stop


if __name__ == "__main__":
    _main(*sys.argv[1:])
