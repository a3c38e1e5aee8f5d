"""The drill: run a connector on embedded services, break something, audit, and repeat.

Records keep coming all the while. After each fault the connector must continue: everything that
Kafka held when the fault struck is committed, and every partition moves. Then the audit compares
Kafka with the store at that instant. A seed gives the same faults again, though not to the
microsecond.
"""
