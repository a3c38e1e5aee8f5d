"""Kafka and PostgreSQL for development, the demo and the tests: real ones, started here."""

from semel_lab.embedded.kafka import Kafka
from semel_lab.embedded.postgres import Postgres
from semel_lab.embedded.services import Services

__all__ = ["Kafka", "Postgres", "Services"]
