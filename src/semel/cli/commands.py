"""All commands of ``semel``."""

from semel.cli import (
    connector,
    connectors,
    demo,
    drill,
    offsets,
    proof,
    services,
    warmup,
    worker,
)
from semel.cli.application import app, run

connector.register(app)
proof.register(app)
demo.register(app)
drill.register(app)
warmup.register(app)
worker.register(app)
connectors.register(app)
app.add_typer(offsets.app, name="offsets")
app.add_typer(services.app, name="services")

__all__ = ["app", "run"]
