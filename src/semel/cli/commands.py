"""All commands of ``semel`` itself."""

from semel.cli import connector, connectors, offsets, proof, warmup, worker
from semel.cli.application import app, run

connector.register(app)
proof.register(app)
warmup.register(app)
worker.register(app)
connectors.register(app)
app.add_typer(offsets.app, name="offsets")

__all__ = ["app", "run"]
