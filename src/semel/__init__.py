"""semel: Kafka connectors on Spark whose results and offsets can never disagree.

import semel
semel.run("sink.json", until_caught_up=True)
"""

from semel.errors import SemelError
from semel.plan import plan_any as plan
from semel.run import run

__all__ = ["SemelError", "plan", "run"]
