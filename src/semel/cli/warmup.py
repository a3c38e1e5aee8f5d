"""``semel warm-up``: what makes later starts quicker, made now."""

from __future__ import annotations

import typer

from semel.cli.console import console


def register(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("warm-up", epilog="Example: semel warm-up")(warm_up)


def warm_up() -> None:
    """Make the class data archive that lets Spark's JVM start in half the time.

    The first run makes it in the background if nobody has. Run this where an image is built, or
    after Java or Spark was upgraded.
    """
    from semel.warmup import warm_up_spark

    made = warm_up_spark()
    out = console(stderr=True)
    out.print("another process makes it" if made is None else f"{made} is ready", style="dim")
