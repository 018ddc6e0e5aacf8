"""Rewards for each step of a completion. Whole answers are in ``rule`` and ``outcome``.

A step is what stands between two separators; blank ones do not count. PPO credits each where the step ends, if the
separator is that of ``trainer.args.step_separator``; every trainer takes one number made of them.
"""

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoModelForTokenClassification

from runner.io.files import shipped
from runner.io.turns import Completion, text_of, turns_for
from runner.reward.outcome import Gives, ScoringModel, to_scores, translate_errors
from runner.reward.reading import as_if_alone

Aggregate = Literal["last", "min", "mean", "product"]


def sorted_steps(completions: Sequence[Completion], digits: Sequence[str]) -> list[list[float]]:
    """For each digit of an answer its share of the reward if it is in the right place, else nothing.

    What is missing or too much costs a half, at the last digit, so that the sum is that of ``rule.sorted_digits``.
    """
    rewards = []
    for completion, line in zip(completions, digits, strict=True):
        given, right = to_steps(text_of(completion), " "), sorted(line.split())
        places = right + [""] * len(given)
        steps = [(digit == other) / len(right) for digit, other in zip(given, places, strict=False)] or [0.0]
        if len(given) != len(right):
            steps[-1] -= 0.5
        rewards.append(steps)
    return rewards


def to_steps(text: str, separator: str) -> list[str]:
    """The steps of a text, without the space around them."""
    return [step.strip() for step in text.split(separator) if step.strip()]


def aggregate(scores: Sequence[float], by: Aggregate) -> float:
    """One number of the scores of steps (Lightman et al. 2023 compare the product and the smallest)."""
    return {"last": scores[-1], "min": min(scores), "mean": sum(scores) / len(scores), "product": math.prod(scores)}[by]


@dataclass(eq=False)
class ProcessModel(ScoringModel):
    """The score of each step of a completion by a model, or one number of them.

    A token classification model, as TRL's PRMTrainer makes it, is read at the token that ends a step, all steps in one
    pass; a sequence classification model is shown the answer up to each step. ``label`` is the class that means right,
    the last one unless another is named. ``aggregate`` null gives the score of every step, which only PPO takes.
    """

    _: KW_ONLY
    separator: str = "\n"
    aggregate: Aggregate | None = "min"
    gives: Gives = "probability"
    batch_size: int = 16

    def __post_init__(self) -> None:
        key, options = "reward.process_model", {"revision": self.revision, "trust_remote_code": self.trust_remote_code}
        with translate_errors(self.path, f"{key}.path"):
            config = AutoConfig.from_pretrained(shipped(self.path), **options)
        self.reads_tokens = "TokenClassification" in (config.architectures or [""])[0]
        self.label = config.num_labels - 1 if self.label is None else self.label
        self.load(key, AutoModelForTokenClassification if self.reads_tokens else AutoModelForSequenceClassification)

    def __call__(
        self, prompts: Sequence[Completion], completions: Sequence[Completion]
    ) -> list[float] | list[list[float]]:
        """One number per completion, or without ``aggregate`` one for each of its steps; a blank one is one step."""
        answers = [to_steps(text_of(completion), self.separator) or [""] for completion in completions]
        rows: list[tuple[list[int], list[int]]] = []  # ids, and where the steps end
        owners: list[int] = []
        close = self.tokenizer(self.separator, add_special_tokens=False)["input_ids"]
        for index, (prompt, steps) in enumerate(zip(prompts, answers, strict=True)):
            if self.tokenizer.chat_template and not isinstance(prompt, str):
                opened = {"add_generation_prompt": True, "return_dict": False}
                ids = list(self.tokenizer.apply_chat_template(turns_for(self.tokenizer, prompt), **opened))
            else:
                text = prompt if isinstance(prompt, str) else "\n".join(turn["content"] for turn in prompt)
                ids = list(self.tokenizer(text)["input_ids"])
            ends = []
            for step in steps:
                ids += [*self.tokenizer(step, add_special_tokens=False)["input_ids"], *close]
                ends.append(len(ids) - 1)
            read = [(ids, ends)] if self.reads_tokens else [(ids[: end + 1], [end]) for end in ends]
            rows += read
            owners += [index] * len(read)
        scores: list[list[float]] = [[] for _ in answers]
        for start in range(0, len(rows), self.batch_size):
            found = self._read(rows[start : start + self.batch_size])
            for owner, row in zip(owners[start : start + self.batch_size], found, strict=True):
                scores[owner] += row
        return scores if self.aggregate is None else [aggregate(each, self.aggregate) for each in scores]

    @torch.no_grad()
    def _read(self, rows: Sequence[tuple[list[int], list[int]]]) -> list[list[float]]:
        """The scores at the ends of steps; what is too long loses its beginning, so that every end stays in sight."""
        cuts = [max(0, len(ids) - (self.longest or len(ids))) for ids, _ in rows]
        kept = [ids[cut:] for (ids, _), cut in zip(rows, cuts, strict=True)]
        batch = self.tokenizer.pad({"input_ids": kept}, padding_side="right", return_tensors="pt").to(self.model.device)
        with as_if_alone(self.model, batch.pop("input_ids"), batch["attention_mask"]) as ids_BT:
            logits = self.model(input_ids=ids_BT, **batch).logits.float()
        scores = to_scores(logits, self.gives)[..., self.column].tolist()
        if not self.reads_tokens:
            return [[score] for score in scores]
        places = [[max(0, end - cut) for end in ends] for (_, ends), cut in zip(rows, cuts, strict=True)]
        return [[row[end] for end in ends] for row, ends in zip(scores, places, strict=True)]
