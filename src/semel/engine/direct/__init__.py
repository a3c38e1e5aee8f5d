"""The direct engine: long-running tasks that consume, convert and commit by themselves.

The driver (``engine.py``) prepares them and leaves the rest to the supervisor. A task (``task.py``)
matches on what each poll brings: news of its place in the consumer group (``subscription.py``), or
records (``reader.py``), which it converts while the previous batch commits.
"""
