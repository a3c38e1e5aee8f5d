"""The audit: compares Kafka with the store and reports what is lost or duplicated.

It reads the store at one instant. Rows and positions are committed together, so each record below
the ledger's position must have exactly one row, and no record above it may have one. The audit may
therefore run while the connector does.

With provenance columns, the audit compares record by record. If later records of a key replace the
rows of earlier ones, it runs the connector's own converters on Kafka's records to compute the rows
that must be there. What it cannot tell counts as ``unknown`` rather than as lost or duplicated:

- records without a row, if ``insert.mode=update`` may have found no row to update, or if rows from
  before provenance was switched on may be theirs;
- rows whose records compaction may have removed;
- keys that are in several partitions, because their last record is not known.

Without provenance, the audit compares keys or counts. With a DataFrame transform it compares only
counts, because such a transform cannot be applied to single records.
"""

from __future__ import annotations

from semel.audit.auditor import audit
from semel.audit.report import AuditReport, PartitionAudit
from semel.audit.source import SourceAuditReport, audit_source

__all__ = ["AuditReport", "PartitionAudit", "SourceAuditReport", "audit", "audit_source"]
