"""The same model and the same batches through TRL's own loss: where it is installed, the two agree."""

import copy
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from backends.models.loading import load_module
from backends.models.opening import load_tokenizer
from tests.support.batches import LLAMA, VOCABULARY, Drawn, Group, make_batch, site
from tests.support.learners import make_learner

pytestmark = [pytest.mark.real_time, pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

LONGEST = 9
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "dapo": ({"clip_high": 0.28}, {"loss_type": "dapo", "epsilon_high": 0.28}),
    "grpo": ({"aggregation": "sequence"}, {"loss_type": "grpo"}),
    "dr-grpo": ({"aggregation": "constant", "aggregation_length": LONGEST}, {"loss_type": "dr_grpo"}),
    "dual-clip": ({"dual_clip": 2.0}, {"loss_type": "dapo", "delta": 2.0}),
    "gspo": (
        {"loss": "gspo", "aggregation": "sequence", "clip_low": 0.1},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.1, "epsilon_high": 0.2},
    ),
    "cispo": ({"loss": "cispo", "clip_low": 1.0, "clip_high": 1.0}, {"loss_type": "cispo", "epsilon_high": 2.0}),
    "entropy": ({"entropy_bonus": 0.1}, {"loss_type": "dapo", "entropy_coef": 0.1}),
}
"""Our options, and what TRL calls the same."""

TrlTrainer = Callable[..., Any]


@pytest.fixture
def trl_trainer(tmp_path: Path) -> TrlTrainer:
    trl = pytest.importorskip("trl")
    datasets = pytest.importorskip("datasets")
    transformers = pytest.importorskip("transformers")
    load_tokenizer(site(LLAMA)).save(tmp_path)

    def make(module: Any, options: dict[str, Any]) -> Any:
        args = trl.GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=LONGEST,
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            **options,
        )
        trainer = trl.GRPOTrainer(
            model=module,
            reward_funcs=lambda completions, **_: [0.0] * len(completions),
            args=args,
            train_dataset=datasets.Dataset.from_list([{"prompt": "1"}] * 4),
            processing_class=transformers.AutoTokenizer.from_pretrained(tmp_path),
        )
        trainer.current_gradient_accumulation_steps = trainer.args.steps_per_generation = 1
        trainer.model.train()
        return trainer

    return make


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_those_of_trl(name: str, trl_trainer: TrlTrainer) -> None:
    options, theirs = CASES[name]
    module = load_module(site(LLAMA))
    trainer = trl_trainer(copy.deepcopy(module), theirs)
    for seed in range(10):
        rng = random.Random(seed)
        group = _random_group(rng)
        learner = make_learner(
            copy.deepcopy(module), micro_batch_tokens=rng.choice([1, 20, 1000]), **{"aggregation": "token", **options}
        )
        batch = make_batch([group])
        loss = learner.accumulate(batch.lease, batch.payloads).metrics["loss"]
        trainer.model.zero_grad()
        expected = trainer._compute_loss(trainer.model, _inputs(group))
        expected.backward()
        assert loss == pytest.approx(expected.item(), abs=1e-5)
        torch.testing.assert_close(_gradients(learner.module), _gradients(trainer.model), atol=1e-5, rtol=1e-5)


def _random_group(rng: random.Random) -> Group:
    def tokens(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(count))

    samples = [Drawn(tokens(rng.randint(1, LONGEST)), rng.gauss(0, 1), 1.0, rng.uniform(-4, -1)) for _ in range(4)]
    return Group(tokens(3), samples)


def _inputs(group: Group) -> dict[str, Tensor]:
    """Return a batch as TRL has it after generation and scoring."""
    width = max(len(drawn.tokens) for drawn in group.samples)
    padded = [[*drawn.tokens, *[0] * (width - len(drawn.tokens))] for drawn in group.samples]
    mask = torch.tensor([[int(at < len(drawn.tokens)) for at in range(width)] for drawn in group.samples])
    prompts = torch.tensor([group.prompt] * len(group.samples))
    return {
        "prompt_ids": prompts,
        "prompt_mask": torch.ones_like(prompts),
        "completion_ids": torch.tensor(padded),
        "completion_mask": mask,
        "advantages": torch.tensor([drawn.advantage for drawn in group.samples]),
        "old_per_token_logps": torch.tensor([[drawn.logprob] * width for drawn in group.samples]),
        "num_items_in_batch": mask.sum(),
    }


def _gradients(module: Any) -> Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in module.parameters()])
