"""``capture_logs`` leaves structlog configured; the tests after these are not to see that."""

from collections.abc import Generator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _structlog_as_it_was() -> Generator[None]:
    yield
    structlog.reset_defaults()
