"""The transformers engine against plain full forwards of the same model."""

import logging
from typing import Any

import numpy as np
import pytest
import torch

from actors.core import Reply
from actors.engines.transformers import TransformersEngine
from actors.sampling import Sampling
from protos.errors import ConfigError
from protos.records import Stop, TokenIds, Version

ONE, TWO = Version(0, 1), Version(0, 2)


@pytest.fixture(scope="module")
def model(tiny_model_factory: Any) -> Any:
    return tiny_model_factory(0)


@pytest.fixture
def engine(model: Any, corridor_tokenizer: Any) -> TransformersEngine:
    return TransformersEngine(model, corridor_tokenizer, Sampling(max_reply_tokens=5), ONE)


def prompts(rng: np.random.Generator, rows: int, longest: int) -> list[TokenIds]:
    return [rng.integers(4, 250, size=rng.integers(1, longest)).astype(np.int32) for _ in range(rows)]


class Conversation:
    """Drives a session with random prompts and keeps what a learner would see of each row."""

    def __init__(self, engine: TransformersEngine, seeds: list[int], **sampling: Any) -> None:
        settings = Sampling(**{"max_reply_tokens": 5, **sampling})
        self.session = engine.session(seeds, sampling=settings)
        self.tokens: list[list[int]] = [[] for _ in seeds]
        self.replies: list[list[tuple[int, Reply]]] = [[] for _ in seeds]

    def turn(self, rows: list[int], new: list[TokenIds], allowed: Any = None) -> list[Reply]:
        for row, tokens in zip(rows, new, strict=True):
            self.tokens[row] += tokens.tolist()
        contexts = [np.array(self.tokens[row], dtype=np.int32) for row in rows]
        replies = self.session.reply(rows, contexts, allowed)
        for row, reply in zip(rows, replies, strict=True):
            self.replies[row].append((len(self.tokens[row]), reply))
            self.tokens[row] += reply.token_ids.tolist()
        return replies


def recompute(model: Any, tokens: list[int], start: int, reply: Reply, temperature: float = 1.0) -> Any:
    """Log-probabilities and entropies of a reply by one full forward of its row, in the way of a learner."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens])).logits[0, start - 1 : start - 1 + len(reply.token_ids)]
    logits = logits / temperature
    if reply.allowed is not None:
        mask = torch.full_like(logits, -torch.inf)
        for i, ids in enumerate(reply.allowed):
            mask[i, ids.tolist()] = 0
        logits = logits + mask
    distribution = torch.distributions.Categorical(logits=logits)
    return distribution.log_prob(torch.tensor(reply.token_ids)), distribution.entropy()


def assert_recomputed(model: Any, talk: Conversation, temperature: float = 1.0) -> None:
    for tokens, replies in zip(talk.tokens, talk.replies, strict=True):
        for start, reply in replies:
            log_probs, entropies = recompute(model, tokens, start, reply, temperature)
            assert reply.log_probs == pytest.approx(log_probs.numpy(), abs=1e-5)
            assert reply.entropies == pytest.approx(entropies.numpy(), abs=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.6])
def test_the_learner_recomputes_the_log_probs(model: Any, engine: Any, temperature: float) -> None:
    """Rows of unlike lengths, over several turns, in which rows drop out; within 1e-5 in fp32."""
    rng = np.random.default_rng(0)
    talk = Conversation(engine, list(range(7)), temperature=temperature)
    for rows in ([0, 1, 2, 3, 4, 5, 6], [0, 2, 3, 5, 6], [2, 3, 6], [3]):
        talk.turn(rows, prompts(rng, len(rows), 30))
    assert_recomputed(model, talk, temperature)


def test_constrained_replies_are_admissible_and_recomputed(model: Any, engine: Any) -> None:
    rng = np.random.default_rng(1)
    talk = Conversation(engine, [5, 6, 7], constrained=True, max_reply_tokens=6)
    eoa = engine.tokenizer.eoa_id
    for _ in range(3):
        allowed = [prompts(rng, 4, 5) for _ in range(3)]
        for reply, admissible in zip(talk.turn([0, 1, 2], prompts(rng, 3, 20), allowed), allowed, strict=True):
            assert [*reply.token_ids.tolist()] in [[*ids.tolist(), eoa] for ids in admissible]
            assert reply.allowed is not None
            assert [len(ids) > 0 for ids in reply.allowed] == [True] * len(reply.token_ids)
    assert_recomputed(model, talk)
    with pytest.raises(ValueError, match="constrained"):
        talk.turn([0, 1, 2], prompts(rng, 3, 20))


def test_a_row_alone_samples_what_it_samples_in_a_batch(engine: Any) -> None:
    rng = np.random.default_rng(2)
    seeds = [11, 12, 13, 14, 15, 16]
    turns = [prompts(rng, 6, 40) for _ in range(4)]
    batch = Conversation(engine, seeds)
    for new in turns:
        batch.turn(list(range(6)), new)
    for row, seed in enumerate(seeds):
        alone = Conversation(engine, [seed])
        for new in turns:
            alone.turn([0], [new[row]])
        assert alone.tokens[0] == batch.tokens[row]


def test_seeds_matter_and_repeat(engine: Any) -> None:
    prompt = [np.array([9, 8, 7], dtype=np.int32)]

    def sampled(seed: int) -> list[int]:
        return Conversation(engine, [seed]).turn([0], prompt)[0].token_ids.tolist()

    assert sampled(1) == sampled(1)
    assert len({tuple(sampled(seed)) for seed in range(8)}) > 1


def test_greedy_matches_the_argmax_of_full_forwards(model: Any, engine: Any) -> None:
    talk = Conversation(engine, [0, 1], temperature=0)
    talk.turn([0, 1], prompts(np.random.default_rng(3), 2, 20))
    for tokens, replies in zip(talk.tokens, talk.replies, strict=True):
        for start, reply in replies:
            with torch.no_grad():
                best = model(input_ids=torch.tensor([tokens])).logits[0].argmax(-1)
            assert best[start - 1 : start - 1 + len(reply.token_ids)].tolist() == reply.token_ids.tolist()


def test_stop_and_length(engine: Any) -> None:
    eoa = engine.tokenizer.eoa_id
    talk = Conversation(engine, list(range(40)), temperature=2.5, max_reply_tokens=3)
    replies = talk.turn(list(range(40)), [np.array([5], dtype=np.int32)] * 40)
    for reply in replies:
        ids = reply.token_ids.tolist()
        assert (reply.stop is Stop.STOP) == (ids[-1] == eoa)
        assert eoa not in ids[:-1]
        assert reply.stop is Stop.STOP or len(ids) == 3
        assert reply.versions == ((len(ids), ONE),)


def test_new_weights_in_mid_session_equal_a_fresh_engine(tiny_model_factory: Any, corridor_tokenizer: Any) -> None:
    """Keys and values of the old weights must not answer for the new ones: replies and log-probs as from a fresh engine."""
    rng = np.random.default_rng(4)
    model, other = tiny_model_factory(0), tiny_model_factory(1)
    engine = TransformersEngine(model, corridor_tokenizer, Sampling(), ONE)
    first, second = prompts(rng, 3, 20), prompts(rng, 3, 20)
    talk = Conversation(engine, [1, 2, 3], temperature=0)
    talk.turn([0, 1, 2], first)
    before = [list(tokens) for tokens in talk.tokens]
    model.load_state_dict(other.state_dict())
    engine.adopt(TWO)
    assert engine.version == TWO
    after = talk.turn([0, 1, 2], second)

    fresh = Conversation(TransformersEngine(other, corridor_tokenizer, Sampling(), TWO), [1, 2, 3], temperature=0)
    whole = [np.concatenate([np.array(a, dtype=np.int32), b]) for a, b in zip(before, second, strict=True)]
    for expected, reply in zip(fresh.turn([0, 1, 2], whole), after, strict=True):
        assert reply.token_ids.tolist() == expected.token_ids.tolist()
        assert reply.versions == ((len(reply.token_ids), TWO),)
    warm = Conversation(engine, [1, 2, 3])
    warm.turn([0, 1, 2], first)
    assert_recomputed(other, warm)


def test_versions_within_a_row_follow_the_updates(tiny_model_factory: Any, corridor_tokenizer: Any) -> None:
    model, other = tiny_model_factory(0), tiny_model_factory(1)
    engine = TransformersEngine(model, corridor_tokenizer, Sampling(), ONE)
    talk = Conversation(engine, [1])
    versions = [talk.turn([0], prompts(np.random.default_rng(5), 1, 9))[0].versions[0][1]]
    model.load_state_dict(other.state_dict())
    engine.adopt(TWO)
    versions.append(talk.turn([0], prompts(np.random.default_rng(6), 1, 9))[0].versions[0][1])
    assert versions == [ONE, TWO]
    start, reply = talk.replies[0][-1]
    assert reply.log_probs == pytest.approx(recompute(other, talk.tokens[0], start, reply)[0].numpy(), abs=1e-5)


def test_the_checkpoints_generation_config_is_not_used(
    tiny_model_factory: Any, corridor_tokenizer: Any, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    from transformers import AutoModelForCausalLM

    model = tiny_model_factory(0)
    model.generation_config.update(repetition_penalty=1.3, top_k=2, temperature=0.1, do_sample=True)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.generation_config.top_k == 2
    with caplog.at_level(logging.INFO, logger="actors.engines.transformers"):
        engine = TransformersEngine(loaded, corridor_tokenizer, Sampling(), ONE)
    assert "temperature=1.0 top_p=1.0 top_k=0" in caplog.text
    talk = Conversation(engine, list(range(16)))
    talk.turn(list(range(16)), [np.array([9, 8, 7], dtype=np.int32)] * 16)
    assert len({tokens[3] for tokens in talk.tokens}) > 2
    assert_recomputed(model, talk)


def test_training_mode_is_restored_and_no_graph_is_kept(tiny_model_factory: Any, corridor_tokenizer: Any) -> None:
    model = tiny_model_factory(0, attention_dropout=0.5)
    model.train()
    talk = Conversation(TransformersEngine(model, corridor_tokenizer, Sampling(), ONE), [0])
    talk.turn([0], prompts(np.random.default_rng(7), 1, 20))
    assert model.training
    assert_recomputed(model.eval(), talk)


def test_eager_attention_gives_the_same(tiny_model_factory: Any, corridor_tokenizer: Any) -> None:
    model = tiny_model_factory(0, attn_implementation="eager")
    talk = Conversation(TransformersEngine(model, corridor_tokenizer, Sampling(), ONE), [0, 1, 2])
    for turn in range(2):
        talk.turn([0, 1, 2], prompts(np.random.default_rng(turn), 3, 20))
    assert_recomputed(tiny_model_factory(0), talk)


def test_contexts_may_change_anywhere(model: Any, engine: Any) -> None:
    """A window prompt rewrites what stands before a turn: each reply is scored after its own context, however it came about."""
    rng = np.random.default_rng(9)
    session = engine.session([0, 1, 2])
    contexts = prompts(rng, 3, 40)
    for turn in range(6):
        for context, reply in zip(contexts, session.reply([0, 1, 2], contexts), strict=True):
            tokens = [*context.tolist(), *reply.token_ids.tolist()]
            log_probs, entropies = recompute(model, tokens, len(context), reply)
            assert reply.log_probs == pytest.approx(log_probs.numpy(), abs=1e-5)
            assert reply.entropies == pytest.approx(entropies.numpy(), abs=1e-4)
        kept = [context[: int(rng.integers(0, len(context) + 1))] for context in contexts]
        new = [kept[0]] if turn == 3 and len(kept[0]) else [np.append(kept[0], np.int32(7))]  # a mere prefix, once
        new += [np.concatenate([a, b]) for a, b in zip(kept[1:], prompts(rng, 2, 30), strict=True)]
        contexts = [context.astype(np.int32) for context in new]


def test_what_a_context_keeps_is_not_read_again(model: Any, corridor_tokenizer: Any, monkeypatch: Any) -> None:
    engine = TransformersEngine(model, corridor_tokenizer, Sampling(max_reply_tokens=1), ONE)
    read: list[int] = []
    forward = type(model).forward

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        read.append(kwargs["input_ids"].numel())
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", counting)
    session = engine.session([0])
    first = np.arange(10, 40, dtype=np.int32)
    session.reply([0], [first])
    session.reply([0], [np.append(first[:20], np.array([99, 98], dtype=np.int32))])
    session.reply([0], [first[:15]])
    assert read == [30, 2, 1]


def test_any_of_several_stop_tokens_ends_a_reply(model: Any, corridor_tokenizer: Any, monkeypatch: Any) -> None:
    stops = (corridor_tokenizer.eoa_id, 17, 23)
    monkeypatch.setattr(corridor_tokenizer, "stop_ids", stops)
    engine = TransformersEngine(model, corridor_tokenizer, Sampling(temperature=2.5, max_reply_tokens=40), ONE)
    with engine.session(range(60)) as session:
        replies = session.reply(range(60), [np.array([5], dtype=np.int32)] * 60)
    assert {reply.token_ids[-1] for reply in replies if reply.stop is Stop.STOP} == set(stops)
    for reply in replies:
        assert not set(stops) & set(reply.token_ids[:-1].tolist())


def test_long_histories_grow_the_cache(model: Any, engine: Any) -> None:
    rng = np.random.default_rng(8)
    talk = Conversation(engine, [0, 1, 2])
    for _ in range(6):
        talk.turn([0, 1, 2], prompts(rng, 3, 70))
    assert max(map(len, talk.tokens)) > 128
    assert_recomputed(model, talk)


def test_models_that_do_not_fit_are_refused(tiny_model_factory: Any, corridor_tokenizer: Any) -> None:
    short = TransformersEngine(tiny_model_factory(max_position_embeddings=16), corridor_tokenizer, Sampling(), ONE)
    with pytest.raises(ConfigError, match=r"takes 16: lower prompt\.max_tokens"):
        Conversation(short, [0]).turn([0], [np.arange(20, dtype=np.int32)])
    with pytest.raises(ConfigError, match="the model only 9"):
        TransformersEngine(tiny_model_factory(vocab_size=9), corridor_tokenizer, Sampling(), ONE)
    windowed = tiny_model_factory(use_sliding_window=True, sliding_window=8, max_window_layers=1)
    with pytest.raises(ConfigError, match="needs full attention"):
        TransformersEngine(windowed, corridor_tokenizer, Sampling(), ONE)
