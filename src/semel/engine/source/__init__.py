"""The source engine: long-running tasks that read, encode and produce by themselves.

The driver (``engine.py``) asks the source for its partitions, divides them, and fences the tasks of
earlier runs before it starts its own. A task (``task.py``) fences its predecessor, reads the stored
offsets, then reads on from there: batches become messages (``encoder.py``) and are committed with
their offsets in one Kafka transaction (``commit.py``), while the next are read.
"""
