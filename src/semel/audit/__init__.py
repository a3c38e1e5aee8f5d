"""The audit: compare Kafka with the store, record by record, and say what is lost or duplicated.

The store is read at one instant. Because rows and positions are committed together, everything
below the ledger's position must be there exactly once and nothing above it may be there, so the
audit may run while the connector does.

With provenance columns it is exact to the record. Where a later record of a key replaces the row
of an earlier one, the rows that must be there are computed from Kafka's records by the connector's
own converters. What cannot be told is called ``unknown`` rather than lost or duplicated: a record
without a row where ``insert.mode=update`` may have found none to update, or where there are rows
without provenance, written before it was switched on; a row whose record compaction may have
removed; and which of a key's rows came last if it stands in several partitions.

Without provenance, and with a DataFrame transform, which no single record can be put through,
counts are compared: records in Kafka with records the ledger says were read, and rows in the table
with rows the ledger says were written.
"""

from __future__ import annotations

from semel.audit.report import AuditReport, PartitionAudit
from semel.audit.run import audit

__all__ = ["AuditReport", "PartitionAudit", "audit"]
