"""The contract of every prompt, with compact tokenizers and chat models of every form: what is recorded is what was read."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import chat_tokenizers
import numpy as np
import pytest

from actors.core import Prompt, Reply, build_prompt, load_prompt, prompt_names
from actors.evaluation import summarise
from actors.rollout import play
from actors.sampling import Sampling
from protos import codec
from protos.errors import ConfigError, DataError
from protos.records import Episode, Group, GroupKey, Kind, Lease, Stop, Transition, Version
from protos.seeding import generator
from protos.telemetry import reduce_metrics
from protos.tokens import TextTokenizer, bpe_tokenizer

TOKENIZERS = ["compact", *chat_tokenizers.FAMILIES]
EVERY = [(name, tokenizer) for name in prompt_names() for tokenizer in TOKENIZERS]
NAMES = ["-".join(pair) for pair in EVERY]
V0 = Version(0, 0)
REPLY = 96


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory, corridor_tokenizer: Any) -> dict[str, TextTokenizer]:
    folder: Path = tmp_path_factory.mktemp("checkpoints")
    made = {family: chat_tokenizers.load(folder, family) for family in chat_tokenizers.FAMILIES}
    return {"compact": corridor_tokenizer, **made}


@pytest.fixture(params=EVERY, ids=NAMES)
def prompt(request: pytest.FixtureRequest, tokenizers: dict[str, TextTokenizer]) -> Prompt:
    return make(*request.param, tokenizers=tokenizers)


def make(name: str, tokenizer: str, tokenizers: dict[str, TextTokenizer], **settings: Any) -> Prompt:
    kept = {"earlier_reasoning": "keep"} if (name, tokenizer) == ("append", "qwen3") else {}  # its template strips it
    return build_prompt({"name": name, "max_tokens": 4096, **kept, **settings}, tokenizers[tokenizer])


def good(prompt: Prompt, command: str = "walk left") -> list[int]:
    """A reply that the prompt executes."""
    shown = f"search[{command}]" if "search" in prompt.kinds else command
    return prompt.action(shown).tolist()


def resplit(prompt: Prompt, ids: Sequence[int]) -> list[int]:
    """The same text in a split that the tokenizer would never make: one character at a time."""
    tokenizer = prompt.tokenizer
    letters = [tokenizer.encode(letter) for letter in tokenizer.decode(ids)]
    return [*np.concatenate(letters).tolist(), tokenizer.eoa_id]


class Scripted:
    """An engine and its session in one that notes the contexts it is given; `script(turn)` gives (ids, stop)."""

    version = V0

    def __init__(self, script: Callable[[int], tuple[Sequence[int], Stop]], max_reply_tokens: int = REPLY) -> None:
        self.script, self.sampling = script, Sampling(max_reply_tokens=max_reply_tokens)
        self.contexts: list[list[int]] = []
        self.sampled: list[list[int]] = []

    def session(self, seeds: Sequence[int], *, sampling: Any = None) -> "Scripted":
        return self

    def reply(self, rows: Sequence[int], contexts: Sequence[Any], allowed: Any = None) -> list[Reply]:
        ids, stop = self.script(len(self.contexts))
        self.contexts.append(contexts[0].tolist())
        self.sampled.append(list(ids))
        zeros = np.zeros(len(ids), dtype=np.float32)
        return [Reply(np.array(ids, dtype=np.int32), zeros, zeros, stop, ((len(ids), V0),))]

    def __enter__(self) -> "Scripted":
        return self

    def __exit__(self, *_: object) -> None:
        pass


def run(corridor: ModuleType, prompt: Prompt, engine: Any, kind: Any = "rollout", **config: Any) -> tuple[Episode, Any]:
    settings = corridor.Config(**config)
    lease = Lease(GroupKey("run", "seed:1", 0), kind, 1, 0, deadline=0.0)
    groups, metrics = play([lease], lambda: corridor.build(settings), prompt, engine, environment="corridor")
    return groups[0].episodes[0], reduce_metrics([metrics])


def placed(episode: Episode) -> list[tuple[list[int], Transition]]:
    return [(s.token_ids.tolist(), turn) for s in episode.sequences for turn in s.transitions]


def check_record(prompt: Prompt, engine: Scripted, episode: Episode) -> None:
    """Contexts, sampled ids and observations stand in the record as they were read, sampled and said."""
    turns = placed(episode)
    assert len(turns) == len(engine.contexts) > 0
    for (ids, turn), context, sampled in zip(turns, engine.contexts, engine.sampled, strict=True):
        assert ids[: turn.action.start] == context
        assert ids[turn.action.start : turn.action.stop] == sampled
        seen = ids[turn.observation.start : turn.observation.stop]
        assert turn.observation.start >= turn.action.stop
        assert prompt.tokenizer.decode(seen) == (turn.observation_text if seen else "")
        assert len(turn.log_probs) == turn.action.length > 0
    assert all(s.transitions and len(s.token_ids) <= prompt.settings.max_tokens for s in episode.sequences)


def test_the_record_is_what_was_read_and_sampled(corridor: ModuleType, prompt: Prompt) -> None:
    """BC-10, BC-11: replies with reasoning, in splits of the model's own; whatever a template does to earlier turns."""
    tagged = "unclosed_think" in prompt.kinds
    end = [prompt.tokenizer.eoa_id]
    thought = prompt.tokenizer.encode("<think>why not</think>").tolist() if tagged else []
    engine = Scripted(lambda turn: (thought * (turn % 2) + resplit(prompt, good(prompt)), Stop.STOP))
    episode, metrics = run(corridor, prompt, engine, max_steps=4)
    check_record(prompt, engine, episode)
    assert episode.steps == 4
    assert all(turn.observation.length > 0 for _, turn in placed(episode))
    assert all(ids[turn.action.stop - 1 : turn.action.stop] == end for ids, turn in placed(episode))
    assert all("walk left" in turn.action_text for _, turn in placed(episode)[::2])
    shares = sum(metrics[f"rollout/reply_{kind}"] for kind in prompt.kinds)
    assert shares == pytest.approx(1)


def test_what_is_fed_is_counted(corridor: ModuleType, prompt: Prompt) -> None:
    """Brute force: of each context, all behind the part that it shares with what was read before."""
    engine = Scripted(lambda turn: (good(prompt), Stop.STOP))
    _, metrics = run(corridor, prompt, engine, max_steps=3)
    fed, before = 0, []
    for context, sampled in zip(engine.contexts, engine.sampled, strict=True):
        shared = 0
        while shared < min(len(context), len(before)) and context[shared] == before[shared]:
            shared += 1
        fed, before = fed + len(context) - shared, context + sampled
    assert metrics["rollout/prompt_tokens"] == fed


def test_random_replies_keep_the_contract(corridor: ModuleType, prompt: Prompt) -> None:
    rng = generator(0, "replies", prompt.tokenizer.fingerprint)

    def script(turn: int) -> tuple[Sequence[int], Stop]:
        ids = rng.integers(0, prompt.tokenizer.size, 12).tolist()
        return (ids, Stop.LENGTH) if turn % 3 == 2 else ([*ids, prompt.tokenizer.eoa_id], Stop.STOP)

    episode, _ = run(corridor, prompt, engine := Scripted(script), max_steps=12)
    check_record(prompt, engine, episode)
    assert not any("<" in turn.action_text or ">" in turn.action_text for _, turn in placed(episode))


@pytest.mark.parametrize("rule", ["end", "continue"])
@pytest.mark.parametrize(("name", "tokenizer"), EVERY, ids=NAMES)
def test_cut_replies(
    corridor: ModuleType, tokenizers: dict[str, TextTokenizer], name: str, tokenizer: str, rule: str
) -> None:
    """BC-07: from turn 3 on the engine returns one token for want of length."""
    prompt = make(name, tokenizer, tokenizers, on_cut_reply=rule, max_cut_replies=3)
    word = int(prompt.tokenizer.encode("walk")[0])
    idle = good(prompt, "dance")
    engine = Scripted(lambda turn: ([word], Stop.LENGTH) if turn >= 2 else (idle, Stop.STOP))
    episode, metrics = run(corridor, prompt, engine)
    check_record(prompt, engine, episode)
    turns = [turn for _, turn in placed(episode)]
    cut = 1 if rule == "end" else 3
    assert [turn.truncated for turn in turns] == [False] * 2 + [True] * cut
    assert [turn.stop for turn in turns[2:]] == [Stop.LENGTH] * cut
    assert turns[-1].kind is (Kind.REJECTED if rule == "end" else Kind.STEP)
    assert metrics["rollout/cut_replies"] == cut
    assert metrics["rollout/truncated"] == 1


def test_the_reply_limit_is_each_turns_own(corridor: ModuleType, prompt: Prompt) -> None:
    """BC-07, the sister fault: four turns of 20 tokens under a limit of 32; all 80 action tokens are recorded."""
    word = int(prompt.tokenizer.encode("walk")[0])
    engine = Scripted(lambda turn: ([word] * 19 + [prompt.tokenizer.eoa_id], Stop.STOP), max_reply_tokens=32)
    episode, _ = run(corridor, prompt, engine, max_steps=4)
    assert sum(turn.action.length for _, turn in placed(episode)) == 80


@pytest.mark.parametrize(("name", "tokenizer"), EVERY, ids=NAMES)
def test_episodes_stay_within_the_context(
    corridor: ModuleType, tokenizers: dict[str, TextTokenizer], name: str, tokenizer: str
) -> None:
    """Whatever room there is, no sequence outgrows it, and no turn begins that may not fit."""
    settings = {} if name == "append" else {"history": -1}
    wide = make(name, tokenizer, tokenizers, **settings)
    idle = good(wide, "dance")

    def played(room: int) -> Scripted:
        prompt = make(name, tokenizer, tokenizers, max_tokens=room, **settings)
        engine = Scripted(lambda turn: (idle, Stop.STOP), max_reply_tokens=48)
        episode, metrics = run(corridor, prompt, engine, max_steps=8)
        check_record(prompt, engine, episode)
        assert all(len(context) + 48 <= room for context in engine.contexts)
        ended = placed(episode)[-1][1]
        assert (ended.stop is Stop.CONTEXT) == (metrics["rollout/context_ended"] == 1) == (episode.steps < 8)
        return engine

    contexts = played(wide.settings.max_tokens).contexts
    first, last = len(contexts[0]), len(contexts[-1])
    for room in np.linspace(first + 48, max(last, first) + 60, 5).astype(int).tolist():
        played(room)


@pytest.mark.parametrize(("name", "tokenizer"), EVERY, ids=NAMES)
def test_a_task_too_long_for_the_prompt(
    corridor: ModuleType, tokenizers: dict[str, TextTokenizer], name: str, tokenizer: str
) -> None:
    """BC-28: an error in training, a failure without turns in an evaluation; its record travels like any other."""
    prompt = make(name, tokenizer, tokenizers, max_tokens=16)
    engine = Scripted(lambda turn: (good(prompt), Stop.STOP))
    with pytest.raises(ConfigError, match=r"task 'seed:1' leaves no room .* raise prompt\.max_tokens"):
        run(corridor, prompt, engine)
    episode, metrics = run(corridor, prompt, engine, kind="eval")
    assert episode.transitions() == []
    assert (episode.success, metrics["rollout/context_ended"]) == (False, 1)
    group = Group(GroupKey("run", "seed:1", 0), (episode,), 1.0)
    assert summarise([group])["success"]["mean"] == 0
    assert codec.decode(Group, codec.encode(group)).episodes[0].transitions() == []


def test_a_reply_without_tokens_is_refused(corridor: ModuleType, prompt: Prompt) -> None:
    """BC-11: no row without an action token ever reaches the learner."""
    with pytest.raises(DataError, match=r"'corridor', task 'seed:1': .* without a token"):
        run(corridor, prompt, Scripted(lambda turn: ([], Stop.STOP)))


def test_what_is_written_is_read(prompt: Prompt) -> None:
    """Demonstrations and constrained replies are executed as the commands that they stand for."""
    search = "search" in prompt.kinds
    commands = ["answer[the door]", "search[who, where?]"] if search else ["open door", "walk left", "walk right"]
    info = {"admissible_commands": commands}
    for command, allowed in zip(commands, prompt.allowed(info), strict=True):
        action = prompt.action(command)
        assert action.tolist() == [*allowed.tolist(), prompt.tokenizer.eoa_id]
        assert action.dtype == np.int32
        read, kind = prompt.parse(action, info)
        assert (read, kind) == (command, command.partition("[")[0] if search else "admissible")
        assert prompt.parse(allowed, info) == (read, kind)


def test_a_game_cannot_end_a_turn(corridor: ModuleType, prompt: Prompt) -> None:
    """An observation that names special tokens is text: none of its ids is special."""
    tokenizer = prompt.tokenizer
    evil = "".join([tokenizer.token(i) for i in sorted(tokenizer.special_ids)]) + " you win"
    layout = prompt.open("hello", {"admissible_commands": ["look"]})
    layout.context(8)
    layout.act(np.array(good(prompt), dtype=np.int32), "look")
    span = layout.observe(evil, {"admissible_commands": ["look"]})
    ids, _ = layout.sequences()[-1]
    assert tokenizer.special_ids.isdisjoint(ids[span.start : span.stop].tolist())
    assert tokenizer.decode(ids[span.start : span.stop]) == evil


def test_names_and_settings() -> None:
    assert prompt_names() == ["append", "search", "window"]
    assert load_prompt("actors.prompts.window") is load_prompt("window")
    with pytest.raises(ConfigError, match="no prompt 'windows': did you mean 'window'"):
        load_prompt("windows")
    with pytest.raises(ConfigError, match="lacks Config and build"):
        load_prompt("actors.prompts.rendering")
    with pytest.raises(ConfigError, match=r"prompt\.history: .*greater than or equal to -1"):
        build_prompt({"name": "window", "history": -2}, bpe_tokenizer(["a"]))
    with pytest.raises(ConfigError, match=r"prompt\.system is for chat models"):
        build_prompt({"name": "append", "system": "Be brief."}, bpe_tokenizer(["a"]))
