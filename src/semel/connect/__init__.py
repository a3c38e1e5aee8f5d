"""Kafka Connect's worker: connectors by their configurations, and what is asked of them."""
