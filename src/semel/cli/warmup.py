"""``semel warm-up``: makes later starts quicker."""

from __future__ import annotations

import typer

from semel.cli.console import console


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("warm-up", epilog="Example: semel warm-up")(warm_up)


def warm_up() -> None:
    """Create the class data archive that lets Spark's JVM start in half the time.

    Otherwise the first run creates it in the background. Run this command when you build an image,
    or after an upgrade of Java or Spark.
    """
    from semel.spark.warmup import warm_up_spark

    made = warm_up_spark()
    out = console(stderr=True)
    out.print("another process is creating it" if made is None else f"{made} is ready", style="dim")
