"""Tasks of the direct engine: they consume, convert and commit by themselves.

A task (``task.py``) matches on what each poll brings: news of its place in the consumer group
(``subscription.py``), or records (``reader.py``), which it converts while the previous batch
commits.
"""
