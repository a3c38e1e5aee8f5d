"""Parts of paths."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

Partition = Annotated[int, Path(ge=-(2**31), le=2**31 - 1)]
"""The number of a partition, or of a broker, which Java reads as an int."""
