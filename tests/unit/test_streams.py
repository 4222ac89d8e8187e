"""Taking from a stream what lies ready in it."""

import anyio

from conductor.streams import at_hand


def test_what_was_sent_is_taken_at_once_and_nothing_is_waited_for() -> None:
    send, receive = anyio.create_memory_object_stream[int](2)
    with send, receive:
        assert at_hand(receive) == []
        send.send_nowait(1)
        send.send_nowait(2)
        assert at_hand(receive) == [1, 2]


async def test_who_waits_to_send_is_let_go_on() -> None:
    send, receive = anyio.create_memory_object_stream[int](1)
    with send, receive:
        async with anyio.create_task_group() as group:
            for number in range(3):
                group.start_soon(send.send, number)
            await anyio.wait_all_tasks_blocked()
            assert at_hand(receive) == [0, 1, 2]


async def test_the_end_of_the_stream_is_left_to_who_waits_for_it() -> None:
    send, receive = anyio.create_memory_object_stream[int](1)
    with receive:
        with send:
            send.send_nowait(1)
        assert at_hand(receive) == [1]
        assert [number async for number in receive] == []
