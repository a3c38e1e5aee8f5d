"""The REST API of a worker: Kafka Connect's paths, bodies and codes."""
