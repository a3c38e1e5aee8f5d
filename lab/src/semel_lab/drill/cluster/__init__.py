"""The drill of a cluster: break its workers, and audit its connectors.

A sink and a source run on several workers, each of which reaches Kafka through a proxy of its own.
After each fault, and at the end, both are audited. Its seconds are those until all tasks of all
connectors ran again.
"""
