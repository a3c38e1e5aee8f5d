"""Tasks of source connectors: they read, encode and produce by themselves.

A task (``task.py``) fences its predecessor, reads the stored offsets, then reads on from there:
batches become messages (``encoder.py``) and are committed with their offsets in one Kafka
transaction (``commit.py``), while the next are read.
"""
