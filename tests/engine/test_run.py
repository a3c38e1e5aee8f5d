"""How a run begins."""

from __future__ import annotations

import pytest

from semel.core.errors import ServiceError, Unavailable
from semel.driver import run as runs


@pytest.mark.parametrize("end", ["connections?", "refused.", "refused"])
def test_unreachable_services_are_reported_in_full_sentences(end: str) -> None:
    def meets() -> None:
        raise Unavailable(f"no answer: {end}")

    with pytest.raises(ServiceError, match=r"[a-z][?.] Check connection\.url, and that"):
        runs._reach(meets, "connection.url")
