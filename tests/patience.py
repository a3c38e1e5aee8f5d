"""How long tests wait for what must come. A slow machine is no failure; what hangs is one."""

PATIENCE = 600.0
"""Seconds."""
