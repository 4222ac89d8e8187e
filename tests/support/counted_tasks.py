"""A generator for reasoning-gym whose tasks are told apart by their number. Importing it registers it."""

from dataclasses import dataclass
from typing import Any

from reasoning_gym.dataset import ProceduralDataset  # pyright: ignore[reportMissingImports] - an extra
from reasoning_gym.factory import register_dataset  # pyright: ignore[reportMissingImports]

NAME = "counted_tasks"


@dataclass
class CountedTasksConfig:
    """Options: the tasks at ``bad`` cannot be made."""

    bad: tuple[int, ...] = ()
    seed: int | None = None
    size: int = 500


class CountedTasks(ProceduralDataset):
    """Task ``index`` asks ``p<index>``, and its answer is ``index``."""

    def __init__(self, config: CountedTasksConfig) -> None:
        super().__init__(config=config, seed=config.seed, size=config.size)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Make a task; ValueError for a bad one."""
        if index in self.config.bad:
            raise ValueError("no such task")
        return {"question": f"p{index}", "answer": str(index), "metadata": {}}


register_dataset(NAME, CountedTasks, CountedTasksConfig)
