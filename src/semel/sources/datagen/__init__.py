"""Datagen: generates records, the same ones each time.

Record number n of a task depends only on ``random.seed``, the task and n. So the offset is n, and
everything that was written can be generated again.
"""
