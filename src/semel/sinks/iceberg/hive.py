"""PyIceberg's Hive catalog, with the metastore checking each commit against the table's state.

PyIceberg reads and replaces a table while it holds a lock of the metastore. It does not renew the
lock: a process that sleeps for longer than the lock lasts would replace a newer state with an
old one. Since HIVE-26882 the metastore can be told to replace a table only if it has not changed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import (
    EnvironmentContext,
    FieldSchema,
    GetTableRequest,
    InvalidOperationException,
    LockResponse,
    LockState,
    MetaException,
    NoSuchLockException,
)
from pyiceberg.catalog import METADATA_LOCATION, hive
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import TableRequirement, TableUpdate
from thrift.protocol.TBinaryProtocol import TBinaryProtocol

from semel.core.failpoints import hit

TIMEOUT = "semel.timeout"
"""The catalog's property with the seconds of :attr:`_Connections.timeout`."""
LOCKS = "engine.hive.lock-enabled"
"""The table property that lets its writers do without locks."""
_MODIFIED = "table has been modified"
"""What a metastore says if a table is not in the state that it was told to expect."""


class HiveCatalog(hive.HiveCatalog):
    """A catalog in a metastore."""

    _client: _Connections

    @staticmethod
    def _create_hive_client(properties: dict[str, str]) -> _Connections:
        client = hive.HiveCatalog._create_hive_client(properties)
        connections = _Connections(
            client._uri, properties.get("ugi"), client._kerberos_auth, client._kerberos_service_name
        )
        connections.timeout = float(properties[TIMEOUT])
        connections._transport = connections._init_thrift_transport()
        return connections

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        self._client.locks = table.properties.get(LOCKS, "true").lower() != "false"
        return super().commit_table(table, requirements, updates)

    def compares(self, name: str) -> bool:
        """Whether the metastore compares when it is told to.

        The probe asks for a change that every metastore refuses, other partition columns, and
        expects a location that is wrong. The refusal tells which of the two was checked first.
        """
        database, table = self.identifier_to_database_and_table(name, NoSuchTableError)
        with self._client as client:
            probe = client.get_table(database, table)
            probe.partitionKeys = [*(probe.partitionKeys or ()), FieldSchema("semel", "string")]
            wrong = EnvironmentContext(properties=_expecting("nowhere"))
            try:
                Client.alter_table_with_environment_context(client, database, table, probe, wrong)
            except InvalidOperationException as error:
                return _MODIFIED in str(error.message)
            except MetaException as error:
                if _MODIFIED in str(error.message):
                    return True
                raise  # it may be some other problem that passes
        return False


def _expecting(location: str) -> dict[str, str]:
    """Properties that tell a metastore to replace a table only if its metadata is there."""
    return {
        "expected_parameter_key": METADATA_LOCATION,
        "expected_parameter_value": location,
    }


class _Connections(hive._HiveClient):
    locks = True
    timeout = 60.0
    """Seconds for which the metastore may be silent: Thrift would wait without end."""

    def _init_thrift_transport(self) -> Any:
        transport = super()._init_thrift_transport()
        socket = (
            transport._TBufferedTransport__trans if not self._kerberos_auth else transport.transport
        )
        socket.setTimeout(self.timeout * 1000)
        return transport

    def _client(self) -> Client:
        client = _ComparingClient(TBinaryProtocol(self._transport))
        client.locks = self.locks
        if self._ugi:
            client.set_ugi(*self._ugi)
        return client


class _ComparingClient(Client):  # type: ignore[misc]
    """A client that says which state of a table it replaces."""

    locks = True

    def get_table(self, dbname: str, tbl_name: str) -> Any:
        """Use the one call that all metastores have: Hive 4.0.1 removed the older one."""
        return self.get_table_req(GetTableRequest(dbName=dbname, tblName=tbl_name)).table

    def alter_table_with_environment_context(
        self, dbname: str, tbl_name: str, new_tbl: Any, environment_context: EnvironmentContext
    ) -> None:
        seen = new_tbl.parameters[hive.PROP_PREVIOUS_METADATA_LOCATION]
        environment_context.properties |= _expecting(seen)
        hit("hive.before_alter")
        try:
            super().alter_table_with_environment_context(
                dbname, tbl_name, new_tbl, environment_context
            )
        except (MetaException, InvalidOperationException) as error:
            if _MODIFIED not in str(error.message):
                raise
            raise CommitFailedException(error.message) from None

    def lock(self, rqst: Any) -> LockResponse:
        return super().lock(rqst) if self.locks else LockResponse(0, LockState.ACQUIRED)

    def check_lock(self, rqst: Any) -> LockResponse:
        try:
            return super().check_lock(rqst)
        except NoSuchLockException as error:
            raise CommitFailedException(
                f"the lock request was dropped before it was granted: {error.message}"
            ) from None

    def unlock(self, rqst: Any) -> None:
        if self.locks:
            with suppress(NoSuchLockException):  # it was given to others meanwhile
                super().unlock(rqst)
