"""Turns errors of reading into semel's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from semel.core.errors import ConfigError, TransientError
from semel.databases.errors import SchemaChanged
from semel.sources.jdbc.database import Database
from semel.sources.jdbc.queries import Unreadable


@contextmanager
def explained(where: str, database: Database) -> Iterator[None]:
    """Errors in the body say ``where``: the connector, and its table or query.

    Raises:
        ConfigError: it cannot be read in this mode.
        TransientError: it was changed, or a stream has ended in the middle.
    """
    try:
        yield
    except Unreadable as error:
        raise ConfigError(f"{where}: {error}") from None
    except SchemaChanged as error:
        raise TransientError(f"{where}: {error}") from None
    except (OSError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise TransientError(f"{where}: {database.where}: {reason}") from None
