"""``python -m semel``: the ``semel`` command."""

from semel.cli import main

main()
