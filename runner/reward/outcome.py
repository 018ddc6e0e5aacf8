"""Rewards that a model gives to a whole answer. Rules are in ``rule``.

``load_reward_model`` hands a model with one score to the trainer, which reads it in its own way and
may start a critic from it. ``Classifier`` asks any classifier here, of several classes too, and
serves as a metric as well.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import torch
import transformers
from torch import Tensor
from transformers import (
    AutoModelForSequenceClassification,
    BatchEncoding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import cached_file, find_adapter_config_file

from runner.errors import ConfigError, Fault
from runner.io.files import JsonObject, shipped
from runner.io.turns import Completion, text_of, turns_for
from runner.reward.reading import as_if_alone, positions_of
from runner.schema.ranges import Count
from runner.schema.text import Node

AutoClass = (
    type[AutoModelForSequenceClassification] | type[transformers.AutoModelForTokenClassification]
)
Gives = Literal["logit", "probability"]


def load_reward_model(
    path: str,
    *,
    revision: str | None = None,
    dtype: str = "float32",
    trust_remote_code: bool = False,
    random_head: bool = False,
    where: str = "reward.model.path",
) -> PreTrainedModel:
    """A frozen sequence classification model with one score, as ``trainer=reward`` saves it.

    An adapter is merged into its base. The trainer reads the tokenizer from the same place, by
    ``config._name_or_path``. Only safetensors are loaded, and weights that are missing are a fault,
    because a score head that was never trained would reward at random; ``random_head`` allows that.
    ``where`` is the key of the path.
    """
    home = shipped(path)
    options = {
        "revision": revision,
        "dtype": getattr(torch, dtype),
        "trust_remote_code": trust_remote_code,
    }
    with translate_errors(path, where):
        if find_adapter_config_file(home, revision=revision) is None:
            if random_head:
                options["num_labels"] = 1
            model = load_whole(
                home, options, AutoModelForSequenceClassification, where, random_head
            )
        else:
            model = _load_adapted(path, options, where)
    if model.config.num_labels != 1:
        classes = ", ".join(map(str, model.config.id2label.values()))
        raise ConfigError(
            Fault(
                where=where,
                found=f"{path}: it returns {model.config.num_labels} scores",
                expected="a model with one score per text",
                fix=f"reward=classifier reward.classifier.path={path} "
                f"reward.classifier.label=<one of {classes}>",
            )
        )
    return model.eval().requires_grad_(False)


def _load_adapted(path: str, options: Node, where: str) -> PreTrainedModel:
    """The base of an adapter with the adapter merged into it."""
    from peft import AutoPeftModelForSequenceClassification

    home = shipped(path)
    revision = options["revision"]
    adapted = AutoPeftModelForSequenceClassification.from_pretrained(home, num_labels=1, **options)
    # Loading again is what reports the weights that it lacks.
    report = adapted.load_adapter(home, "default", revision=revision)
    misfits = [*report.missing_keys, *report.unexpected_keys]
    if misfits:
        raise ConfigError(
            Fault(
                where=where,
                found=f"{path} has weights that do not fit its adapter_config.json, such as "
                f"{misfits[0]}",
                expected="an adapter with all of its weights; missing ones would be random",
                fix="=<another folder>",
            )
        )
    model = adapted.merge_and_unload()
    model.config._name_or_path = home  # where the adapter's tokenizer is
    # The model was trained with the padding token of that tokenizer.
    has_tokenizer = cached_file(
        home,
        "tokenizer_config.json",
        revision=revision,
        _raise_exceptions_for_missing_entries=False,
    )
    if has_tokenizer:
        pad = transformers.AutoTokenizer.from_pretrained(home, revision=revision).pad_token_id
        if pad is not None:
            model.config.get_text_config().pad_token_id = pad
    return model


@contextlib.contextmanager
def translate_errors(path: str, where: str) -> Iterator[None]:
    """Turn an OSError, which a missing model raises, into a ConfigError of the key of its path."""
    try:
        yield
    except OSError as error:
        error_text = str(error).splitlines()[0]
        raise ConfigError(
            Fault(
                where=where,
                found=f"{path}: {error_text}",
                expected="a folder, or org/name on the hub",
                fix=f"python -m runner trainer=reward, then {where}=<its model folder>",
            )
        ) from error


def load_whole(
    home: str, options: Node, kind: AutoClass, where: str, random_head: bool
) -> PreTrainedModel:
    """A classifier with all its weights, from safetensors.

    A new head is a fault, or if it is allowed, always the same.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, report = kind.from_pretrained(
            home, use_safetensors=True, output_loading_info=True, **options
        )
    missing = sorted(report["missing_keys"])
    if missing and not random_head:
        raise ConfigError(
            Fault(
                where=where,
                found=f"{home}: it has no weights for {', '.join(missing)}",
                expected="a trained reward model",
                fix=f"python -m runner trainer=reward, then {where}=<its model folder>; or "
                "tolerate.random_head=true",
            )
        )
    return model


@dataclass(eq=False)
class ScoringModel:
    """A frozen classifier that gives one of its scores, as a logit or a probability."""

    path: str
    _: KW_ONLY
    # The name or number of a class; a model with one score needs none.
    label: str | int | None = None
    gives: Gives = "logit"
    revision: str | None = None
    dtype: str = "float32"
    device: str | None = None
    batch_size: Count = 32
    trust_remote_code: bool = False
    random_head: bool = False

    def load(self, key: str, kind: AutoClass = AutoModelForSequenceClassification) -> None:
        """Load it, and the tokenizer beside it; ``key`` is the dotted key of this part."""
        home = shipped(self.path)
        source: JsonObject = {
            "revision": self.revision,
            "trust_remote_code": self.trust_remote_code,
        }
        with translate_errors(self.path, f"{key}.path"):
            options = {**source, "dtype": getattr(torch, self.dtype)}
            model = load_whole(home, options, kind, f"{key}.path", self.random_head)
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(
                home, truncation_side="left", **source
            )
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        self.column = self._column(model, key)
        # The most tokens of a text; None where neither says.
        limits = [positions_of(model), self.tokenizer.model_max_length]
        known_limits = [limit for limit in limits if limit and limit < 1e9]
        self.longest = min(known_limits, default=None)
        device = self.device or best_device()
        self.model = model.eval().requires_grad_(False).to(device)

    def scores_of(self, batch: BatchEncoding) -> list[Any]:
        """The score of each text of a padded batch, or of each of its tokens."""
        with as_if_alone(self.model, batch.pop("input_ids"), batch["attention_mask"]) as ids_BT:
            logits = self.model(input_ids=ids_BT, **batch).logits.float()
        scores: list[Any] = to_scores(logits, self.gives)[..., self.column].tolist()
        return scores

    def _column(self, model: PreTrainedModel, key: str) -> int:
        """The index of the score to give."""
        columns = {str(name): int(column) for column, name in model.config.id2label.items()}
        count = model.config.num_labels
        if self.label is None and count == 1:
            return 0
        if str(self.label) in columns:
            return columns[str(self.label)]
        if isinstance(self.label, int) and 0 <= self.label < count:
            return self.label
        label = "no label"
        if self.label is not None:
            label = repr(self.label)
        raise ConfigError(
            Fault(
                where=f"{key}.label",
                found=f"{self.path}: {label}",
                expected=f"one of {', '.join(columns)}",
                fix="=<one of them>",
            )
        )


@dataclass(eq=False)
class Classifier(ScoringModel):
    """The score of completions by a sequence classification model.

    A text that is too long loses its beginning.
    """

    _: KW_ONLY
    # What it is shown: the answer alone, or with the prompt, a chat through the model's own
    # template if it has it.
    reads: Literal["answer", "conversation"] = "conversation"
    max_length: Count | None = None  # tokens of a text; None is what the model holds

    def __post_init__(self) -> None:
        self.load("reward.classifier")
        self.max_length = self.max_length or self.longest

    @torch.no_grad()
    def __call__(
        self, completions: Sequence[Completion], prompts: Sequence[Completion] | None = None
    ) -> list[float]:
        """One score per completion."""
        shown: Sequence[Completion] = [""] * len(completions)
        if prompts is not None and self.reads == "conversation":
            shown = prompts
        texts = []
        for prompt, completion in zip(shown, completions, strict=True):
            text = join_texts(self.tokenizer, prompt, completion)
            texts.append(text or self.tokenizer.eos_token or " ")  # of an empty answer alone
        is_chat = bool(texts) and isinstance(shown[0], list)
        options: JsonObject = {
            "return_tensors": "pt",
            "padding": True,
            "padding_side": "right",
            # A template writes its own special tokens.
            "add_special_tokens": not (self.tokenizer.chat_template and is_chat),
        }
        if self.max_length:
            options |= {"truncation": True, "max_length": self.max_length}
        scores: list[float] = []
        for start in range(0, len(texts), self.batch_size):
            batch_texts = texts[start : start + self.batch_size]
            batch = self.tokenizer(batch_texts, **options).to(self.model.device)
            scores += self.scores_of(batch)
        return scores


def join_texts(
    tokenizer: PreTrainedTokenizerBase, prompt: Completion, completion: Completion
) -> str:
    """The text of a prompt and its completion for a model.

    A chat goes through the template if there is one; otherwise its texts are joined.
    """
    if isinstance(prompt, str):
        return prompt + text_of(completion)
    answer = completion
    if isinstance(answer, str):
        answer = [{"role": "assistant", "content": answer}]
    turns = [*prompt, *answer]
    if tokenizer.chat_template:
        text: str = tokenizer.apply_chat_template(turns_for(tokenizer, turns), tokenize=False)
        return text
    return "\n".join(turn["content"] for turn in turns)


def to_scores(logits: Tensor, gives: str) -> Tensor:
    """Logits of classes as they are, or as probabilities; a single one is that of a yes."""
    if gives == "logit":
        return logits
    if logits.shape[-1] == 1:
        return logits.sigmoid()
    return logits.softmax(-1)


def best_device() -> torch.device:
    """The accelerator of this process where there is one, else the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
