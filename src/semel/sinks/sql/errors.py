"""The refusals of databases that every SQL sink distinguishes."""

from __future__ import annotations

from semel.errors import ServiceError


class DataRefused(ServiceError):
    """The database refused a value or a row."""


class SchemaChanged(ServiceError):
    """A table or column is not what the catalog said."""
