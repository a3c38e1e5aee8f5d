"""All commands of ``semel`` itself."""

from semel.cli import connector, connectors, offsets, proof, rest, ui, worker
from semel.cli.application import app, console, run

connector.register(app)
proof.register(app)


@app.command(epilog="Example: semel warm-up")
def warm_up() -> None:
    """Create the class data archive that lets Spark's JVM start in half the time.

    Otherwise the first run creates it in the background. Run this command when you build an image,
    or after an upgrade of Java or Spark.
    """
    from semel.spark.warmup import warm_up_spark

    archive = warm_up_spark()
    out = console(stderr=True)
    out.print(
        "another process is creating it" if archive is None else f"{archive} is ready", style="dim"
    )


worker.register(app)
rest.register(app)
ui.register(app)
connectors.register(app)
app.add_typer(offsets.app, name="offsets")

__all__ = ["app", "run"]
