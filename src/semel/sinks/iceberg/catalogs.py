"""Maps Iceberg's catalogs to those of PyIceberg, with their properties."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from semel.core.errors import misconfigured
from semel.core.problems import refuse
from semel.sinks.checks import HTTP, problems_of_endpoint

_IMPLEMENTATIONS = {
    "org.apache.iceberg.rest.RESTCatalog": "rest",
    "org.apache.iceberg.hive.HiveCatalog": "hive",
    "org.apache.iceberg.aws.glue.GlueCatalog": "glue",
    "org.apache.iceberg.aws.dynamodb.DynamoDbCatalog": "dynamodb",
}
_TYPES = ("rest", "sql", "hive", "glue")
FLAT = ("hive", "glue")
"""Catalogs whose namespaces have one level."""
_NO_CATALOG = {
    "hadoop": "A hadoop catalog cannot refuse a commit that another writer has overtaken: move its "
    "tables to one that can",
    "nessie": "Nessie speaks rest too: set iceberg.catalog.type=rest, and iceberg.catalog.uri to "
    "the address that ends in /iceberg",
    "jdbc": "A JDBC catalog is sql here: set iceberg.catalog.type=sql, and iceberg.catalog.uri to "
    "an SQLAlchemy URL, such as postgresql+psycopg2://user:password@host/database",
    "dynamodb": "PyIceberg reads a DynamoDB catalog, but cannot commit to it: register its tables "
    "in one of these",
}


_SCHEMES = {"rest": HTTP, "hive": ("thrift",)}
"""What the address of a catalog begins with, by its type."""


def catalog(given: Mapping[str, str]) -> dict[str, str]:
    """The catalog's properties, as PyIceberg names them.

    Raises:
        ConfigError: PyIceberg has no such catalog.
    """
    found = dict(given)
    known = ", ".join(_TYPES)
    if not found:
        raise misconfigured(
            "iceberg.catalog.type",
            f"iceberg.catalog.type is required (one of {known}), and the catalog's properties, "
            "such as iceberg.catalog.uri",
        )
    implementation = found.pop("catalog-impl", "")
    if implementation:
        if implementation not in _IMPLEMENTATIONS:
            raise misconfigured(
                "iceberg.catalog.catalog-impl",
                f"iceberg.catalog.catalog-impl={implementation!r} is not available. Set "
                f"iceberg.catalog.type, one of {known}, instead; many catalogs speak rest too",
            )
        found["type"] = _IMPLEMENTATIONS[implementation]
    kind = found.get("type", "").strip().lower()
    if kind not in _TYPES:
        why = f". {_NO_CATALOG[kind]}" if kind in _NO_CATALOG else ""
        raise misconfigured(
            "iceberg.catalog.type",
            f"iceberg.catalog.type={found.get('type', '')!r} is not one of {known}{why}",
        )
    for name, schemes in (("uri", _SCHEMES.get(kind, ())), ("s3.endpoint", HTTP)):
        for address in found.get(name, "").split(",") if schemes else ():  # of Hive, several
            if address:
                refuse([*problems_of_endpoint(f"iceberg.catalog.{name}", address, schemes)])
    if kind == "sql" and found.get("uri", "").startswith("jdbc:"):
        raise misconfigured(
            "iceberg.catalog.uri",
            "iceberg.catalog.uri is a JDBC URL: set it to an SQLAlchemy URL, such as "
            "postgresql+psycopg2://user:password@host/database or sqlite:////path",
        )
    warehouse = found.get("warehouse", "")
    if warehouse and ":" not in warehouse and kind == "sql":
        found["warehouse"] = Path(warehouse).absolute().as_uri()  # wherever a reader is started
    found.pop("io-impl", None)  # a Java class; PyIceberg chooses by the location's scheme
    return found | {"type": kind}
