"""Kafka over HTTP: the REST Proxy's v2 and v3, produce exactly once, reads without a session."""
