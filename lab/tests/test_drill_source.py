"""The drill of source connectors: what it counts, and short runs of it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from semel.core.delivery import Delivery, Guarantee, Mechanism
from semel.core.errors import ConfigError
from semel.core.failpoints import OF_SOURCES
from semel.driver.planning import plan_source
from semel.sources.datagen.source import DatagenSource
from semel.sources.directory.source import DirectorySource
from semel.tasks.source.encoder import Encoder
from semel_lab.drill.plan import ANY_MOMENT, Kind, plan
from semel_lab.drill.processes import without_place
from semel_lab.drill.source.folder import Folder
from semel_lab.drill.source.generator import RecordNumbers
from semel_lab.drill.source.lines import File
from semel_lab.drill.source.rows import Rows
from semel_lab.drill.source.run import drill_source
from semel_lab.drill.source.stage import BUILT_IN, SourceStage, system_of
from semel_lab.drill.source.tally import Tally

TRANSACTIONAL = Guarantee(Delivery.EXACTLY_ONCE, Mechanism.TRANSACTIONAL, "")
JSON = {
    "name": "drill",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
}
DATAGEN = {
    **JSON,
    "connector.class": "Datagen",
    "kafka.topic": "drill",
    "quickstart": "orders",
    "max.interval": "0",
}
JDBC = {
    **JSON,
    "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
    "topic.prefix": "d-",
    "first.load.range.rows": "300",
}
DIRECTORY = {
    **JSON,
    "connector.class": "SpoolDirCsvSourceConnector",
    "topic": "drill",
    "tasks.max": "2",
}


def test_each_place_of_reading_producing_and_committing_is_struck() -> None:
    faults = plan(200, 1, TRANSACTIONAL, [Kind.DRIVER_KILL, Kind.ZOMBIE], common=OF_SOURCES)
    assert {f.place for f in faults} == {*OF_SOURCES, ANY_MOMENT} - {"deliver.between"}


def messages(numbers: Sequence[int | str], partition: int = 0) -> list[Any]:
    return [
        SimpleNamespace(
            topic=lambda: "t", partition=lambda: partition, value=lambda n=n: f"{n}".encode()
        )
        for n in numbers
    ]


class TestTally:
    """What a consumer has seen of five records."""

    @pytest.fixture
    def tally(self) -> Tally:
        return Tally({f"{n}".encode(): n for n in range(5)})

    def test_each_record_once_and_in_order_is_as_it_must_be(self, tally: Tally) -> None:
        tally.add([*messages([1, 3], 0), *messages([0, 2, 4], 1)])
        assert tally.has(5)
        assert tally.findings(5, repeats=False).kept

    @pytest.mark.parametrize(
        ("seen", "lost", "duplicated", "changed", "disordered"),
        [
            ([0, 1, 3, 4], 1, 0, 0, 0),
            ([0, 1, 2, 3], 1, 0, 0, 0),
            ([0, 1, 2, 1, 2, 3, 4], 0, 2, 0, 0),
            ([0, 1, "two", 3, 4], 1, 0, 1, 0),
            ([0, 2, 1, 3, 4], 0, 0, 0, 1),
        ],
        ids=["lost", "lost at the end", "duplicated", "changed", "disordered"],
    )
    def test_each_thing_that_is_wrong_is_counted(
        self,
        seen: list[int | str],
        lost: int,
        duplicated: int,
        changed: int,
        disordered: int,
        tally: Tally,
    ) -> None:
        tally.add(messages(seen))
        found = tally.findings(5, repeats=False)
        counted = (found.lost, found.duplicated, found.changed, found.disordered)
        assert counted == (lost, duplicated, changed, disordered)
        assert not found.kept
        assert bool(found.reason) == bool(changed or disordered)

    def test_at_least_once_may_repeat_but_not_lose(self, tally: Tally) -> None:
        tally.add(messages([0, 2, 1, 2, 1, 3, 4]))
        assert tally.findings(5, repeats=True).kept
        found = tally.findings(6, repeats=True)
        assert not found.kept
        assert not found.reason


def test_lines_are_written_as_they_are_expected_however_they_are_cut(tmp_path: Path) -> None:
    file, dice = File(tmp_path), random.Random(1)
    written = file.values(range(500), dice)
    for begin in range(0, 500, 50):
        file.write(written.slice(begin, 50), dice)
    last = file.values([500], dice)
    file.rotate(last)
    old = (tmp_path / "lines.txt.1").read_bytes().decode()
    assert old.replace("\r\n", "\n").split("\n") == [*written.to_pylist(), *last.to_pylist()]
    assert file.size == 0


def test_a_source_that_the_drill_has_no_system_for_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no system for connector\.class=folder"):
        system_of({"name": "mine", "connector.class": "folder"}, tmp_path)


class TestFolder:
    """What the drill of a directory source writes."""

    RAW: ClassVar[dict[str, str]] = {"name": "d", "connector.class": "Directory"}

    @pytest.mark.parametrize("format", ["csv", "json", "text", "parquet"])
    def test_files_hold_what_is_expected_in_their_order(self, format: str, tmp_path: Path) -> None:
        other = {"csv.separator.char": "59", "csv.null.field.indicator": "BOTH"}
        raw = {**self.RAW, **other, "format": format, "topic": "t"}
        folder, dice = Folder(raw, tmp_path), random.Random(1)
        written: list[Any] = []
        for begin in range(0, 500, 50):
            folder.begins(begin)
            values = folder.values(range(begin, begin + 50), dice)
            folder.write(values, dice)
            written += values.to_pylist()
        given = without_place(raw, *folder.replaced)
        servers = {"bootstrap.servers": "localhost:1"}
        source = plan_source({**given, **servers, **folder.keys}).source
        assert isinstance(source, DirectorySource)
        batches = source.read_shard({"shard": 0}, lambda _partition: None)
        read: list[Any] = []
        while (batch := next(batches)) is not None:
            read += [v for r in batch.records for v in r.values.to_pylist()]
        assert read == written
        lanes = [folder.lane(n) for n in range(500)]
        assert sorted(lanes) == lanes
        assert len(set(lanes)) == len(list(folder.path.iterdir())) > 10

    def test_a_new_file_takes_a_name(self, tmp_path: Path) -> None:
        folder, dice = Folder({**self.RAW, "format": "text"}, tmp_path), random.Random(1)
        folder.write(folder.values(range(5), dice), dice)
        folder.again("00000000.text", folder.values([5], dice))
        assert (folder.path / "00000000.text").read_text().startswith("5:")

    def test_a_format_that_it_does_not_write_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="but not of avro"):
            Folder({**self.RAW, "format": "avro"}, tmp_path)


class TestRows:
    """What the drill of a JDBC source writes, and where."""

    RAW: ClassVar[dict[str, str]] = {
        "name": "d",
        "connection.url": "jdbc:postgresql://elsewhere/shop",
        "mode": "timestamp",
        "topic.prefix": "d-",
    }

    def test_rows_are_in_order_and_some_have_the_same_time(self, tmp_path: Path) -> None:
        rows = Rows(self.RAW, tmp_path)
        found = rows.values(range(500), random.Random(1)).to_pylist()
        found += rows.values(range(500, 1000), random.Random(2)).to_pylist()
        times = [row["changed"] for row in found]
        assert [row["id"] for row in found] == list(range(1000))
        assert times == sorted(times)
        assert 100 < len(set(times)) < 900
        assert len({rows.lane(n) for n in range(1000)}) == 1000
        assert {Rows({**self.RAW, "mode": "incrementing"}, tmp_path).lane(n) for n in range(9)} == {
            0
        }

    @pytest.mark.parametrize("system", ["sqlite", "duckdb"])
    def test_rows_of_a_file_are_what_the_source_reads(self, system: str, tmp_path: Path) -> None:
        raw = {**self.RAW, "connector.class": "JdbcSource", "connection.url": f"jdbc:{system}:/f"}
        raw["mode"] = "timestamp+incrementing"
        rows, dice = Rows(raw, tmp_path), random.Random(1)
        assert not rows.faults & {Kind.STORE_RESTART, Kind.STORE_KILL}
        rows.open()
        written: list[Any] = []
        for begin in range(0, 200, 50):
            values = rows.values(range(begin, begin + 50), dice)
            rows.write(values, dice)
            written += values.to_pylist()
        source = plan_source({**raw, **rows.keys, "bootstrap.servers": "localhost:1"}).source
        (partition,) = source.partitions()
        read: list[Any] = []
        for batch in source.read(partition, None):
            if batch is None and len(read) == len(written):
                break
            if batch is not None:
                read += [v for r in batch.records for v in r.values.to_pylist()]
        source.close()
        assert sorted(read, key=lambda row: row["id"]) == written

    def test_what_points_elsewhere_is_replaced(self, tmp_path: Path) -> None:
        rows = Rows(self.RAW, tmp_path)
        assert rows.topics == ["d-drill"]
        assert {"query", "table.blacklist", "connection.username"} < {*rows.replaced}
        assert not {"mode", "topic.prefix"} & {*rows.replaced}
        assert "elsewhere" not in rows.keys["connection.url"]

    @pytest.mark.parametrize(
        ("changed", "message"),
        [
            ({"mode": "bulk"}, r"mode=bulk writes all rows at each poll"),
            ({"connection.url": "jdbc:oracle:/f"}, r"no database for connection\.url=oracle:"),
        ],
    )
    def test_what_cannot_be_drilled_is_refused(
        self, changed: dict[str, str], message: str, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError, match=message):
            Rows({**self.RAW, **changed}, tmp_path)


def test_records_that_come_by_themselves_have_their_numbers() -> None:
    planned = plan_source({**DATAGEN, "bootstrap.servers": "localhost:1", "tasks.max": "1"})
    assert isinstance(planned.source, DatagenSource)
    made = RecordNumbers(planned.source, Encoder(planned.connector))
    assert made.get(b"nobody made this") is None
    values = list(made)
    assert len(values) > 30_000
    assert [made.get(v) for v in (values[0], values[29_999])] == [0, 29_999]


def test_faults_of_stores_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="store-kill cannot happen to it"):
        SourceStage(BUILT_IN, tmp_path / "drill", [Kind.STORE_KILL], 1)


@pytest.mark.integration
@pytest.mark.long
@pytest.mark.parametrize(
    "kinds",
    [
        (Kind.WORKER_KILL, Kind.TIME_OUT, Kind.BROKER_KILL),
        (
            *(Kind.DRIVER_KILL, Kind.ZOMBIE, Kind.ERROR, Kind.SECOND_DRIVER),
            *(Kind.EXECUTOR_KILL, Kind.REPLACED_ZOMBIE, Kind.BROKER_RESTART),
        ),
    ],
    ids=["some", "others"],
)
class TestOthers:
    def test_faults_of_datagen_lose_nothing_and_repeat_nothing(
        self, kinds: tuple[Kind, ...]
    ) -> None:
        report = drill_source(DATAGEN, len(kinds), 1, kinds=kinds)
        assert (report.lost, report.duplicated, report.kept) == (0, 0, True)

    @pytest.mark.parametrize(
        ("system", "mode"),
        [
            ("postgresql", "timestamp+incrementing"),
            ("postgresql", "timestamp"),
            ("mariadb", "incrementing"),
        ],
    )
    def test_faults_of_tables_lose_nothing_and_repeat_nothing(
        self, system: str, mode: str, kinds: tuple[Kind, ...]
    ) -> None:
        several = (*kinds, Kind.STORE_RESTART, Kind.STORE_KILL)
        config = {**JDBC, "connection.url": f"jdbc:{system}://localhost/shop", "mode": mode}
        report = drill_source(config, len(several), 1, kinds=several)
        assert {r.fault.kind for r in report.results} == set(several)
        assert (report.lost, report.duplicated, report.kept) == (0, 0, True)

    @pytest.mark.parametrize("policy", ["none", "move"])
    def test_faults_of_directories_lose_nothing_and_repeat_nothing(
        self, policy: str, kinds: tuple[Kind, ...]
    ) -> None:
        several = (*kinds, Kind.FILE_REPLACED, Kind.FILE_REPLACED)
        config = {**DIRECTORY, "cleanup.policy": policy}
        report = drill_source(config, len(several), 1, kinds=several)
        assert (report.lost, report.duplicated, report.kept) == (0, 0, True)


@pytest.mark.long
@pytest.mark.integration
class TestFileStream:
    @pytest.mark.parametrize(
        "kinds",
        [
            (Kind.WORKER_KILL, Kind.FILE_ROTATED),
            (
                *(Kind.DRIVER_KILL, Kind.ZOMBIE, Kind.ERROR, Kind.SECOND_DRIVER),
                *(Kind.EXECUTOR_KILL, Kind.REPLACED_ZOMBIE, Kind.FILE_CUT),
                *(Kind.TIME_OUT, Kind.BROKER_RESTART, Kind.BROKER_KILL),
            ),
        ],
        ids=["short", "others"],
    )
    def test_faults_lose_nothing_and_repeat_nothing(self, kinds: tuple[Kind, ...]) -> None:
        report = drill_source(BUILT_IN, len(kinds), 1, kinds=kinds)
        assert {r.fault.kind for r in report.results} == set(kinds)
        assert (report.lost, report.duplicated, report.kept) == (0, 0, True)
        assert report.final is not None
        assert report.final.records > 1000

    def test_what_at_least_once_repeats_is_seen(self) -> None:
        config = {**BUILT_IN, "delivery": "at-least-once"}
        report = drill_source(config, 6, 1, kinds=[Kind.ERROR, Kind.TIME_OUT])
        assert "deliver.between" in {r.fault.place for r in report.results}
        assert report.duplicated > 0
        assert (report.lost, report.kept) == (0, True)
