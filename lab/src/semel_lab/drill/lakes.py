"""What others may do at any time to the lake tables that a connector writes."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyiceberg.table import Table

_MARK = "semel-drill"
"""A property that only the drill sets."""


class Lake(ABC):
    """The tables of a drill."""

    def __init__(self) -> None:
        self.commits = 0
        self._marked: set[str] = set()

    @abstractmethod
    def rewrite(self) -> None:
        """Rewrite the tables and remove old files, as their owner may."""

    @abstractmethod
    def write(self) -> None:
        """Commit to each table as another writer, without leaving rows."""

    @abstractmethod
    def marks(self) -> set[str]:
        """The marks that the other writer's last commits left in the tables."""


class DeltaLake(Lake):
    """Delta tables in a directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def _tables(self) -> Iterator[DeltaTable]:
        from deltalake import DeltaTable

        for log in self._directory.glob("*/_delta_log"):
            yield DeltaTable(str(log.parent))

    def rewrite(self) -> None:
        from deltalake.exceptions import CommitFailedError

        for table in self._tables():
            with contextlib.suppress(CommitFailedError):  # the connector was faster
                table.optimize.compact()
                table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)

    def write(self) -> None:
        from deltalake import write_deltalake

        self.commits += 1
        self._marked.clear()
        for table in self._tables():
            self._marked.add(table.table_uri)
            table.alter.set_table_properties({_MARK: str(self.commits)}, raise_if_not_exists=False)
            before = table.version()
            write_deltalake(table, table.to_pyarrow_table().slice(0, 1), mode="append")
            table.restore(before)

    def marks(self) -> set[str]:
        return {
            t.metadata().configuration.get(_MARK, "")
            for t in self._tables()
            if t.table_uri in self._marked
        }


class IcebergLake(Lake):
    """Iceberg tables in a catalog."""

    def __init__(self, catalog: Mapping[str, Any]) -> None:
        super().__init__()
        self._properties = dict(catalog)

    def _tables(self) -> Iterator[Table]:
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("iceberg", **self._properties)
        for namespace in catalog.list_namespaces():
            for name in catalog.list_tables(namespace):
                yield catalog.load_table(name)

    def rewrite(self) -> None:
        from datetime import datetime

        from pyiceberg.exceptions import CommitFailedException, ValidationException

        for table in self._tables():
            with contextlib.suppress(CommitFailedException, ValidationException):
                table.overwrite(table.scan().to_arrow())
                table.maintenance.expire_snapshots().older_than(datetime.now()).commit()

    def write(self) -> None:
        self.commits += 1
        self._marked.clear()
        for table in self._tables():
            self._marked.add(".".join(table.name()))
            with table.transaction() as transaction:
                transaction.set_properties({_MARK: str(self.commits)})
            columns = table.schema().column_names
            if columns:
                with table.update_schema() as update:
                    update.update_column(columns[0], doc=f"{_MARK} {self.commits}")
                table.append(table.schema().as_arrow().empty_table())

    def marks(self) -> set[str]:
        return {
            t.properties.get(_MARK, "")
            for t in self._tables()
            if ".".join(t.name()) in self._marked
        }
