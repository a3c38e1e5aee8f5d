"""The commands that the lab adds to ``semel``: each module's ``register`` is an entry point of the
group ``semel.commands``."""
