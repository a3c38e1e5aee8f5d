"""semel and its peer, Kafka Connect with Debezium's JDBC sink, under the same faults.

``systems`` starts and breaks the two systems under test, ``checker`` counts what is wrong with
their tables, and ``run`` injects the same seeded faults into one after the other.
"""
