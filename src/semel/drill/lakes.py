"""What the owner of tables in a lake may do to them at any time."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def optimize_delta(lake: Path) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError

    for path in lake.glob("*/_delta_log"):
        table = DeltaTable(str(path.parent))
        with contextlib.suppress(CommitFailedError):  # the connector has been faster
            table.optimize.compact()
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def rewrite_iceberg(properties: Mapping[str, Any]) -> None:
    from datetime import datetime

    from pyiceberg.catalog import load_catalog
    from pyiceberg.exceptions import CommitFailedException, ValidationException

    catalog = load_catalog("iceberg", **properties)
    for namespace in catalog.list_namespaces():
        for name in catalog.list_tables(namespace):
            table = catalog.load_table(name)
            with contextlib.suppress(CommitFailedException, ValidationException):
                table.overwrite(table.scan().to_arrow())
                table.maintenance.expire_snapshots().older_than(datetime.now()).commit()
