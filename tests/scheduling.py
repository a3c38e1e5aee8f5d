"""Which worker of pytest-xdist runs which tests, and in which order.

``--dist loadfile`` keeps a file's tests together and begins with the file that has the most tests.
That is not always the slowest one, and it ignores the servers that files have to start. A sample
(:mod:`tests.sampling`) begins with the file that was drawn first.
"""

from __future__ import annotations

from typing import Any

import pytest

TOGETHER = {
    "micro-batches": ("tests/engine/microbatch/",),  # one Spark session
    "proxy": ("tests/proxy/",),  # one REST proxy
    "files": ("tests/sinks/files/", "tests/engine/test_files_hdfs.py"),  # HDFS
    "catalogs": (  # two JVMs, a REST catalog's and a Hive metastore's, and moto
        "tests/sinks/iceberg/test_catalogs.py",
        "tests/sinks/iceberg/test_crashes.py",
        "tests/sinks/iceberg/test_hive.py",
        "tests/engine/test_iceberg_catalogs.py",
    ),
}
"""Tests that share what is slow to start: one worker runs them."""

FIRST = (
    "lab/tests/test_drill_source.py",
    "tests/test_audit_any_records.py",
    "tests/rest/test_cluster_faults.py",
    "tests/test_image.py",
    "tests/test_packaging.py",
    "tests/test_extras_installed.py",
    "tests/test_docs_shell.py",
    "lab/tests/test_drill_cluster.py",
    "lab/tests/test_drill_peer.py",
    "lab/tests/test_drill_registry.py",
    "lab/tests/test_drill_streams.py",
    "tests/rest/test_takeover.py",
    "tests/rest/test_browser.py",
    "tests/rest/test_page.py",
    "tests/rest/test_page_records.py",
    "tests/engine/test_takeover.py",
    "tests/test_docs_examples.py",
    "tests/engine/test_beside_connect.py",
    "tests/streams/test_beside_kafka_streams.py",
    "tests/rest/test_spark_cluster.py",
    "tests/rest/test_against_connect.py",
    "lab/tests/test_demo.py",
    "tests/engine/test_iceberg_spark.py",
    "proxy",
    "lab/tests/test_services.py",
    "micro-batches",
    "tests/engine/test_sources.py",
    "tests/engine/test_crashes.py",
    "tests/engine/streams/test_states.py",
    "tests/engine/test_search.py",
    "tests/sinks/test_ledgers.py",
    "tests/engine/test_files.py",
    "tests/sinks/kafka/test_failures.py",
    "tests/rest/test_cluster.py",
    "tests/rest/test_stores.py",
    "files",
    "tests/rest/test_app.py",
    "tests/sources/jdbc/test_source.py",
    "tests/engine/test_bounded.py",
    "catalogs",
    "tests/engine/test_tasks.py",
    "tests/sinks/sql/test_sink.py",
    "tests/cli/test_connectors.py",
    "tests/test_audit.py",
    "tests/engine/test_databases.py",
    "lab/tests/test_drill.py",
    "tests/engine/test_damage.py",
    "tests/sinks/test_postgresql_failures.py",
    "tests/cli/test_commands.py",
    "tests/cli/test_hostile_folder.py",
    "tests/engine/test_first_positions.py",
    "tests/rest/test_security.py",
    "tests/engine/test_logs.py",
    "tests/engine/test_sources_jdbc.py",
    "tests/engine/test_spark.py",
    "tests/rest/test_attacks.py",
    "tests/engine/test_runtime.py",
    "tests/engine/test_memory.py",
    "tests/engine/test_reading.py",
    "tests/sinks/test_postgresql_writing.py",
    "tests/sinks/kafka/test_bad_records.py",
    "tests/engine/test_iceberg_routing.py",
    "tests/test_audit_follow.py",
    "tests/converters/protobuf/test_columns.py",
    "tests/sinks/kafka/test_ledger.py",
    "tests/engine/test_iceberg.py",
    "tests/sinks/test_filestream.py",
    "tests/engine/test_bad_records.py",
    "tests/rest/test_openapi.py",
    "tests/test_ledger.py",
    "tests/converters/json/test_reference.py",
    "tests/sinks/kafka/test_copying.py",
    "tests/engine/test_outages.py",
    "tests/sinks/test_postgresql_tables.py",
    "tests/cli/test_refusals.py",
    "tests/engine/test_transforms.py",
    "tests/engine/test_unplaced.py",
    "tests/sinks/test_object_store_faults.py",
    "tests/test_gateway.py",
    "tests/kafka/test_secured.py",
    "lab/tests/test_postgres.py",
    "tests/engine/test_failures.py",
    "tests/sinks/test_values.py",
)
"""The files that take 20 s or more start first; otherwise the whole run waits for them at its end.
Files with many quick tests fill the gaps."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    as_drawn = config.getoption("sample") is not None
    config.option.loadscopereorder = not as_drawn

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]
        def _split_scope(self, nodeid: str) -> str:
            named = (name for name, places in TOGETHER.items() if nodeid.startswith(places))
            return next(named, None) or str(super()._split_scope(nodeid))

        def _assign_work_unit(self, node: Any) -> None:
            first = next((unit for unit in FIRST if unit in self.workqueue), None)
            if first is not None and not as_drawn:
                self.workqueue.move_to_end(first, last=False)
            super()._assign_work_unit(node)

    return Scheduling(config, log)
