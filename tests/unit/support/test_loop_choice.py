"""One clock for each test: virtual, unless the test or its parameter is marked."""

import asyncio
from collections.abc import AsyncGenerator

import pytest
from anyio.lowlevel import checkpoint

from backends.sim.virtual_time import VirtualTimeLoop


async def _is_virtual() -> bool:
    await checkpoint()
    return isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


async def test_an_unmarked_test_is_on_virtual_time() -> None:
    assert await _is_virtual()


@pytest.mark.real_time
async def test_a_marked_test_is_on_real_time() -> None:
    assert not await _is_virtual()


@pytest.mark.parametrize("virtual", [True, pytest.param(False, marks=pytest.mark.real_time)])
async def test_a_marked_parameter_is_on_real_time(virtual: bool) -> None:
    assert await _is_virtual() is virtual


@pytest.fixture(params=[True, pytest.param(False, marks=pytest.mark.real_time)])
async def expected(request: pytest.FixtureRequest) -> AsyncGenerator[bool]:
    assert await _is_virtual() is request.param
    yield request.param
    assert await _is_virtual() is request.param


async def test_a_fixture_with_a_marked_parameter_is_on_the_tests_own_loop(expected: bool) -> None:
    assert await _is_virtual() is expected


@pytest.mark.real_time
class TestAMarkedClass:
    async def test_is_on_real_time(self) -> None:
        assert not await _is_virtual()
