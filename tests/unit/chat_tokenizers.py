"""Tiny checkpoints' tokenizer folders in the forms of well-known families: their splits, special tokens and chat templates."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from actors.pretrained import load_tokenizer
from protos.tokens import TextTokenizer

TEXTS = [
    "You are in the middle of a room. You see a cabinet 1, a fridge 1 and a mug 2.",
    "You open the fridge 1. In it, you see nothing.\n\nYour task is to: put a mug in the fridge.",
    "<think>I should look.</think><action>go to cabinet 1</action>",
    "user assistant system You are a helpful assistant. walk left walk right open door",
] * 3

QWEN2 = (
    "{%- if messages[0]['role'] == 'system' %}{{- '<|im_start|>system\\n' + messages[0]['content'] + '<|im_end|>\\n' }}"
    "{%- else %}{{- '<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud.<|im_end|>\\n' }}{%- endif %}\n"
    "{%- for message in messages %}\n"
    '    {%- if message.role == "user" or message.role == "assistant" or (message.role == "system" and not loop.first) %}\n'
    "        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}\n"
    "    {%- endif %}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

QWEN3 = (
    "{%- if messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}\n"
    "{%- set ns = namespace(last=messages|length - 1, open=true) %}\n"
    "{%- for message in messages[::-1] %}\n"
    "    {%- set index = (messages|length - 1) - loop.index0 %}\n"
    "    {%- if ns.open and message.role == 'user' %}{%- set ns.open = false %}{%- set ns.last = index %}{%- endif %}\n"
    "{%- endfor %}\n"
    "{%- for message in messages %}\n"
    "    {%- set content = message.content %}\n"
    "    {%- if message.role == 'user' %}{{- '<|im_start|>user\\n' + content + '<|im_end|>\\n' }}\n"
    "    {%- elif message.role == 'assistant' %}\n"
    "        {%- set reasoning = '' %}\n"
    "        {%- if '</think>' in content %}\n"
    "            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}\n"
    "            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}\n"
    "        {%- endif %}\n"
    "        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}\n"
    "            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' + content }}\n"
    "        {%- else %}{{- '<|im_start|>assistant\\n' + content }}{%- endif %}\n"
    "        {{- '<|im_end|>\\n' }}\n"
    "    {%- endif %}\n{%- endfor %}\n"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}\n"
    "    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}\n"
    "{%- endif %}"
)

LLAMA3 = (
    "{% set loop_messages = messages %}{% for message in loop_messages %}"
    "{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'"
    "+ message['content'] | trim + '<|eot_id|>' %}"
    "{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)

SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM<|im_end|>\\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

OPENED = SMOLLM2.replace("assistant\\n", "assistant\\n<think>\\n")  # reasoning models: the assistant's turn is opened

QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA_SPLIT = QWEN_SPLIT.replace(r"\p{N}|", r"\p{N}{1,3}|", 1)

FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2": {"template": QWEN2, "eos": "<|im_end|>", "pad": "<|endoftext|>", "stops": ["<|im_end|>", "<|endoftext|>"]},
    "qwen3": {"template": QWEN3, "eos": "<|im_end|>", "pad": "<|endoftext|>", "words": ["<think>", "</think>"]},
    "llama3": {"template": LLAMA3, "eos": "<|eot_id|>", "bos": "<|begin_of_text|>", "split": LLAMA_SPLIT},
    "smollm2": {"template": SMOLLM2, "eos": "<|im_end|>", "bos": "<|im_start|>", "split": None},
    "opened": {"template": OPENED, "eos": "<|im_end|>"},
    "base": {"template": None, "eos": "<|endoftext|>"},  # pads with its eos
    "base_with_bos": {"template": None, "eos": "<|endoftext|>", "bos": "<|begin_of_text|>"},
    "base_with_template": {
        "template": QWEN2,
        "eos": "<|endoftext|>",
    },  # Qwen2.5's base models: another end than the eos
}
SPECIALS = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
]
SPECIALS += ["<|eot_id|>"]


def write(folder: Path, family: str) -> Path:
    """The files of a tiny checkpoint of `family`; the chat template in a file of its own for some, in the settings for more."""
    parts = FAMILIES[family]
    tokenizer = _trained(parts.get("split", QWEN_SPLIT))
    tokenizer.add_tokens([AddedToken(word, normalized=False) for word in parts.get("words", [])])
    bos = parts.get("bos")
    if bos == "<|begin_of_text|>":
        index = tokenizer.token_to_id(bos)
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, index)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": parts["eos"] if family != "llama3" else {"content": parts["eos"], "__type": "AddedToken"},
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {
            str(i): token.__getstate__() for i, token in tokenizer.get_added_tokens_decoder().items()
        },
    }
    settings |= {name: parts[key] for name, key in (("bos_token", "bos"), ("pad_token", "pad")) if key in parts}
    if family.startswith("qwen"):
        (folder / "chat_template.jinja").write_text(parts["template"])
    elif parts["template"]:
        settings["chat_template"] = parts["template"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if "stops" in parts:
        ids = [tokenizer.token_to_id(token) for token in parts["stops"]]
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return folder


def load(folder: Path, family: str) -> TextTokenizer:
    return load_tokenizer(write(folder / family, family))


def _trained(split: str | None) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if split is None:
        first: Any = pre_tokenizers.Digits(individual_digits=True)
    else:
        first = pre_tokenizers.Split(Regex(split), behavior="isolated")
        tokenizer.normalizer = normalizers.NFC()
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([first, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return tokenizer
