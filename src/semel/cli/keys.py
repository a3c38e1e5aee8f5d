"""``semel describe --keys``: what can be set in a configuration."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.markup import escape
from rich.padding import Padding

from semel.cli.console import console
from semel.driver.validation import keys_of


def list_keys(name: str, *, as_json: bool) -> None:
    """Print the keys of the class of a connector, a converter, a transform or a predicate; as JSON,
    in the form of Kafka Connect's ``GET /connector-plugins/{plugin}/config``.

    Raises:
        ConfigError: there is no such class.
    """
    keys = keys_of(name)
    if as_json:
        print(json.dumps([asdict(key) for key in keys]))
        return
    out = console()
    for key in keys:
        default = f"default {key.default_value}" if key.default_value else "no default"
        facts = (key.type, "required" if key.required else default, key.importance)
        out.print(f"[bold]{key.name}[/]  {escape(', '.join(facts))}")
        if key.documentation:
            out.print(Padding(escape(key.documentation), (0, 0, 0, 4), expand=False))
