"""What runs inside a Spark task.

With the direct engine, a record passes through

1. ``direct/reader.py``, which polls the consumer, starting at the ledger's positions,
2. ``poll.py``, where messages become one raw Arrow batch per topic, with their offset ranges,
3. ``pipeline.py``: converters, transforms, then columns; bad records are set aside,
4. ``commit.py``, which orders results and positions as the guarantee demands,
5. the sink, which commits both in one transaction.

``direct/``, ``bounded.py``, ``microbatch/`` and ``source/`` are the tasks of the four engines. The
modules beside them are what they share.
"""
