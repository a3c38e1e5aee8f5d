"""Starts the proxy as configured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version

from semel.config.proxy import ProxyConfig
from semel.proxy.app import STREAMS, Proxy, application
from semel.proxy.formats import Formats
from semel.proxy.kafka import Kafka
from semel.proxy.logins import Clients, clients_of_users
from semel.worker.rest.server import RestServer
from semel.worker.rest.sites import guarded, sites_of, warn
from semel.worker.rest.tls import LISTENERS
from semel.worker.rest.users import users


def check(config: ProxyConfig) -> None:
    """Read certificates, users and logins as :func:`serving` will.

    Raises:
        ConfigError: one is missing, or cannot be used.
    """
    clients_of_users(config, users(config))
    Clients(config)
    Formats(config)
    sites_of(None, config, config.listeners, LISTENERS)


@contextmanager
def serving(config: ProxyConfig) -> Iterator[RestServer]:
    """Serve the API within a ``with`` statement.

    Raises:
        ConfigError: a setting, a certificate or a file of users cannot be used.
        ServiceError: a listener's address cannot be used.
    """
    known = users(config)
    kafka = Kafka(config, clients_of_users(config, known))
    try:
        proxy = Proxy(kafka, Formats(config))
        app = guarded(application(proxy, version("semel")), config, known, STREAMS)
        sites = sites_of(app, config, config.listeners, LISTENERS)
        warn(sites, known, "reads and writes in Kafka as the proxy")
        with RestServer(sites, proxy.close) as server:
            yield server
        proxy.keyed.close()
        proxy.readers.close()
    finally:
        kafka.close()
