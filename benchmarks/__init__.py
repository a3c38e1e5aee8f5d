"""Benchmarks of semel beside Kafka Connect with Debezium's JDBC sink: ``python -m benchmarks``.

Everything runs on this machine against one embedded Kafka and one embedded PostgreSQL, which both
systems use. No figure is written down here; all are measured when it runs.
"""
