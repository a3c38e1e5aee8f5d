"""A real Iceberg REST catalog for the tests: Iceberg's own handlers of the REST protocol.

Iceberg's library holds what a catalog server does with a request (``CatalogHandlers``: the check of
a commit's requirements, its retries). Apache's reference server puts a web server before it and a
database behind it; so do a few lines of Java here.
"""

from __future__ import annotations

import http.client

from semel.spark import jars
from semel_lab.embedded.java import find_jdk
from semel_lab.embedded.process import LOOPBACK, listening
from semel_lab.embedded.server import Server
from semel_lab.jars import ICEBERG_REST

_SERVER = """\
import com.fasterxml.jackson.annotation.JsonAutoDetect.Visibility;
import com.fasterxml.jackson.annotation.PropertyAccessor;
import com.fasterxml.jackson.databind.DeserializationFeature;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.PropertyNamingStrategies;
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.util.Map;
import java.util.concurrent.Executors;
import org.apache.hadoop.conf.Configuration;
import org.apache.iceberg.CatalogUtil;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.SupportsNamespaces;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.*;
import org.apache.iceberg.rest.CatalogHandlers;
import org.apache.iceberg.rest.RESTCatalogProperties.SnapshotMode;
import org.apache.iceberg.rest.RESTSerializers;
import org.apache.iceberg.rest.RESTUtil;
import org.apache.iceberg.rest.requests.*;
import org.apache.iceberg.rest.responses.*;

/** A catalog in SQLite that speaks REST. */
public class RestCatalogServer {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static Catalog catalog;

    public static void main(String[] arguments) throws Exception {
        JSON.configure(DeserializationFeature.FAIL_ON_UNKNOWN_PROPERTIES, false);
        JSON.setVisibility(PropertyAccessor.FIELD, Visibility.ANY);
        JSON.setPropertyNamingStrategy(PropertyNamingStrategies.KEBAB_CASE);
        RESTSerializers.registerAll(JSON);
        catalog = CatalogUtil.buildIcebergCatalog(
            "rest",
            Map.of(
                "catalog-impl", "org.apache.iceberg.jdbc.JdbcCatalog",
                "uri", "jdbc:sqlite:" + arguments[1] + "/catalog.db",
                "warehouse", "file://" + arguments[1] + "/warehouse",
                "jdbc.schema-version", "V1"),
            new Configuration());
        InetSocketAddress address =
            new InetSocketAddress("127.0.0.1", Integer.parseInt(arguments[0]));
        HttpServer server = HttpServer.create(address, 0);
        server.setExecutor(Executors.newCachedThreadPool());
        server.createContext("/v1/", RestCatalogServer::handle);
        server.start();
    }

    private static void handle(HttpExchange exchange) throws IOException {
        int code = 200;
        Object answer;
        try {
            answer = answer(exchange);
            code = answer == null ? 204 : 200;
        } catch (Exception failure) {
            code = code(failure);
            answer = ErrorResponse.builder()
                .responseCode(code)
                .withType(failure.getClass().getSimpleName())
                .withMessage(String.valueOf(failure.getMessage()))
                .build();
            if (code == 500) {
                failure.printStackTrace();
            }
        }
        boolean empty = answer == null || exchange.getRequestMethod().equals("HEAD");
        byte[] body = empty ? new byte[0] : JSON.writeValueAsBytes(answer);
        exchange.getResponseHeaders().set("Content-Type", "application/json");
        exchange.sendResponseHeaders(code, empty ? -1 : body.length);
        if (!empty) {
            exchange.getResponseBody().write(body);
        }
        exchange.close();
    }

    private static Object answer(HttpExchange exchange) throws IOException {
        String[] path = exchange.getRequestURI().getRawPath().substring("/v1/".length()).split("/");
        String call = exchange.getRequestMethod() + " " + path[0] + " " + path.length;
        SupportsNamespaces namespaces = (SupportsNamespaces) catalog;
        Namespace namespace =
            path.length > 1 ? RESTUtil.decodeNamespace(path[1], "%1F") : Namespace.empty();
        TableIdentifier table =
            path.length > 3 ? TableIdentifier.of(namespace, RESTUtil.decodeString(path[3])) : null;
        switch (call) {
            case "GET config 1":
                return ConfigResponse.builder().build();
            case "GET namespaces 1":
                return CatalogHandlers.listNamespaces(namespaces, Namespace.empty());
            case "POST namespaces 1":
                return CatalogHandlers.createNamespace(
                    namespaces, read(exchange, CreateNamespaceRequest.class));
            case "GET namespaces 2":
                return CatalogHandlers.loadNamespace(namespaces, namespace);
            case "GET namespaces 3":
                return CatalogHandlers.listTables(catalog, namespace);
            case "POST namespaces 3":
                return CatalogHandlers.createTable(
                    catalog, namespace, read(exchange, CreateTableRequest.class));
            case "GET namespaces 4":
                return CatalogHandlers.loadTable(catalog, table, SnapshotMode.ALL);
            case "POST namespaces 4":
                return CatalogHandlers.updateTable(
                    catalog, table, read(exchange, UpdateTableRequest.class));
            case "DELETE namespaces 4":
                CatalogHandlers.dropTable(catalog, table);
                return null;
            default:
                throw new UnsupportedOperationException(call);
        }
    }

    private static <T> T read(HttpExchange exchange, Class<T> kind) throws IOException {
        return JSON.readValue(exchange.getRequestBody(), kind);
    }

    private static int code(Exception failure) {
        if (failure instanceof CommitFailedException || failure instanceof AlreadyExistsException) {
            return 409;
        }
        if (failure instanceof NoSuchTableException
            || failure instanceof NoSuchNamespaceException
            || failure instanceof NoSuchViewException) {
            return 404;
        }
        if (failure instanceof IllegalArgumentException || failure instanceof ValidationException) {
            return 400;
        }
        return failure instanceof UnsupportedOperationException ? 406 : 500;
    }
}
"""


class RestCatalogServer(Server):
    """A catalog with its tables in ``directory``; it dies with this process."""

    name = "Iceberg REST catalog"
    log_name = "catalog.log"
    port_names = ("http",)
    start_timeout = 300.0
    stop_timeout = 10.0

    @property
    def url(self) -> str:
        """What connectors call ``iceberg.catalog.uri``."""
        return f"http://{LOOPBACK}:{self.port}"

    def _launch(self) -> None:
        java = find_jdk(self.name)
        classpath = jars.classpath(ICEBERG_REST)
        self._check_ports()
        program = self.directory / "RestCatalogServer.java"
        program.write_text(_SERVER)
        (self.directory / "warehouse").mkdir(exist_ok=True)
        self._process.launch(
            [
                *(str(java), "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"),
                *("-cp", classpath, str(program), str(self.port), str(self.directory)),
            ],
            detached=self.detached,
        )

    def _answers(self) -> bool:
        if not listening(self.port):
            return False
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=10)
        try:
            connection.request("GET", "/v1/config")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
