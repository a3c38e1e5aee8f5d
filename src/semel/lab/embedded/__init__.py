"""Kafka and PostgreSQL for development, the demo and the tests: real ones, started here."""

from semel.lab.embedded.kafka import Kafka
from semel.lab.embedded.postgres import Postgres
from semel.lab.embedded.services import Services

__all__ = ["Kafka", "Postgres", "Services"]
