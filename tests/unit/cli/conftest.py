"""The command line configures structlog for its process; a test is not that process."""

from collections.abc import Generator

import pytest
import structlog


@pytest.fixture(autouse=True)
def _structlog_as_it_was() -> Generator[None]:
    yield
    structlog.reset_defaults()
