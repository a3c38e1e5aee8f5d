"""Benchmarks that compare semel with Kafka Connect and Debezium's JDBC sink.

``python -m benchmarks`` runs them on this machine, against one embedded Kafka and one embedded
PostgreSQL, which both systems use. No figure is written down here; all are measured when it runs.
"""
