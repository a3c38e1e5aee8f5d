"""Metrics of connectors for Prometheus."""
