"""A few of the completions that a training learns from, written at logged steps.

Only public ways lead here. Scorers note what rewards were asked for and what they answered
(``reward.panel``); the batch of which a trainer of TRL computes the loss has the token ids and,
with GRPO and its kin, the advantages. PPO gives whole rows (``sampled``). A trainer that shows
neither batch nor rewards, such as one that samples in another process, has no rows here.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase, Trainer

from runner.io.files import JsonObject, replace_rows
from runner.io.turns import TEMPLATE_ARGUMENTS, Turns, ends_with_tool
from runner.model.encoding import encode_prompt, stop_ids
from runner.reward.panel import ScoredCompletions, watch_reward
from runner.run.history import ROLLOUT, plain_text

SHOWN = 4  # completions of a step
# Of a longer training only so many logged steps are written, evenly spread.
MAX_STEPS = 500
MAX_CHARACTERS = 4000  # of a prompt, and of a completion
# What a completion is read from in a batch of TRL's.
PROMPT = ("prompt_ids", "prompt_mask")
COMPLETION = ("completion_ids", "completion_mask")


@dataclass(frozen=True)
class TrainedCompletion:
    """One completion of a batch whose loss was computed, as token ids without padding."""

    prompt_ids: list[int]
    ids: list[int]
    advantage: float | None


@dataclass(eq=False)
class StepSamples:
    """The completions of the current step, of which ``write`` adds a few rows to a file."""

    path: Path
    tokenizer: PreTrainedTokenizerBase
    scored: ScoredCompletions  # what rewards were asked for last, also in an evaluation
    weights: Mapping[str, float]  # of the rewards of the config; those of environments have 1
    rollout: ScoredCompletions = field(default_factory=ScoredCompletions)  # to be trained on
    step: int = -1  # that ``batches`` belong to
    batches: list[Mapping[str, Any]] = field(default_factory=list)

    def _watch(self, trainer: Trainer) -> None:
        """Have the rewards noted that a trainer has beside ours, which environments give."""
        functions = getattr(trainer, "reward_funcs", [])
        names = getattr(trainer, "reward_func_names", [])
        for index in range(len(self.weights), len(names)):
            functions[index] = watch_reward(names[index], functions[index], self.scored)

    def begin(self, trainer: Trainer) -> None:
        """Forget what an evaluation has scored, and the batches of a step that is over."""
        self.scored.clear()
        if self.step < 0:
            self._watch(trainer)
        if trainer.state.global_step != self.step:
            self.step = trainer.state.global_step
            self.batches.clear()

    def add_batch(self, batch: Mapping[str, Any]) -> None:
        """Note a batch of which the loss is computed."""
        self._take_scored()
        if all(name in batch for name in (*PROMPT, *COMPLETION)):
            # Without what else is in it, such as images.
            read = {name: batch[name] for name in (*PROMPT, *COMPLETION)}
            self.batches.append({**read, "advantages": batch.get("advantages")})

    def _take_scored(self) -> None:
        if self.scored.columns:
            self.rollout = ScoredCompletions(self.scored.columns, self.scored.answers)
            self.scored.clear()

    def earned(self) -> list[float]:
        """The reward of each completion of the rollout that this process trains on now.

        Empty where nobody was asked about it.
        """
        self._take_scored()
        completions = self.rollout.columns.get("completions", ())
        return [self._describe_scored(place)["reward"] for place in range(len(completions))]

    def write(self, trainer: Trainer) -> None:
        """Write rows of the step that is logged, in the place of those of an earlier try."""
        self._take_scored()
        if not trainer.is_world_process_zero() or not is_due(trainer):
            return
        candidates: Sequence[JsonObject] = []
        if hasattr(trainer, "sampled"):  # by PPO
            candidates = trainer.sampled
        elif self.batches:
            candidates = list(self._rows_of_batches(trainer))
        elif self.rollout.columns:
            candidates = list(self._rows_of_rewards(_ends_of(trainer)))
        rows = []
        for candidate in choose_rows(candidates):
            row = {"step": trainer.state.global_step, "source": ROLLOUT, **candidate}
            row["prompt"] = shorten_side(row["prompt"])
            row["completion"] = shorten_side(row["completion"])
            rows.append(row)
        replace_rows(self.path, rows, same=["step", "source"])

    def _rows_of_batches(self, trainer: Trainer) -> Iterator[JsonObject]:
        """The completions that the step was trained on, with the rewards where there are some."""
        ends = _ends_of(trainer)
        pad = self.tokenizer.pad_token_id
        places: dict[tuple[int, ...], list[int]] = {}  # of scored completions, by their tokens
        for place, ids in enumerate(self.rollout.columns.get("completion_ids") or ()):
            places.setdefault(tuple(without_padding(ids, pad)), []).append(place)
        for batch in self.batches:
            for trained in read_batch(batch, pad):
                key = tuple(without_padding(trained.ids, pad))
                scored_place = self._find_scored(places.get(key, []), trained.prompt_ids, trainer)
                if scored_place is None:
                    prompt = self.tokenizer.decode(trained.prompt_ids, skip_special_tokens=True)
                    text = self.tokenizer.decode(trained.ids, skip_special_tokens=True)
                    row: JsonObject = {"prompt": prompt, "completion": text, "rewards": {}}
                else:
                    row = self._describe_scored(scored_place)
                finish = finish_of(row["completion"], trained.ids, ends)
                yield {
                    **row,
                    "advantage": trained.advantage,
                    "tokens": len(trained.ids),
                    "finish": finish,
                }

    def _find_scored(
        self, places: Sequence[int], prompt_ids: list[int], trainer: Trainer
    ) -> int | None:
        """The scored completion that was trained, among those of the same tokens.

        Where they answer several prompts, the tokens of the prompt decide.
        """
        prompts = self.rollout.columns.get("prompts", ())
        if places and all(prompts[place] == prompts[places[0]] for place in places):
            return places[0]
        arguments = {
            "tools": getattr(trainer, "tools", None),
            TEMPLATE_ARGUMENTS: getattr(trainer.args, "chat_template_kwargs", None),
        }
        for place in places:
            if encode_prompt(self.tokenizer, prompts[place], arguments) == prompt_ids:
                return place
        return None

    def _rows_of_rewards(self, ends: Sequence[int]) -> Iterator[JsonObject]:
        """The completions that were scored last, of a trainer whose batch is not shown."""
        columns = self.rollout.columns
        all_ids = columns.get("completion_ids")
        for place in range(len(columns["completions"])):
            row = self._describe_scored(place)
            if all_ids:
                ids = without_padding(all_ids[place], self.tokenizer.pad_token_id)
                stops = [index for index, token in enumerate(all_ids[place]) if token in ends]
                if stops:
                    ids = all_ids[place][: stops[0] + 1]
                row["tokens"] = len(ids)
                row["finish"] = finish_of(row["completion"], ids, ends)
            yield row

    def _describe_scored(self, place: int) -> JsonObject:
        """The prompt, completion and rewards of a scored completion; the rest is unknown yet."""
        columns = self.rollout.columns
        rewards = self.rollout.earned(place)
        total = 0.0
        for name, value in rewards.items():
            total += self.weights.get(name, 1.0) * (value or 0.0)
        return {
            "prompt": columns["prompts"][place],
            "completion": columns["completions"][place],
            "rewards": rewards,
            "reward": total,
            "advantage": None,
            "tokens": None,
            "finish": None,
        }


def _ends_of(trainer: Trainer) -> list[int]:
    """The tokens that end a completion."""
    return stop_ids(trainer.accelerator.unwrap_model(trainer.model))


def is_due(trainer: Trainer) -> bool:
    """True for the first logged step and MAX_STEPS others, the same ones after a resume."""
    state = trainer.state
    previous = 0
    for line in state.log_history:
        if "loss" in line:
            previous = line["step"]
    shares = min(MAX_STEPS, state.max_steps)
    share = state.global_step * shares // state.max_steps
    return not previous or share > previous * shares // state.max_steps


def read_batch(batch: Mapping[str, Tensor], pad: int | None) -> Iterator[TrainedCompletion]:
    """The completions of a batch as a trainer of TRL gives it to ``compute_loss``."""
    advantages: list[float | None] = [None] * len(batch["prompt_ids"])
    known = batch.get("advantages")
    if known is not None and known.dim() == 1:
        advantages = known.tolist()
    for row, advantage in enumerate(advantages):
        prompt_ids, prompt_mask = (batch[name][row] for name in PROMPT)
        ids, mask = (batch[name][row] for name in COMPLETION)
        real_ids = ids[mask.bool()].tolist()
        if not real_ids:  # it was cut off, and then all of it may be masked
            real_ids = without_padding(ids.tolist(), pad)
        yield TrainedCompletion(prompt_ids[prompt_mask.bool()].tolist(), real_ids, advantage)


def without_padding(ids: Sequence[int], pad: int | None) -> list[int]:
    """Token ids up to the last that is no padding."""
    length = len(ids)
    while length and ids[length - 1] == pad:
        length -= 1
    return list(ids[:length])


def finish_of(completion: str | Turns, ids: Sequence[int], ends: Sequence[int]) -> str:
    """The reason why a completion ended: tool (nothing follows one), stop, or length."""
    if ends_with_tool(completion):
        return "tool"
    return "stop" if ids and ids[-1] in ends else "length"


def choose_rows(candidates: Sequence[JsonObject]) -> list[JsonObject]:
    """At most SHOWN completions: the best and the worst one of each of the first prompts."""
    groups: dict[str, list[JsonObject]] = {}
    for row in candidates:
        groups.setdefault(repr(row["prompt"]), []).append(row)
    chosen: list[JsonObject] = []
    for group in groups.values():
        best = max(group, key=_merit)
        worst = min(group, key=_merit)
        chosen.append(best)
        if _merit(worst) < _merit(best):
            chosen.append(worst)
    return chosen[:SHOWN]


def _merit(row: JsonObject) -> float:
    """The figure by which one completion is better than another one for the same prompt."""
    if row["advantage"] is not None:
        return float(row["advantage"])
    return float(row.get("reward") or 0.0)


def shorten_side(side: Any) -> Any:
    """A prompt or a completion for a file; where it is too long, a text with its ends.

    What is no JSON, such as an image in memory, is only named.
    """
    json_text = json.dumps(side, ensure_ascii=False, default=lambda medium: type(medium).__name__)
    side = json.loads(json_text)
    if len(json_text) <= MAX_CHARACTERS:
        return side
    text = plain_text(side)
    half = MAX_CHARACTERS // 2
    if len(text) > MAX_CHARACTERS:
        left_out = len(text) - 2 * half
        text = f"{text[:half]} [... {left_out} characters ...] {text[-half:]}"
    if isinstance(side, str):
        return text
    return [{"role": side[-1]["role"], "content": text}]
