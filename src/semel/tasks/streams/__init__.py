"""The tasks of a connector that is a topology."""
