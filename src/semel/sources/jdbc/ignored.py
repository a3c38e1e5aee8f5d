"""Keys of Confluent's and Aiven's connectors that have no effect here, with the reason."""

from __future__ import annotations

IGNORED = {
    "batch.max.rows": "batches are bounded by their bytes",
    "dialect.name": "the dialect follows from connection.url",
    "connection.attempts": "see max.retries",
    "connection.backoff.ms": "see retry.backoff.ms",
    "transaction.isolation.mode": "each query reads one snapshot of the database",
    "quote.sql.identifiers": "names of tables and columns are always quoted; columns are also "
    "found where only the case differs",
    "sql.quote.identifiers": "names of tables and columns are always quoted; columns are also "
    "found where only the case differs",
    "max.buffer.size": "batches are bounded by their bytes",
    "poll.linger.ms": "batches are committed as they are read",
    "query.retry.attempts": "see max.retries",
    "table.monitoring.startup.polling.limit.ms": "tables are listed before reading begins",
    "date.calendar.system": "dates and times are of the proleptic Gregorian calendar",
    "table.names.qualify": "tables are always queried by their full names",
}
