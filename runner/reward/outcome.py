"""Rewards that a model gives to a whole answer. Rules are in ``rule``.

``load_reward_model`` hands a model with one score to the trainer, which reads it in its own way and may start a critic
from it. ``Classifier`` asks any classifier here, of several classes too, and serves as a metric as well.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

import torch
import transformers
from peft import AutoPeftModelForSequenceClassification
from torch import Tensor
from transformers import AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import cached_file, find_adapter_config_file

from runner.errors import ConfigError, Fault, fault
from runner.io.files import shipped
from runner.io.turns import Completion, text_of, turns_for
from runner.reward.reading import as_if_alone, positions_of

AutoClass = type[AutoModelForSequenceClassification] | type[transformers.AutoModelForTokenClassification]
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
    """A sequence classification model with one score, as ``trainer=reward`` leaves it in ``model/``; frozen.

    An adapter is merged into its base. The trainer reads the tokenizer from the same place, by
    ``config._name_or_path``. Only safetensors are loaded, and weights that are missing are a fault, because a score
    head that was never trained would reward at random; ``random_head`` allows that. ``where`` is the key of the path.
    """
    home = shipped(path)
    options = {"revision": revision, "dtype": getattr(torch, dtype), "trust_remote_code": trust_remote_code}
    with translate_errors(path, where):
        if find_adapter_config_file(home, revision=revision) is None:
            one_score = {"num_labels": 1} if random_head else {}
            model = load_whole(home, options | one_score, AutoModelForSequenceClassification, where, random_head)
        else:
            adapted = AutoPeftModelForSequenceClassification.from_pretrained(home, num_labels=1, **options)
            report = adapted.load_adapter(home, "default", revision=revision)  # which tells what it lacks
            if misfits := [*report.missing_keys, *report.unexpected_keys]:
                found = f"{path} has other weights than its adapter_config.json, such as {misfits[0]}"
                expected = "an adapter with all of its weights; others would be random"
                raise ConfigError(Fault(where, found, expected, "=<another folder>"))
            model = adapted.merge_and_unload()
            model.config._name_or_path = home  # where the adapter's tokenizer is
            _read_as_trained(model, home, revision)
    if model.config.num_labels != 1:
        classes = ", ".join(map(str, model.config.id2label.values()))
        raise ConfigError(fault("reward.several_scores", where=where, path=path, config=model.config, classes=classes))
    return model.eval().requires_grad_(False)


def _read_as_trained(model: PreTrainedModel, adapter: str, revision: str | None) -> None:
    """Give the model the padding token of an adapter's tokenizer: it was trained with that."""
    if cached_file(adapter, "tokenizer_config.json", revision=revision, _raise_exceptions_for_missing_entries=False):
        pad = transformers.AutoTokenizer.from_pretrained(adapter, revision=revision).pad_token_id
        if pad is not None:
            model.config.get_text_config().pad_token_id = pad


@contextlib.contextmanager
def translate_errors(path: str, where: str) -> Iterator[None]:
    """Turn an OSError, which tells of a model that is not there, into a ConfigError of the key that names it."""
    try:
        yield
    except OSError as error:
        raise ConfigError(fault("reward.no_model", where=where, path=path, error=str(error).splitlines()[0])) from error


def load_whole(home: str, how: Mapping[str, Any], kind: AutoClass, where: str, random_head: bool) -> PreTrainedModel:
    """A classifier with all its weights, from safetensors; a new head is a fault, or if allowed always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model, report = kind.from_pretrained(home, use_safetensors=True, output_loading_info=True, **how)
    if (missing := sorted(report["missing_keys"])) and not random_head:
        raise ConfigError(fault("reward.random_head", where=where, path=home, names=", ".join(missing)))
    return model


@dataclass(eq=False)
class ScoringModel:
    """A frozen classifier, of whose scores one is given, as a logit or a probability."""

    path: str
    _: KW_ONLY
    label: str | int | None = None  # the name or number of a class; a model with one score needs none
    gives: Gives = "logit"
    revision: str | None = None
    dtype: str = "float32"
    device: str | None = None
    batch_size: int = 32
    trust_remote_code: bool = False
    random_head: bool = False

    def load(self, key: str, kind: AutoClass = AutoModelForSequenceClassification) -> None:
        """Load it, and the tokenizer beside it."""
        options: dict[str, Any] = {"revision": self.revision, "trust_remote_code": self.trust_remote_code}
        how = {**options, "dtype": getattr(torch, self.dtype)}
        with translate_errors(self.path, f"{key}.path"):
            model = load_whole(shipped(self.path), how, kind, f"{key}.path", self.random_head)
            options["truncation_side"] = "left"
            self.tokenizer = transformers.AutoTokenizer.from_pretrained(shipped(self.path), **options)
        if self.tokenizer.pad_token_id is None:
            self.tokenizer.pad_token = self.tokenizer.eos_token
        names = {str(name): int(number) for number, name in model.config.id2label.items()}
        if self.label is None and model.config.num_labels == 1:
            self.column = 0
        elif str(self.label) in names:
            self.column = names[str(self.label)]
        elif isinstance(self.label, int) and 0 <= self.label < model.config.num_labels:
            self.column = self.label
        else:
            label = "no label" if self.label is None else repr(self.label)
            known = ", ".join(names)
            raise ConfigError(fault("reward.unknown_label", key=key, path=self.path, label=label, names=known))
        counts = (positions_of(model), self.tokenizer.model_max_length)
        self.longest = min((count for count in counts if count and count < 1e9), default=None)  # None: neither says
        self.model = model.eval().requires_grad_(False).to(self.device or best_device())


@dataclass(eq=False)
class Classifier(ScoringModel):
    """The answer of a sequence classification model to completions; a text that is too long loses its beginning."""

    _: KW_ONLY
    # What it is shown: the answer alone, or with the prompt, a chat through the model's own template if it has it.
    reads: Literal["answer", "conversation"] = "conversation"
    max_length: int | None = None  # tokens of a text; None is what the model holds

    def __post_init__(self) -> None:
        self.load("reward.classifier")
        self.max_length = self.max_length or self.longest

    @torch.no_grad()
    def __call__(self, completions: Sequence[Completion], prompts: Sequence[Completion] | None = None) -> list[float]:
        """One score per completion."""
        shown = prompts if prompts is not None and self.reads == "conversation" else [""] * len(completions)
        texts = [join_texts(self.tokenizer, prompt, done) for prompt, done in zip(shown, completions, strict=True)]
        texts = [text or self.tokenizer.eos_token or " " for text in texts]  # of an empty answer alone
        options = {"return_tensors": "pt", "padding": True, "padding_side": "right"}
        options |= {"truncation": True, "max_length": self.max_length} if self.max_length else {}
        # A template writes its own special tokens.
        options["add_special_tokens"] = not (self.tokenizer.chat_template and texts and isinstance(shown[0], list))
        scores: list[float] = []
        for start in range(0, len(texts), self.batch_size):
            batch = self.tokenizer(texts[start : start + self.batch_size], **options).to(self.model.device)
            with as_if_alone(self.model, batch.pop("input_ids"), batch["attention_mask"]) as ids_BT:
                logits_BC = self.model(input_ids=ids_BT, **batch).logits.float()
            scores += to_scores(logits_BC, self.gives)[:, self.column].tolist()
        return scores


def join_texts(tokenizer: PreTrainedTokenizerBase, prompt: Completion, completion: Completion) -> str:
    """The text of a prompt and its completion for a model: a chat by the template if there is one, else the texts."""
    if isinstance(prompt, str):
        return prompt + text_of(completion)
    answer = [{"role": "assistant", "content": completion}] if isinstance(completion, str) else completion
    if tokenizer.chat_template:
        return tokenizer.apply_chat_template(turns_for(tokenizer, [*prompt, *answer]), tokenize=False)
    return "\n".join(turn["content"] for turn in [*prompt, *answer])


def to_scores(logits: Tensor, gives: str) -> Tensor:
    """Logits of classes as they are, or as probabilities; a single one is that of a yes."""
    return logits if gives == "logit" else logits.sigmoid() if logits.shape[-1] == 1 else logits.softmax(-1)


def best_device() -> torch.device:
    """The accelerator of this process where there is one, else the CPU."""
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
