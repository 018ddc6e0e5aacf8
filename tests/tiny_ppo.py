"""A model of a few thousand weights that reads letters, and a PPO trainer for it that is done in an
instant.
"""

import copy
import itertools
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedTokenizerFast,
)

from runner.ppo import PPOConfig, PPOTrainer

# Token 0 is a letter, so that padding with zeros would show.
LETTERS = "abcdefghijklmnopqrst"
END = 20
PAD = 21
NEWLINE = 22
WORDS = 24
PROMPTS = ["abc", "d", "efghij", "kl", "ghijklm", "b", "cd", "nopqr"]


def letter_tokenizer(pad: str | None = "<pad>") -> PreTrainedTokenizerFast:
    """One token per letter.

    The end token is 20, the pad token 21 unless ``pad`` names another or none.
    """
    vocabulary = {letter: index for index, letter in enumerate(LETTERS)} | {
        "<end>": END,
        "<pad>": PAD,
        "\n": NEWLINE,
    }
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<end>", pad_token=pad, model_max_length=64
    )


def letter_model(
    kind: str = "llama", *, labels: int = 0, seed: int = 0, spread: float = 0.3, **changes: Any
) -> Any:
    """A random model of two layers with 16 units; with ``labels``, one that scores a text."""
    heads = {"n_head": 2} if kind == "gpt2" else {"num_attention_heads": 2}
    grouped = (
        {} if kind in ("gpt2", "gpt_neox", "opt") else {"num_key_value_heads": 1, "head_dim": 8}
    )
    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "max_position_embeddings": 64,
    }
    if kind == "gpt2":
        sizes = {"n_embd": 16, "n_layer": 2, "n_positions": 64}
    if kind == "opt":
        sizes = {
            "hidden_size": 16,
            "ffn_dim": 32,
            "num_hidden_layers": 2,
            "max_position_embeddings": 64,
        }
        sizes |= {"word_embed_proj_dim": 16}
    ends = {"bos_token_id": None, "eos_token_id": END, "pad_token_id": None}
    config = AutoConfig.for_model(
        kind,
        vocab_size=WORDS,
        initializer_range=spread,
        init_std=spread,
        **heads,
        **grouped,
        **sizes,
        **ends,
    )
    for name, value in changes.items():
        setattr(config, name, value)
    maker = AutoModelForCausalLM
    if labels:
        config.num_labels = labels
        maker = AutoModelForSequenceClassification
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return maker.from_config(config, dtype=torch.float32).eval()


def letter_rows(count: int = 8) -> Dataset:
    return Dataset.from_dict(
        {
            "prompt": [PROMPTS[row % len(PROMPTS)] for row in range(count)],
            "wanted": [*"bcde" * count][:count],
        }
    )


def share_of_wanted(completions, wanted, **_) -> list[float]:
    """The share of each completion that is the letter wanted by its row."""
    return [
        text.count(letter) / (1 + len(text))
        for text, letter in zip(completions, wanted, strict=True)
    ]


def lora(**changes: Any) -> LoraConfig:
    return LoraConfig(
        **{"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
        | changes
    )


def letter_trainer(folder: Any, *, model: Any = None, rows: Any = None, **asked: Any) -> PPOTrainer:
    """A trainer for ``asked["max_steps"]`` updates of 8 rows, 2 unless told otherwise.

    The names of PPOTrainer's own parts go to it, every other one into its arguments.
    """
    parts = {"train_dataset": rows or letter_rows(), "reward_funcs": share_of_wanted}
    parts["processing_class"] = letter_tokenizer()
    arguments = (
        "reward_funcs",
        "processing_class",
        "peft_config",
        "ref_model",
        "value_model",
        "callbacks",
        "eval_dataset",
    )
    arguments += (
        "optimizers",
        "reward_processing_classes",
        "tools",
        "environment_factory",
        "rollout_func",
    )
    parts |= {name: asked.pop(name) for name in arguments if name in asked}
    parts["peft_config"] = copy.copy(parts.get("peft_config"))  # peft writes into it
    quick = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "max_steps": 2,
        "response_length": 6,
        "learning_rate": 1e-2,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "disable_tqdm": True,
        "num_sample_generations": 0,
        "dataloader_pin_memory": False,
    }
    model = letter_model() if model is None else model
    torch.manual_seed(0)  # the weights of adapters
    return PPOTrainer(model, args=PPOConfig(**quick | asked), **parts)


def weights(trainer: PPOTrainer) -> dict[str, torch.Tensor]:
    """A copy of everything that training changes."""
    return {
        name: weight.detach().clone() for name, weight in trainer.actor_critic.state_dict().items()
    }


def farthest(first: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest difference of two weights of one name."""
    assert first.keys() == other.keys()
    return max((first[name] - other[name]).abs().max().item() for name in first)


def train_weights(folder: Any, **asked: Any) -> dict[str, torch.Tensor]:
    """The weights after training."""
    trainer = letter_trainer(folder, **asked)
    trainer.train()
    return weights(trainer)


def logs_of(trainer: PPOTrainer) -> list[dict[str, float]]:
    """The lines logged at each update."""
    return [line for line in trainer.state.log_history if "loss" in line]


def watch_steps(trainer: PPOTrainer) -> list[tuple[float, float]]:
    """A list that grows by the gradient norm and the learning rate at each optimizer step."""
    distances: list[tuple[float, float]] = []

    def look(optimizer: Any, *_: Any) -> None:
        weights = itertools.chain(*(group["params"] for group in optimizer.param_groups))
        norms = [weight.grad.norm() for weight in weights if weight.grad is not None]
        distances.append((torch.stack(norms).norm().item(), optimizer.param_groups[0]["lr"]))

    trainer.create_optimizer()
    trainer.optimizer.register_step_pre_hook(look)
    return distances
