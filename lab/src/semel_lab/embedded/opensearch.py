"""A real OpenSearch or Elasticsearch, one node, in a directory.

The servers' start scripts want a distribution and refuse to run as root. A node of their jars needs
neither: a few lines of Java make one, as the servers' own tests do. Only for development.
"""

from __future__ import annotations

import http.client
import json
import os
from typing import Any, ClassVar

from semel.core.errors import ServiceError
from semel.spark import jars
from semel_lab.embedded.java import console_logging, find_jdk
from semel_lab.embedded.process import LOOPBACK, listening
from semel_lab.embedded.server import JavaServer
from semel_lab.jars import ELASTICSEARCH, OPENSEARCH

JVM_FLAGS = (
    "-XX:+UseParallelGC",
    "-XX:-UsePerfData",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    "-Dio.netty.noUnsafe=true",
    "-Dio.netty.noKeySetOptimization=true",
    "-Dio.netty.recycler.maxCapacityPerThread=0",
    "-Dlog4j2.disable.jmx=true",
    "-Dlog4j.shutdownHookEnabled=false",
    "-Djava.security.manager=allow",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
)

_NODE = """\
import PACKAGE.common.settings.Settings;
import PACKAGE.node.InternalSettingsPreparer;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

/** A node whose transport is on the class path. */
public class Node extends PACKAGE.node.Node {
    Node(Settings settings, Path home) {
        super(
            InternalSettingsPreparer.prepareEnvironment(
                settings, Map.of(), home.resolve("config"), () -> "semel"),
            List.of(PACKAGE.transport.Netty4Plugin.class),
            false);
    }

    public static void main(String[] arguments) throws Exception {
        Path home = Path.of(arguments[0]);
        Path file = home.resolve("node.yml");
        Settings settings = Settings.builder().put("path.home", home).loadFromPath(file).build();
        CountDownLatch ended = new CountDownLatch(1);
        Node node = new Node(settings, home);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            try {
                node.close();
            } catch (java.io.IOException failure) {
                failure.printStackTrace();
            }
            ended.countDown();
        }));
        node.start();
        ended.await();
    }
}
"""


class OpenSearch(JavaServer):
    """One node. It answers once it has loaded all of its data."""

    name = "OpenSearch"
    log_name = "server.log"
    port_names = ("http", "transport")
    start_timeout = 300.0
    stop_timeout = 20.0
    default_heap = "320m"
    jar_set: ClassVar[jars.JarSet] = OPENSEARCH
    package: ClassVar[str] = "org.opensearch"

    @property
    def url(self) -> str:
        """The connectors' ``connection.url``."""
        return f"http://{LOOPBACK}:{self.port}"

    def _launch(self) -> None:
        java = find_jdk(self.name)
        classpath = jars.classpath(self.jar_set)
        self._check_ports()
        (self.directory / "config").mkdir(exist_ok=True)
        (self.directory / "tmp").mkdir(exist_ok=True)
        logging = self.directory / "log4j2.properties"
        logging.write_text(console_logging("warn"))
        lines = [f"{name}: {json.dumps(value)}\n" for name, value in self._settings().items()]
        (self.directory / "node.yml").write_text("".join(lines))
        program = self.directory / "Node.java"
        program.write_text(_NODE.replace("PACKAGE", self.package))
        self._process.launch(
            [
                str(java),
                f"-Xms{self.heap}",
                f"-Xmx{self.heap}",
                *JVM_FLAGS,
                f"-Djava.io.tmpdir={self.directory / 'tmp'}",
                f"-Dlog4j2.configurationFile={logging}",
                "-cp",
                classpath,
                str(program),
                str(self.directory),
            ],
            detached=self.detached,
            environment=dict(os.environ),
            directory=self.directory,
        )

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the node. Return its JSON.

        Raises:
            ServiceError: it refuses.
        """
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=300)
        try:
            content = None if body is None else json.dumps(body)
            headers = {"content-type": "application/json"} if content else {}
            connection.request(method, path, content, headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        except (OSError, http.client.HTTPException) as failure:
            raise ServiceError(f"{self.name} on port {self.port}: {failure}") from failure
        finally:
            connection.close()
        if answer.status >= 300:
            raise ServiceError(f"{self.name}: {method} {path}: {answer.status} {text}")
        return json.loads(text) if text else None

    def _answers(self) -> bool:
        if not listening(self.port):
            return False
        try:
            self.request("GET", "/_cluster/health?wait_for_status=yellow&timeout=5s")
        except ServiceError:
            return False
        return True

    def _settings(self) -> dict[str, Any]:
        return {
            "cluster.name": "semel",
            "node.name": "semel",
            "network.host": LOOPBACK,
            "http.port": self._ports["http"],
            "transport.port": self._ports["transport"],
            "path.data": str(self.directory / "data"),
            "path.logs": str(self.directory / "logs"),
            "discovery.type": "single-node",
            "transport.type": "netty4",
            "http.type": "netty4",
            "cluster.routing.allocation.disk.threshold_enabled": False,
            # A document's arrival does not create an index.
            "action.auto_create_index": False,
            # Tests create many indices on a small machine.
            "cluster.max_shards_per_node": 5000,
        }


class Elasticsearch(OpenSearch):
    """The same with Elasticsearch, of which OpenSearch is a fork."""

    name = "Elasticsearch"
    jar_set = ELASTICSEARCH
    package = "org.elasticsearch"
