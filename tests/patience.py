"""How long tests wait for what must happen. A slow machine is not a failure; a hang is."""

PATIENCE = 600.0
"""Seconds."""
