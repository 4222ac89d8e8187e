"""Adapters given to a server: their files are peft's, and it is seen that they are held."""

import json
from pathlib import Path

import pytest

from backends.engines import vllm
from backends.engines._http import adapters
from backends.engines._http.files import WeightFiles
from backends.models.loading import load_module, named_weights
from backends.models.lora import LoraConfig, adapter_description, adapter_tensors
from protocols.adapters import Host
from protocols.errors import Transient
from protocols.inference import GenerateRequest, SampleRequest, Sampling
from tests.support.batches import LLAMA, site
from tests.support.http_engines import Published, open_test_server
from tests.support.lora import needs_peft, with_lora

pytestmark = needs_peft

MODEL = with_lora(LLAMA, rank=4, targets=["q_proj", "down_proj"])


def test_the_files_are_those_of_peft(tmp_path: Path) -> None:
    module = load_module(site(MODEL))
    names = {adapters.file_name(name): name for name in named_weights(module)}
    assert names.keys() == adapter_tensors(module).keys()
    assert {adapters.module_name(name): name for name in names} == {name: file for file, name in names.items()}
    folder = WeightFiles(tmp_path / "files", LoraConfig(rank=4)).write("some", named_weights(module))
    described = json.loads((folder / adapters.DESCRIPTION).read_bytes())
    own = adapter_description(module).to_dict()
    assert {name: own[name] for name in described} == described | {
        "target_modules": set(described["target_modules"]),
        "peft_type": own["peft_type"],
        "task_type": own["task_type"],
    }


@pytest.mark.real_time
async def test_adapters_are_published_and_seen_to_be_held() -> None:
    """Issue G. What is not held is found by the same probe as whole models are."""
    published = Published(MODEL)
    host = Host(site=published.site, payloads=published.payloads)
    sample = SampleRequest(request_id="p.1/L0/0/0/0", stream="0/0/0/0")
    async with (
        open_test_server("vllm", model=MODEL, unheld=2) as url,
        vllm.open(vllm.Config(urls=(url,)), host) as engine,
    ):
        await engine.load_weights(await published.manifest(0))
        with pytest.raises(Transient, match="accepted version 1 and does not hold it"):
            await engine.load_weights(await published.manifest(1))
        assert await engine.load_weights(await published.manifest(1)) == 1
        asked = GenerateRequest(prompt_ids=(1, 2, 3), samples=(sample,), sampling=Sampling(max_tokens=5))
        found = await engine.generate(asked)
        assert [one.version for one in found.completions[0].segments] == [1]


@pytest.mark.real_time
async def test_a_server_of_a_model_without_adapters_takes_none() -> None:
    published = Published(MODEL)
    host = Host(site=published.site, payloads=published.payloads)
    async with open_test_server("vllm", model=LLAMA) as url, vllm.open(vllm.Config(urls=(url,)), host) as engine:
        with pytest.raises(Transient, match="did not load its weights"):
            await engine.load_weights(await published.manifest(0))
