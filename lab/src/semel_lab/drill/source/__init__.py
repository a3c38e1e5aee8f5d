"""The drill of a source connector: break something, and check what a consumer sees.

Records are written to the source all the while, each with a number. A ``read_committed`` consumer
reads the topics from their beginning: every record must come once, as it was written, and in each
partition in the order in which it was written.
"""
