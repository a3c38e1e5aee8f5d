"""A REST catalog with limits: PyIceberg's own client waits forever, and reads whatever comes."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.typedef import RecursiveDict
from pyiceberg.utils.config import Config, merge_config

from semel.core.answers import limit_requests


def connect(name: str, timeout: float, **properties: str) -> Catalog:
    """A REST catalog whose requests fail when no byte has come for ``timeout`` seconds."""

    class Patient(RestCatalog):
        def _create_session(self) -> Any:
            session: Any = super()._create_session()
            session.request = partial(session.request, timeout=timeout)
            limit_requests(session)
            return session

    own = Config().get_catalog_config(name) or {}  # of .pyiceberg.yaml and the environment
    merged: Any = merge_config(own, cast(RecursiveDict, properties))
    return Patient(name, **merged)
