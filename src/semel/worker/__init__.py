"""Kafka Connect's worker: creates connectors from configurations, and serves requests about
them."""
