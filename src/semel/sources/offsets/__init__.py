"""Where source offsets are stored: Kafka's topic (``store.py``), a file (``file.py``), or a table
of a database (``table.py``); and who may store them (``owner.py``).

Only the topic is part of a Kafka transaction. The other two are written after the records, with a
compare-and-set: a run that was replaced cannot move an offset.
"""
