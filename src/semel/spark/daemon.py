"""Spark's Python worker daemon, made cheaper to fork from.

PySpark calls ``importlib.invalidate_caches()`` in every task, which re-reads the directory of each
archive on ``sys.path``; ``spark-core.jar`` and ``pyspark.zip`` make that ~100 ms. Modules that all
tasks need are imported once here, before forking.
"""

import faulthandler
import gc
import importlib
import os
import signal
import sys
from contextlib import suppress
from importlib.machinery import PathFinder

folders = [p for p in sys.path if not p.endswith((".jar", ".zip"))]
installed = PathFinder.find_spec("pyspark", folders) is not None
for entry in set(sys.path) - set(folders):
    # Archives of the user (spark-submit --py-files) stay.
    if entry.endswith(".jar") or (installed and ("pyspark" in entry or "py4j" in entry)):
        sys.path.remove(entry)
        sys.path_importer_cache.pop(entry, None)

from semel.spark.standby import hand_over  # noqa: E402

if __name__ == "__main__" and hand_over():
    sys.exit()

from pyspark import daemon  # noqa: E402

for module in (
    "pyarrow.compute",
    "pyarrow.json",
    "confluent_kafka",
    "duckdb",
    "semel.tasks.attempt",
    "semel.tasks.direct.task",
    "semel.tasks.microbatch.task",
):
    importlib.import_module(module)

from semel.sinks import MODULE  # noqa: E402

if sink := os.environ.get(MODULE):
    with suppress(Exception):  # the task says what is missing
        importlib.import_module(sink)
with suppress(Exception):  # there may be no standard error
    faulthandler.register(signal.SIGUSR2)  # workers inherit it
gc.collect()
gc.freeze()

if __name__ == "__main__":
    daemon.manager()  # type: ignore[no-untyped-call]
