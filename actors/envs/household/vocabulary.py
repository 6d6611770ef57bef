"""A compact vocabulary: one token for each entity, so that a task's word and the thing it stands for are one token.

"cabinet 1" is written as "cabinet", "cabinet 2" is one token "cabinet 2"; function words are dropped. What is dropped tells
nothing: all commands that are admissible in a state keep different tokens.
"""

import re
from functools import lru_cache

from actors.envs.household import texts
from actors.envs.household.config import Config
from actors.envs.household.generate import MAX_INSTANCES
from actors.envs.household.library import GOALS
from actors.envs.household.rooms import HOLDS, LAMP, ROOMS
from protos.tokens import TextTokenizer, word_tokenizer

# An entity with its number, or a word. The first instance has lost its number before this is applied.
PATTERN = r"[a-z]+ \d+|[a-z]+"
_DROPPED = """a an and are around arrive at facing from in is it looking middle next of on quickly room s see some task
textworld to the up using alfred welcome with you your"""
# The first: "cabinet 1" -> "cabinet", but "cabinet 10" stays.
DROP = (r"(?<=[a-z]) 1\b", rf"\b(?:{'|'.join(_DROPPED.split())})\b(?! \d)")

# Instances of one kind in loaded ALFWorld games: more than in any floor plan of AI2-THOR.
_LOADED_RECEPTACLES, _LOADED_OBJECTS = 40, 12
# Types of loaded games that generated ones lack.
_ONLY_LOADED = """Box Boots Cart Chair FloorLamp Footstool HousePlant Ottoman Painting PaperTowelRoll Poster ScrubBrush
TeddyBear Television Toaster Towel TowelHolder Bathtub Sink Window Mirror"""


@lru_cache(maxsize=8)
def tokenizer(config: Config) -> TextTokenizer:
    """The word tokenizer of all texts that games of this config can show; about 400 words for the default."""
    return word_tokenizer(vocabulary(config), PATTERN, DROP)


def vocabulary(config: Config) -> list[str]:
    """The words in a fixed order: entities by name and number, then the words of the texts."""
    words: dict[str, None] = {}
    for name, instances in sorted(_entities(config).items()):
        words.update(dict.fromkeys([name, *(f"{name} {number}" for number in range(2, instances + 1))]))
    templates = [
        t for task in config.tasks for t in (*GOALS[task].templates, *(GOALS[task].sliced if config.data else ()))
    ]
    for sentence in [*texts.sentences(), *templates]:
        words.update(dict.fromkeys(_plain_words(sentence)))
    return list(words)


def _entities(config: Config) -> dict[str, int]:
    """Entity types, in lower case, and how many instances of each a game can have."""
    if config.data is not None:
        names = {receptacle.lower(): _LOADED_RECEPTACLES for receptacle in HOLDS}
        objects = {o for held in HOLDS.values() for o in held} | {LAMP, *_ONLY_LOADED.split()}
        return {o.lower(): _LOADED_OBJECTS for o in objects} | names
    counts: dict[str, int] = {}
    for room in ROOMS[config.rooms].values():
        for receptacle, (_, most) in room.items():
            name = receptacle.lower()
            counts[name] = max(counts.get(name, 0), most)
            counts |= {o.lower(): MAX_INSTANCES for o in HOLDS.get(receptacle, ())}
    if "look_at_obj_in_light" in config.tasks:
        counts[LAMP.lower()] = 1
    return counts


def _plain_words(sentence: str) -> list[str]:
    """The words of a template: its holes and the dropped words left out."""
    text = re.sub(r"\{\w*\}", " ", sentence).lower()
    for regex in DROP:
        text = re.sub(regex, "", text)
    return re.findall(PATTERN, text)
