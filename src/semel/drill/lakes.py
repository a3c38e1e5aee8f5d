"""What a drill does with tables of files: where they are, and what their owner may do to them."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CATALOG = "iceberg.catalog."


def adapted(raw: Mapping[str, str], directory: Path) -> dict[str, str] | None:
    """The keys that put a connector's tables into a directory; None if it writes none."""
    if "delta.table.path" in raw:
        return {"delta.table.path": str(directory / "lake")}
    if any(k.startswith(CATALOG) for k in raw):
        return {
            f"{CATALOG}type": "sql",
            f"{CATALOG}uri": f"sqlite:///{directory}/catalog.db",
            f"{CATALOG}warehouse": f"file://{directory}/warehouse",
            "iceberg.tables.auto-create-enabled": "true",
        }
    return None


def rewrite(raw: Mapping[str, str], directory: Path) -> None:
    """Rewrite the connector's tables and remove what is old, as their owner may at any time."""
    if "delta.table.path" in raw:
        _optimize_delta(directory / "lake")
    else:
        _rewrite_iceberg(
            {k.removeprefix(CATALOG): v for k, v in raw.items() if k.startswith(CATALOG)}
        )


def _optimize_delta(lake: Path) -> None:
    from deltalake import DeltaTable
    from deltalake.exceptions import CommitFailedError

    for path in lake.glob("*/_delta_log"):
        table = DeltaTable(str(path.parent))
        with contextlib.suppress(CommitFailedError):  # the connector has been faster
            table.optimize.compact()
            table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def _rewrite_iceberg(properties: Mapping[str, Any]) -> None:
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
