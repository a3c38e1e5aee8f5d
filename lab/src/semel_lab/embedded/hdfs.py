"""A real HDFS in a directory: a NameNode and a DataNode in one process. Only for development."""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any, ClassVar
from xml.sax.saxutils import escape

from semel.spark import jars
from semel_lab.embedded.java import find_jdk
from semel_lab.embedded.process import LOOPBACK, listening
from semel_lab.embedded.server import JavaServer
from semel_lab.jars import HDFS

JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    "-Djava.net.preferIPv4Stack=true",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)

_PROGRAM = """\
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.logging.Level;
import java.util.logging.Logger;
import org.apache.hadoop.hdfs.HdfsConfiguration;
import org.apache.hadoop.hdfs.server.datanode.DataNode;
import org.apache.hadoop.hdfs.server.namenode.NameNode;
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem;

/** Both servers; what each is called in the metrics must differ. */
public class Hdfs {
    public static void main(String[] arguments) throws Exception {
        Path home = Path.of(arguments[0]);
        Logger.getLogger("").setLevel(Level.SEVERE);
        DefaultMetricsSystem.setMiniClusterMode(true);
        HdfsConfiguration settings = new HdfsConfiguration();
        settings.addResource(home.resolve("site.xml").toUri().toURL());
        if (!Files.exists(home.resolve("names/current"))) {
            NameNode.format(settings);
        }
        NameNode names = NameNode.createNameNode(new String[0], settings);
        DataNode.createDataNode(new String[0], settings);
        names.join();
    }
}
"""


class Hdfs(JavaServer):
    """One NameNode and one DataNode. They answer once files can be written."""

    name = "HDFS"
    log_name = "server.log"
    user: ClassVar[str] = "semel"
    """The superuser."""
    port_names = ("http", "rpc", "data", "data-http", "data-rpc")
    start_timeout = 300.0
    stop_timeout = 20.0
    default_heap = "256m"

    @property
    def url(self) -> str:
        """The root's URL over HTTP."""
        return f"webhdfs://{LOOPBACK}:{self.port}"

    @property
    def rpc_url(self) -> str:
        """The root's URL for Hadoop's own clients."""
        return f"hdfs://{LOOPBACK}:{self._ports['rpc']}"

    def _launch(self) -> None:
        java = find_jdk(self.name)
        classpath = jars.classpath(HDFS)
        self._check_ports()
        properties = "".join(
            f"<property><name>{name}</name><value>{escape(str(value))}</value></property>\n"
            for name, value in self._settings().items()
        )
        site = f"<configuration>\n{properties}</configuration>\n"
        (self.directory / "site.xml").write_text(site)
        program = self.directory / "Hdfs.java"
        program.write_text(_PROGRAM)
        self._process.launch(
            [
                str(java),
                f"-Xmx{self.heap}",
                *JVM_FLAGS,
                f"-Dhadoop.log.dir={self.directory}",
                "-cp",
                classpath,
                str(program),
                str(self.directory),
            ],
            detached=self.detached,
            environment={**os.environ, "HADOOP_USER_NAME": self.user},
            directory=self.directory,
        )

    def _answers(self) -> bool:
        if not listening(self.port):
            return False
        bean = "Hadoop:service=NameNode,name=FSNamesystemState"
        url = f"http://{LOOPBACK}:{self.port}/jmx?qry={bean}"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                (state,) = json.load(answer)["beans"]
        except (OSError, ValueError, KeyError):
            return False
        return bool(state["FSState"] == "Operational" and state["NumLiveDataNodes"])

    def _settings(self) -> dict[str, Any]:
        addresses = {
            "dfs.namenode.http-address": "http",
            "dfs.namenode.rpc-address": "rpc",
            "dfs.datanode.address": "data",
            "dfs.datanode.http.address": "data-http",
            "dfs.datanode.ipc.address": "data-rpc",
        }
        return {
            "fs.defaultFS": self.rpc_url,
            **{name: f"{LOOPBACK}:{self._ports[port]}" for name, port in addresses.items()},
            "dfs.datanode.hostname": LOOPBACK,
            "dfs.namenode.name.dir": f"file://{self.directory}/names",
            "dfs.datanode.data.dir": f"file://{self.directory}/data",
            "hadoop.tmp.dir": self.directory / "tmp",
            "dfs.replication": 1,
            "dfs.heartbeat.interval": 1,
            # It reports without delay that files can be written.
            "dfs.namenode.safemode.min.datanodes": 1,
            "dfs.namenode.safemode.extension": 0,
            "dfs.namenode.safemode.recheck.interval": 50,
            # How long a DataNode waits for a file to be complete before it asks again.
            "dfs.client.block.write.locateFollowingBlock.initial.delay.ms": 10,
            "dfs.namenode.handler.count": 4,
            "dfs.datanode.handler.count": 4,
        }
