"""Configurations that others have published for these connectors."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.config.reading import VALUE_CONVERTER
from semel.core.errors import ConfigError
from semel.driver.planning import plan_source
from semel.sources.directory.config import FILEPULSE
from semel.sources.directory.source import DirectorySource
from tests.sources.directory.conftest import Reading
from tests.sources.directory.test_formats import VALUE, schema

SPOOLDIR = {
    "name": "CsvSpoolDir",
    "tasks.max": "1",
    "connector.class": "com.github.jcustenborder.kafka.connect.spooldir.SpoolDirCsvSourceConnector",
    "input.file.pattern": "^.*\\.csv$",
    "halt.on.error": "false",
    "topic": "testing",
    "csv.first.row.as.header": "true",
    "csv.null.field.indicator": "EMPTY_SEPARATORS",
    "input.path": "/tmp/spooldir/input",
    "finished.path": "/tmp/spooldir/finished",
    "error.path": "/tmp/spooldir/error",
    "batch.size": "5000",
    "cleanup.policy": "DELETE",
    "key.schema": schema(id={"type": "INT64", "isOptional": False}),
    "value.schema": VALUE,
}
"""kafka-connect-spooldir's config/CSVExample.properties."""
FILEPULSE = {
    "name": "pulse",
    "connector.class": FILEPULSE,
    "topic": "t",
    "fs.listing.class": "io.streamthoughts.kafka.connect.filepulse.fs.LocalFSDirectoryListing",
    "fs.listing.filters": "io.streamthoughts.kafka.connect.filepulse.fs.filter.RegexFileListFilter",
    "fs.listing.interval.ms": "1",
    "file.filter.regex.pattern": ".*\\.log$",
    "fs.cleanup.policy.class": "io.streamthoughts.kafka.connect.filepulse.fs.clean."
    "LogCleanupPolicy",
    "tasks.reader.class": "io.streamthoughts.kafka.connect.filepulse.fs.reader."
    "LocalRowFileInputReader",
    "tasks.file.status.storage.bootstrap.servers": "broker:9092",
    "tasks.file.status.storage.topic": "connect-file-pulse-status",
    "offset.strategy": "name",
}
OURS = {"bootstrap.servers": "localhost:1"}


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {
            "connector.class": "com.github.jcustenborder.kafka.connect.spooldir."
            "SpoolDirJsonSourceConnector"
        },
        {"schema.generation.enabled": "true", "key.schema": "", "value.schema": ""},
        {"_comment": "mine", "batch.size": 5000, "halt.on.error": False},
    ],
)
def test_spooldirs_examples_run_as_they_are(changed: dict[str, object]) -> None:
    planned = plan_source({**SPOOLDIR, **changed, **OURS})
    unknown = [w for w in planned.warnings if w != VALUE_CONVERTER]
    assert unknown == (["unknown configuration key _comment"] if "_comment" in changed else [])


def test_filepulse_reads_lines_as_messages(folder: Path) -> None:
    (folder / "a.log").write_text("one\ntwo\n")
    (folder / "a.txt").write_text("not this\n")
    where = {"fs.listing.directory.path": str(folder), "file.filter.minimum.age.ms": "0"}
    planned = plan_source({**FILEPULSE, **where, **OURS})
    assert [w for w in planned.warnings if w != VALUE_CONVERTER] == []
    assert isinstance(planned.source, DirectorySource)
    assert Reading(planned.source).all() == [{"message": "one"}, {"message": "two"}]
    assert (folder / "a.log").exists()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"filters": "ParseLine"}, "filters=ParseLine of FilePulse has no equivalent here"),
        ({"tasks.reader.class": "a.LocalXMLFileInputReader"}, "a reader of rows, Avro or Parquet"),
        ({"fs.cleanup.policy.class": "my.Policy"}, "must be one of LogCleanupPolicy"),
        ({"skip.headers": "1"}, "skip.headers=1 of FilePulse has no equivalent here"),
        ({"fs.listing.directory.path": ""}, r"input\.path is required"),
    ],
)
def test_what_has_no_equivalent_is_refused_by_name(changed: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_source({**FILEPULSE, "fs.listing.directory.path": "/in", **changed, **OURS})
