"""A worked example of the tensors of a micro-batch, with and without shared prompts."""

import torch

from backends.trainers.torch.microbatch import MicroBatch, collate
from backends.trainers.torch.packing import Strip
from backends.trainers.torch.rows import Row

LONG = Row(
    prompt=(1, 2),
    completion=(3, 4, 5),
    behaviour=(-0.1, -0.2, -0.3),
    advantage=2.0,
    reward=6.0,
    weight=1.0,
    temperature=1.0,
)
SIBLING = Row(
    prompt=(1, 2), completion=(8, 9), behaviour=(-0.5, -0.6), advantage=1.0, reward=5.0, weight=1.0, temperature=1.0
)
SHORT = Row(prompt=(6,), completion=(7,), behaviour=(-0.4,), advantage=-1.0, reward=4.0, weight=0.5, temperature=2.0)


def _micro(*strips: tuple[Row, ...]) -> MicroBatch:
    return collate([Strip(rows) for rows in strips], torch.device("cpu"))


def test_tensors_of_two_samples_of_different_prompts() -> None:
    micro = _micro((LONG,), (SHORT,))
    assert micro.input_ids.tolist() == [[1, 2, 3, 4], [6, 0, 0, 0]]
    assert micro.predicts.tolist() == [[False, True, True, True], [True, False, False, False]]
    assert micro.temperature.tolist() == [1.0, 1.0, 1.0, 2.0]
    assert micro.source.tolist() == [0, 1, 2, 3]
    assert micro.targets.tolist() == [3, 4, 5, 7]
    torch.testing.assert_close(micro.behaviour, torch.tensor([-0.1, -0.2, -0.3, -0.4]))
    assert micro.advantages.tolist() == [2.0, 2.0, 2.0, -1.0]
    assert micro.weights.tolist() == [1.0, 1.0, 1.0, 0.5]
    assert micro.sequences.owner.tolist() == [0, 0, 0, 1]
    assert micro.inputs().keys() == {"input_ids"}


def test_tensors_of_two_samples_that_share_a_prompt() -> None:
    """Both begin behind the prompt's last position, and the second stands where the first does."""
    micro = _micro((LONG, SIBLING), (SHORT,))
    assert micro.input_ids.tolist() == [[1, 2, 3, 4, 8], [6, 0, 0, 0, 0]]
    assert micro.position_ids.tolist() == [[0, 1, 2, 3, 2], [0, 0, 0, 0, 0]]
    assert micro.predicts.tolist() == [[False, True, True, True, True], [True, False, False, False, False]]
    assert micro.source.tolist() == [0, 1, 2, 0, 3, 4]
    assert micro.targets.tolist() == [3, 4, 5, 8, 9, 7]
    assert micro.rewards.tolist() == [6.0, 5.0, 4.0]
    assert micro.sequences.owner.tolist() == [0, 0, 0, 1, 1, 2]
    seen = micro.inputs()["attention_mask"].int()
    assert seen[0, 0].tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 1, 1, 0],
        [1, 1, 0, 0, 1],  # the second sample sees the prompt and itself, not the first
    ]
    assert seen[1, 0, :, 0].all()  # padding sees the prompt: an empty row would be NaN
