"""A real schema registry, Apicurio, in a directory. It speaks Confluent's API."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from semel_lab.embedded.java import find_java
from semel_lab.embedded.process import LOOPBACK, answers
from semel_lab.embedded.server import JavaServer
from semel_lab.jars import APICURIO, unpacked

JVM_FLAGS = (
    "-XX:+UseSerialGC",
    "-XX:-UsePerfData",
    "-XX:TieredStopAtLevel=1",
    "-Djava.awt.headless=true",
    "-Djava.util.logging.manager=org.jboss.logmanager.LogManager",
)


def installed() -> list[Path]:
    """The registry's jars, downloaded if need be."""
    return sorted(unpacked(APICURIO).rglob("*.jar"))


class SchemaRegistry(JavaServer):
    """One registry, whose schemas are in a file database in its directory."""

    name = "the schema registry"
    log_name = "registry.log"
    port_names: ClassVar[tuple[str, ...]] = ("http",)
    start_timeout = 120.0
    stop_timeout = 20.0
    default_heap = "192m"

    @property
    def url(self) -> str:
        """The converters' ``schema.registry.url``."""
        return f"http://{LOOPBACK}:{self.port}/apis/ccompat/v7"

    def _launch(self) -> None:
        java = find_java()
        program = unpacked(APICURIO) / APICURIO.name
        self._check_ports()
        settings = {
            "quarkus.http.host": LOOPBACK,
            "quarkus.http.port": self.port,
            "quarkus.log.level": "WARN",
            "quarkus.log.console.color": "false",
            "apicurio.storage.sql.kind": "h2",
            "apicurio.datasource.url": f"jdbc:h2:file:{self.directory / 'registry'}",
            "apicurio.storage.read-only.enabled": "false",
        }
        self._process.launch(
            [
                str(java),
                "-Xms32m",
                f"-Xmx{self.heap}",
                *JVM_FLAGS,
                *(self.flags or self._mapped("registry", java, installed())),
                *(f"-D{name}={value}" for name, value in settings.items()),
                "-jar",
                f"{program}-runner.jar",
            ],
            detached=self.detached,
            environment=dict(os.environ),
            directory=self.directory,
        )

    def _answers(self) -> bool:
        return answers(self.port, "/apis/ccompat/v7/subjects")
