"""semel and its peer, Kafka Connect with Debezium's JDBC sink, under the same faults.

``sides`` starts and breaks either of them, ``books`` counts what their table holds, and ``run``
plays the same seeded faults to one after the other.
"""
