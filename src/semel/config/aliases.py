"""Short names of classes, as Kafka Connect resolves them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from semel.core.errors import misconfigured


def matches(alias: str, classes: Iterable[str], suffix: str) -> list[str]:
    """The classes with this simple name, with or without a suffix such as ``Connector``."""
    wanted = {alias, alias + suffix}
    return [full for full in classes if "." in full and full.rpartition(".")[2] in wanted]


def full_name(
    alias: str,
    classes: Mapping[str, str],
    suffix: str,
    *,
    key: str = "",
    differ: Callable[[list[str]], bool] | None = None,
) -> str:
    """The class that a name stands for: the first class with this simple name, or the name itself
    if it is known or matches none.

    Args:
        classes: full and short names, with what is loaded for each.
        key: the key that holds the name, for the error.
        differ: whether it matters which of several is meant even if all load the same thing.

    Raises:
        ConfigError: several classes match, and it matters which is meant.
    """
    if alias in classes:
        return alias
    found = matches(alias, classes, suffix)
    if len({classes[full] for full in found}) > 1 or (differ is not None and differ(found)):
        raise misconfigured(
            key,
            f"More than one {suffix.lower()} matches alias {alias}. Please use full package and "
            f"class name instead. Classes found: {', '.join(found)}",
        )
    return found[0] if found else alias
