"""Shared by all tests: one thread a process, so that results do not depend on the machine, and a tiny agent."""

import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))  # `user_package`: a user's own environments

import pytest
from hypothesis import settings

# No test asserts on time, property-based ones included: machines that run them are slow at times.
settings.register_profile("tandem", deadline=None)
settings.load_profile("tandem" if "CI" not in os.environ else "ci")


@pytest.fixture(scope="session")
def corridor() -> ModuleType:
    """The user's own environment, without optional hooks."""
    from actors.core import load_environment

    return load_environment("user_package.corridor")


@pytest.fixture(scope="session")
def corridor_tokenizer(corridor: ModuleType) -> Any:
    from actors import plugins

    return plugins.tokenizer(corridor, corridor.Config(), episodes=20)


@pytest.fixture(scope="session")
def tiny_model_factory(corridor_tokenizer: Any) -> Any:
    """`factory(seed, **settings)`: a random Qwen2 of 2 layers over the corridor's tokens, in fp32."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.set_num_threads(1)

    def factory(seed: int = 0, **settings: Any) -> Any:
        sizes = {
            "vocab_size": corridor_tokenizer.size,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 64,
            "initializer_range": 0.2,  # far from uniform, so that a wrong mask or position shows
            "max_position_embeddings": 512,
        }
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(Qwen2Config(**{**sizes, **settings})).eval()

    return factory
