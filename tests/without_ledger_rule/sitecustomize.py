"""Switches PostgreSQL's check of the ledger rule off in every Python process that has this
directory on its ``PYTHONPATH``, Spark's workers included: commits then go through whatever the
ledger says, and an audit can be seen to catch what the rule prevents."""

from semel.core.ledger import Outcome
from semel.sinks.postgresql import ledger

ledger._CHECK = ""
ledger.judge = lambda *_: Outcome.APPLIED
