"""Connectors that share one Spark: each has a state and can be paused, stopped and restarted."""

from semel.runtime.connector import Connector, ConnectorStatus
from semel.runtime.runtime import Runtime

__all__ = ["Connector", "ConnectorStatus", "Runtime"]
