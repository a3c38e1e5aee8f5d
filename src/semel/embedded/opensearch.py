"""A real OpenSearch or Elasticsearch, one node, in a directory.

The servers' start scripts want a distribution and refuse to run as root. A node of their jars needs
neither: a few lines of Java make one, as the servers' own tests do. Only for development.
"""

from __future__ import annotations

import http.client
import json
import os
from pathlib import Path
from signal import SIGTERM
from types import TracebackType
from typing import Any, ClassVar, Self

from semel import jars
from semel.embedded.java import find_java, has_compiler
from semel.embedded.process import LOOPBACK, PortFile, ServerProcess, check_port_free, listening
from semel.errors import ServiceError

START_TIMEOUT = 120.0
STOP_TIMEOUT = 20.0

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

_LOGGING = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd HH:mm:ss.SSS} %-5level %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


class OpenSearch:
    """One node with its data, log and settings in ``directory``; used again if data is there.

    The port is chosen once and kept. As a context manager it lives as long as this process at
    most, even if that one is killed; ``detached=True`` lets it live on until ``stop``. Nothing
    outside this machine can connect.
    """

    name: ClassVar[str] = "OpenSearch"
    jar_set: ClassVar[jars.JarSet] = jars.OPENSEARCH
    package: ClassVar[str] = "org.opensearch"

    def __init__(
        self,
        directory: Path,
        port: int | None = None,
        heap: str = "320m",
        *,
        detached: bool = False,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.heap = heap
        self.detached = detached
        self.directory.mkdir(parents=True, exist_ok=True)
        self.log = self.directory / "server.log"
        self._ports = PortFile(self.name, self.directory / "ports.json").ports(
            ("http", "transport"), wanted=port
        )
        self._process = ServerProcess(self.name, self.directory, self.log)

    @property
    def port(self) -> int:
        """The port that clients connect to."""
        return self._ports["http"]

    @property
    def url(self) -> str:
        """What connectors call ``connection.url``."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The node's process id, or None if it is not running."""
        return self._process.pid

    def start(self) -> Self:
        """Starts the node and waits until it answers and has all of its data."""
        if self.pid is not None:
            raise ServiceError(
                f"{self.name} is running in {self.directory} already: process {self.pid}, "
                f"port {self.port}."
            )
        java = find_java()
        if not has_compiler(java):
            raise ServiceError(
                f"The embedded {self.name} needs a JDK, but {java} is a Java runtime without a "
                "compiler. Install one (openjdk-17-jdk-headless), or set JAVA_HOME to one."
            )
        classpath = jars.classpath(self.jar_set)
        for port in self._ports.values():
            check_port_free(self.name, port)
        (self.directory / "config").mkdir(exist_ok=True)
        (self.directory / "tmp").mkdir(exist_ok=True)
        logging = self.directory / "log4j2.properties"
        logging.write_text(_LOGGING)
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
        try:
            self._process.await_ready(self._answers, START_TIMEOUT)
        except BaseException:  # an interrupted start leaves nothing behind
            self.kill()
            raise
        return self

    def stop(self) -> None:
        """Stops the node in order; nothing happens if it is not running."""
        self._process.stop(SIGTERM, STOP_TIMEOUT)

    def kill(self) -> None:
        """Kills the node (SIGKILL), as a crash would."""
        self._process.kill()

    def restart(self) -> Self:
        """Stops the node if it runs and starts it on the same data and port."""
        self.stop()
        return self.start()

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Asks the node; returns its JSON.

        Raises:
            ServiceError: it refuses.
        """
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=30)
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

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

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
            # An index appears because somebody has created it, not by a document's arrival.
            "action.auto_create_index": False,
            # Tests create many indices on a small machine.
            "cluster.max_shards_per_node": 5000,
        }


class Elasticsearch(OpenSearch):
    """The same with Elasticsearch, of which OpenSearch is a fork."""

    name = "Elasticsearch"
    jar_set = jars.ELASTICSEARCH
    package = "org.elasticsearch"
