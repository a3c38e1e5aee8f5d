"""Datagen: records that are made up, the same ones each time.

Record number n of a task follows from ``random.seed``, the task and n alone. So the offset is n,
and everything that was written can be made again.
"""
