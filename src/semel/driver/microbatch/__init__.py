"""The micro-batch engine: a Structured Streaming query for DataFrame transforms."""
