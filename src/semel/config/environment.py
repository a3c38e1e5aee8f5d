"""A worker's settings in environment variables, as Confluent's images take them."""

from __future__ import annotations

from collections.abc import Mapping

from semel.config.characters import check_pair

_PREFIX = "CONNECT_"
_OF_THE_IMAGE = ("CONNECT_LOG4J_", "CONNECT_CUB_", "CONNECT_KAFKA_", "CONNECT_JMX_")
"""Variables of the image itself, not of the worker."""


def of_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The keys that ``CONNECT_*`` variables set: ``CONNECT_GROUP_ID`` is ``group.id``. Two
    underscores stand for one, three for a hyphen.

    Raises:
        ConfigError: a variable is not UTF-8.
    """
    found = {
        name: value
        for name, value in environment.items()
        if name.startswith(_PREFIX) and not name.startswith(_OF_THE_IMAGE)
    }
    for name, value in found.items():
        check_pair(name, value)
    return {_key(name.removeprefix(_PREFIX)): value for name, value in found.items()}


def _key(name: str) -> str:
    for written, meant in (("___", "-"), ("__", "\0"), ("_", "."), ("\0", "_")):
        name = name.replace(written, meant)
    return name.lower()
