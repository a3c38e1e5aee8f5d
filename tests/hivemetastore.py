"""A real Hive metastore for the tests: Hive's own server over Derby, in memory.

Hive's object store creates its tables by itself. Those of the locks come from scripts that are in
no jar: a few lines of Java make them and start the server. They end locks that were not renewed,
too, as the metastore's housekeeping does, which wants more tables.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from hive_metastore.ThriftHiveMetastore import Client
from hive_metastore.ttypes import Database
from thrift.protocol.TBinaryProtocol import TBinaryProtocol
from thrift.Thrift import TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from semel.spark import jars
from semel_lab.embedded.java import console_logging, find_jdk
from semel_lab.embedded.process import LOOPBACK, listening
from semel_lab.embedded.server import Server
from semel_lab.jars import HIVE_METASTORE

PATIENT = {"lock-check-max-wait-time": "0.3", "lock-check-retries": "100"}
"""Properties of a catalog whose commits wait for as long as a lock lasts."""
_DATABASE = "jdbc:derby:memory:metastore;create=true"

_SERVER = """\
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.Statement;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.hive.metastore.HiveMetaStore;
import org.apache.hadoop.hive.metastore.conf.MetastoreConf;
import org.apache.hadoop.hive.metastore.txn.TxnStore;
import org.apache.hadoop.hive.metastore.txn.TxnUtils;

/** A metastore that has locks. */
public class Metastore {
    private static final String[] TABLES = {
        "CREATE TABLE next_lock_id (nl_next BIGINT NOT NULL)",
        "INSERT INTO next_lock_id VALUES (1)",
        "CREATE TABLE hive_locks ("
            + "hl_lock_ext_id BIGINT NOT NULL, hl_lock_int_id BIGINT NOT NULL, "
            + "hl_txnid BIGINT NOT NULL, hl_db VARCHAR(128) NOT NULL, hl_table VARCHAR(256), "
            + "hl_partition VARCHAR(767), hl_lock_state CHAR(1) NOT NULL, "
            + "hl_lock_type CHAR(1) NOT NULL, hl_last_heartbeat BIGINT NOT NULL, "
            + "hl_acquired_at BIGINT, hl_user VARCHAR(128) NOT NULL, "
            + "hl_host VARCHAR(128) NOT NULL, hl_heartbeat_count INTEGER, "
            + "hl_agent_info VARCHAR(128), hl_blockedby_ext_id BIGINT, "
            + "hl_blockedby_int_id BIGINT, PRIMARY KEY (hl_lock_ext_id, hl_lock_int_id))",
        "CREATE TABLE txns (txn_id BIGINT PRIMARY KEY, txn_state CHAR(1) NOT NULL, "
            + "txn_type INTEGER, txn_last_heartbeat BIGINT NOT NULL)",
        "CREATE TABLE aux_table (mt_key1 VARCHAR(128) NOT NULL, mt_key2 BIGINT NOT NULL, "
            + "mt_comment VARCHAR(255), PRIMARY KEY (mt_key1, mt_key2))",
    };

    public static void main(String[] arguments) throws Throwable {
        try (Connection connection = DriverManager.getConnection(arguments[0]);
                Statement statement = connection.createStatement()) {
            for (String table : TABLES) {
                statement.execute(table);
            }
        }
        TxnStore locks = TxnUtils.getTxnStore(MetastoreConf.newMetastoreConf());
        Executors.newSingleThreadScheduledExecutor()
            .scheduleWithFixedDelay(locks::performTimeOuts, 500, 500, TimeUnit.MILLISECONDS);
        HiveMetaStore.main(new String[] {"-p", arguments[1]});
    }
}
"""


class HiveMetastore(Server):
    """A metastore whose locks last for two seconds; it dies with this process."""

    name = "Hive metastore"
    log_name = "metastore.log"
    port_names = ("thrift",)
    start_timeout = 300.0
    stop_timeout = 10.0
    jar_set: ClassVar[jars.JarSet] = HIVE_METASTORE

    @property
    def uri(self) -> str:
        """What connectors call ``iceberg.catalog.uri``."""
        return f"thrift://{LOOPBACK}:{self.port}"

    def _launch(self) -> None:
        java = find_jdk(self.name)
        classpath = jars.classpath(self.jar_set)
        self._check_ports()
        (self.directory / "log4j2.properties").write_text(console_logging("warn"))
        program = self.directory / "Metastore.java"
        program.write_text(_SERVER)
        settings = {
            "javax.jdo.option.ConnectionURL": _DATABASE,
            "datanucleus.schema.autoCreateAll": "true",
            "metastore.schema.verification": "false",
            "metastore.thrift.bind.host": LOOPBACK,
            "metastore.warehouse.dir": f"file://{self.directory}/warehouse",
            "metastore.txn.timeout": "2s",
            "derby.stream.error.file": str(self.directory / "derby.log"),
            "log4j2.configurationFile": str(self.directory / "log4j2.properties"),
        }
        self._process.launch(
            [
                *(str(java), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
                *(f"-D{name}={value}" for name, value in settings.items()),
                *("-cp", classpath, str(program), _DATABASE, str(self.port)),
            ],
            detached=self.detached,
            directory=self.directory,
        )

    def create_namespace(self) -> str:
        """A new one's name."""
        name = f"n{uuid.uuid4().hex[:8]}"
        with self._client() as client:
            client.create_database(Database(name=name))
        return name

    def _answers(self) -> bool:
        if not listening(self.port):
            return False
        try:
            with self._client() as client:
                return "default" in client.get_all_databases()
        except TException:
            return False

    @contextmanager
    def _client(self) -> Iterator[Client]:
        transport = TBufferedTransport(TSocket(LOOPBACK, self.port))
        transport.open()
        try:
            yield Client(TBinaryProtocol(transport))
        finally:
            transport.close()
