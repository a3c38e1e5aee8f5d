"""semel: Kafka connectors on Spark whose results and offsets can never disagree.

import semel
semel.run("sink.json", until_caught_up=True)
"""

TYPE_CHECKING = False
"""For type checkers. A command imports this module before it can react to a signal, so it imports
nothing, not even ``typing``."""

if TYPE_CHECKING:
    from semel.api import run
    from semel.core.errors import SemelError
    from semel.driver.planning import plan_any as plan

__all__ = ["SemelError", "plan", "run"]


def __getattr__(name: str) -> object:
    """Import what programs use only when they first use it, so that commands start sooner."""
    if name == "run":
        from semel.api import run

        return run
    if name == "plan":
        from semel.driver.planning import plan_any

        return plan_any
    if name == "SemelError":
        from semel.core.errors import SemelError

        return SemelError
    raise AttributeError(f"module 'semel' has no attribute {name!r}")
