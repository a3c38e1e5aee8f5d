"""The lab's tests run on the same services as semel's own."""

from tests.conftest import *  # noqa: F403
