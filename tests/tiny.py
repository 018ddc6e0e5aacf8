"""Tiny models and made rows, in the shapes of the models and data sets that people name.

Rows come in the real schemas (columns, types, splits, configs), models in the real architectures
and with tokenizers of the real kind; the contents are made up. ``hub`` serves them.
"""

import json
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from runner.io.files import MENU

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedTokenizerFast

NAMES = ("Anna", "Ben", "Cara", "Dan", "Eva", "Finn", "Gina", "Hugo")
PLACES = ("park", "office", "lake", "school", "market", "museum", "station")
ANIMALS = ("dog", "cat", "horse", "bird", "fox")


def tell_story(number: int) -> tuple[str, str, str]:
    """A post, a good summary of it and a poor one; 280 consecutive numbers give different ones."""
    name = NAMES[number % len(NAMES)]
    place = PLACES[number % len(PLACES)]
    animal = ANIMALS[number % len(ANIMALS)]
    post = (
        f"On day {number} {name} went to the {place} and saw a {animal} there. Nobody else came by."
    )
    return post, f"{name} saw a {animal} at the {place}.", "Nobody came by."


def to_chat(prompt: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]


def _tldr(number: int) -> dict:
    post, summary, _ = tell_story(number)
    prompt = f"SUBREDDIT: r/tiny\n\nTITLE: Day {number}\n\nPOST: {post}\n\nTL;DR:"
    return {"prompt": prompt, "completion": f" {summary}"}


def _ultrafeedback(number: int) -> dict:
    post, summary, poor = tell_story(number)
    chats = {"chosen": to_chat(post, summary), "rejected": to_chat(post, poor)}
    return chats | {"score_chosen": 8.0 + number % 3 / 2, "score_rejected": 3.0 + number % 5 / 2}


def _descriptiveness(number: int) -> dict:
    post, summary, poor = tell_story(number)
    return {"prompt": post, "chosen": to_chat(post, summary), "rejected": to_chat(post, poor)}


def _sentiment(number: int) -> dict:
    post, summary, _ = tell_story(number)
    chosen = f"A lovely day! {summary}"
    rejected = f"A dreadful day. {summary}"
    return {"prompt": post, "chosen": to_chat(post, chosen), "rejected": to_chat(post, rejected)}


def _firefly(number: int) -> dict:
    digits = f"{number:03d}"
    question = f"把数字{'、'.join(digits)}从小到大排列。"
    return {"kind": "Program", "input": question, "target": "、".join(sorted(digits))}


def _gsm8k(number: int) -> dict:
    name = NAMES[number % len(NAMES)]
    bought = number % 7 + 2
    question = (
        f"{name} has {number} apples and buys {bought} more. How many apples does {name} have?"
    )
    total = number + bought
    answer = (
        f"{name} has {number} + {bought} = "
        f"<<{number}+{bought}={total}>>{total} apples.\n#### {total}"
    )
    return {"question": question, "answer": answer}


def _gsm8k_socratic(number: int) -> dict:
    row = _gsm8k(number)
    return row | {"answer": f"How many apples are there? ** {row['answer']}"}


MANY = 600
FEW = 220
ROWS: dict[str, dict[str, dict[str, tuple[Callable[[int], dict], int]]]] = {
    "trl-lib/tldr": {
        "default": {"train": (_tldr, MANY), "validation": (_tldr, MANY), "test": (_tldr, FEW)}
    },
    "trl-lib/ultrafeedback_binarized": {
        "default": {"train": (_ultrafeedback, MANY), "test": (_ultrafeedback, FEW)}
    },
    "trl-internal-testing/descriptiveness-sentiment-trl-style": {
        "default": {"sentiment": (_sentiment, MANY), "descriptiveness": (_descriptiveness, MANY)}
    },
    "YeungNLP/firefly-train-1.1M": {"default": {"train": (_firefly, MANY)}},
    "openai/gsm8k": {
        "main": {"train": (_gsm8k, MANY), "test": (_gsm8k, FEW)},
        "socratic": {"train": (_gsm8k_socratic, MANY), "test": (_gsm8k_socratic, FEW)},
    },
}


# --- Recipes in conf/experiment, whose words no tokenizer of the tests is trained on --------------


def _conversation(number: int) -> dict:
    post, summary, _ = tell_story(number)
    return {"prompt": post, "prompt_id": str(number), "messages": to_chat(post, summary)}


def _preference(number: int) -> dict:
    return {"prompt": tell_story(number)[0], "prompt_id": str(number)} | _ultrafeedback(number)


def _verified(number: int) -> dict:
    row = _gsm8k(number)
    truth = row["answer"].rpartition(" ")[2]
    return {"messages": to_chat(row["question"], "")[:1], "ground_truth": truth, "dataset": "gsm8k"}


def _smoltalk(number: int) -> dict:
    arguments = {
        "custom_instructions": "",
        "enable_thinking": False,
        "python_tools": None,
        "xml_tools": None,
    }
    return {
        "messages": _conversation(number)["messages"],
        "chat_template_kwargs": arguments,
        "source": "tiny",
    }


def _competition(number: int) -> dict:
    row = _gsm8k(number)
    solution = f"There are $\\boxed{{{row['answer'].rpartition(' ')[2]}}}$."
    return {
        "problem": row["question"],
        "level": "Level 1",
        "solution": solution,
        "type": "Counting",
    }


SMOLTALK = [
    part["split"]["train"].partition("[")[0]
    for part in yaml.safe_load((MENU / "experiment" / "smollm3_sft.yaml").read_text())["dataset"][
        "parts"
    ].values()
]
RECIPES: dict[str, dict[str, dict[str, tuple[Callable[[int], dict], int]]]] = {
    "HuggingFaceH4/ultrachat_200k": {
        "default": {"train_sft": (_conversation, 16), "test_sft": (_conversation, 4)}
    },
    "HuggingFaceH4/ultrafeedback_binarized": {
        "default": {"train_prefs": (_preference, 16), "test_prefs": (_preference, 4)}
    },
    "allenai/llama-3.1-tulu-3-8b-preference-mixture": {"default": {"train": (_ultrafeedback, 16)}},
    "allenai/RLVR-GSM": {"default": {"train": (_verified, 16)}},
    "allenai/RLVR-MATH": {"default": {"train": (_verified, 16)}},
    "DigitalLearningGmbH/MATH-lighteval": {
        "default": {"train": (_competition, 16), "test": (_competition, 100)}
    },
    "HuggingFaceTB/smoltalk2": {"SFT": {name: (_smoltalk, 50) for name in SMOLTALK}},
}
RECIPE_MODELS = [
    ("mistralai/Mistral-7B-v0.1", "main"),
    ("alignment-handbook/zephyr-7b-sft-full", "main"),
    ("allenai/Llama-3.1-Tulu-3-8B-SFT", "main"),
    ("allenai/Llama-3.1-Tulu-3-8B-DPO", "main"),
    ("allenai/Llama-3.1-Tulu-3-8B-RM", "main"),
    ("deepseek-ai/deepseek-math-7b-instruct", "main"),
    ("HuggingFaceTB/SmolLM3-3B-checkpoints", "it-mid-training"),
    ("HuggingFaceTB/SmolLM3-3B", "main"),
]


def rows_of(repo_id: str) -> dict[str, dict[str, list[dict]]]:
    """Rows of a data set in ``ROWS`` or ``RECIPES``: config -> split -> rows, each once."""
    return {config: _make_splits(splits) for config, splits in (ROWS | RECIPES)[repo_id].items()}


def _make_splits(splits: dict[str, tuple[Callable[[int], dict], int]]) -> dict[str, list[dict]]:
    rows = {}
    start = 0
    for split, (make, count) in splits.items():
        rows[split] = [make(number) for number in range(start, start + count)]
        start += count
    return rows


# --- Models -------------------------------------------------------------------------------------

# The architecture, the data type of the real weights, and the head.
MODELS = {
    "EleutherAI/pythia-160m": ("gpt_neox", "float16", "lm"),
    "EleutherAI/pythia-1b-deduped": ("gpt_neox", "float16", "lm"),
    "Qwen/Qwen2.5-0.5B-Instruct": ("qwen2", "bfloat16", "lm"),
    "cleanrl/EleutherAI_pythia-1b-deduped__sft__tldr": ("gpt_neox", "bfloat16", "lm"),
    "cleanrl/EleutherAI_pythia-1b-deduped__reward__tldr": ("gpt_neox", "bfloat16", "score"),
    "Skywork/Skywork-Reward-V2-Qwen3-0.6B": ("qwen3", "bfloat16", "score"),
    "distilbert/distilbert-base-uncased-finetuned-sst-2-english": (
        "distilbert",
        "float32",
        "classes",
    ),
}
# base models: one special token, no chat template
WITHOUT_CHAT = ("gpt2", "gpt_neox", "distilbert")
SPECIAL = {
    True: ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
    False: ["<|endoftext|>"],
}  # with chat or not
TIED = ("gpt2", "qwen2", "qwen3")  # the small ones share the embedding with the output layer
CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_model(
    folder: Path,
    architecture: str = "qwen2",
    head: str = "lm",
    *,
    seed: int = 0,
    dtype: str = "float32",
) -> Path:
    """Save a random model of 0.1 M parameters with its tokenizer, and return the folder.

    ``architecture`` is a transformers model type; those in ``WITHOUT_CHAT`` get a tokenizer like
    Pythia's, the others one like Qwen's. ``head`` is "lm", or "score" for sequence classification
    with one label, or "classes" with NEGATIVE and POSITIVE. As in the real ones, the embedding has
    more rows than the tokenizer has tokens.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

    tokenizer = tiny_tokenizer(chat=architecture not in WITHOUT_CHAT)
    config = _tiny_config(architecture, tokenizer)
    if head == "score":
        config.num_labels = 1
    elif head == "classes":
        config.id2label = {0: "NEGATIVE", 1: "POSITIVE"}
        config.label2id = {"NEGATIVE": 0, "POSITIVE": 1}
    kind = AutoModelForCausalLM if head == "lm" else AutoModelForSequenceClassification
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = kind.from_config(config, dtype=getattr(torch, dtype))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Path(folder)


def _tiny_config(architecture: str, tokenizer: "PreTrainedTokenizerFast") -> "PretrainedConfig":
    from transformers import AutoConfig

    grouped = {} if architecture == "gpt_neox" else {"num_key_value_heads": 2}
    return AutoConfig.for_model(
        architecture,
        **grouped,
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=architecture in TIED,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )


def tiny_tokenizer(chat: bool = True) -> "PreTrainedTokenizerFast":
    """A byte-level BPE tokenizer of 500 tokens, trained in this process on the rows of ``ROWS``.

    With ``chat`` it is like Qwen's: ChatML template, <|im_end|> ends a turn, <|endoftext|> pads.
    Without, like Pythia's: <|endoftext|> is the only special token, no pad token, no template.
    """
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    end = SPECIAL[chat][0]
    if chat:
        named = {"eos_token": "<|im_end|>", "pad_token": end}
    else:
        named = {"eos_token": end, "bos_token": end, "unk_token": end}
    core = Tokenizer.from_str(trained_tokenizer(chat))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, model_max_length=1024, **named)
    tokenizer.chat_template = CHATML if chat else None
    return tokenizer


@cache
def trained_tokenizer(chat: bool) -> str:
    """The tokenizer of a kind as JSON, trained once, because that takes a tenth of a second."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=SPECIAL[chat],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_corpus(), trainer)
    return core.to_str()


def _corpus() -> Iterable[str]:
    """The plain text of the first rows of every data set, and the words that templates use."""
    yield "system user assistant\n" * 20
    for repo_id in ROWS:
        for splits in rows_of(repo_id).values():
            for rows in splits.values():
                yield from (json.dumps(row, ensure_ascii=False) for row in rows[:100])
