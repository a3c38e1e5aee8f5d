"""Kafka and PostgreSQL for development, the demo and the tests: real ones, started here."""

from semel.embedded.kafka import Kafka
from semel.embedded.postgres import Postgres
from semel.embedded.services import Services

__all__ = ["Kafka", "Postgres", "Services"]
