"""A few of the completions that a training learns from, written at logged steps.

Only public ways lead here. Scorers note what rewards were asked for and what they answered
(``reward.panel``); the batch of which a trainer of TRL computes the loss has the token ids and,
with GRPO and its kin, the advantages. PPO gives whole rows (``sampled``). A trainer that shows
neither batch nor rewards, such as one that samples in another process, has no rows here.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase, Trainer

from runner.generate.episode import PLAYED
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


@dataclass(frozen=True)
class ScoredCompletion:
    """One of the completions that rewards were asked for together."""

    rollout: ScoredCompletions
    place: int

    @property
    def prompt(self) -> Any:
        return self._episode.get("prompt", self.rollout.columns["prompts"][self.place])

    @property
    def completion(self) -> Any:
        """The text or the turns; of an episode all turns, also those of its environment."""
        return self._episode.get("completion", self.rollout.columns["completions"][self.place])

    @property
    def prompt_ids(self) -> list[int] | None:
        """The tokens of the prompt, where they are known."""
        return self._episode.get("prompt_ids")

    @property
    def rewards(self) -> dict[str, float | None]:
        return self.rollout.earned(self.place)

    @property
    def _episode(self) -> JsonObject:
        """The episode as ``Episode.shown`` gives it; empty where there is none."""
        episodes = self.rollout.columns.get(PLAYED)
        episode: JsonObject = episodes[self.place] if episodes else {}
        return episode


@dataclass(eq=False)
class StepSamples:
    """The completions of the current step, of which ``write`` adds a few rows to a file."""

    path: Path
    tokenizer: PreTrainedTokenizerBase
    scored: ScoredCompletions  # what rewards were asked for last, also in an evaluation
    weights: Mapping[str, float]  # of the rewards of the config; those of environments have 1
    # Those to be trained on; a step may sample several times.
    rollouts: list[ScoredCompletions] = field(default_factory=list)
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
            del self.rollouts[:-1]  # several steps may be trained on the last one

    def add_batch(self, batch: Mapping[str, Any]) -> None:
        """Note a batch of which the loss is computed."""
        self._take_scored()
        if all(name in batch for name in (*PROMPT, *COMPLETION)):
            # Without what else is in it, such as images.
            read = {name: batch[name] for name in (*PROMPT, *COMPLETION)}
            self.batches.append({**read, "advantages": batch.get("advantages")})

    def _take_scored(self) -> None:
        if self.scored.columns:
            self.rollouts.append(ScoredCompletions(self.scored.columns, self.scored.answers))
            self.scored.clear()

    @property
    def rollout(self) -> ScoredCompletions:
        """The one that this process trains on now."""
        return self.rollouts[-1] if self.rollouts else ScoredCompletions()

    def earned(self) -> list[float]:
        """The reward of each completion of the rollout that this process trains on now.

        Empty where nobody was asked about it.
        """
        self._take_scored()
        return [self._total(completion) for completion in _completions_of(self.rollout)]

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
        elif self.rollouts:
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
        by_tokens: dict[tuple[int, ...], list[ScoredCompletion]] = {}
        for rollout in self.rollouts:
            all_ids = rollout.columns.get("completion_ids") or ()
            for completion, ids in zip(_completions_of(rollout), all_ids, strict=False):
                by_tokens.setdefault(tuple(without_padding(ids, pad)), []).append(completion)
        for batch in self.batches:
            for trained in read_batch(batch, pad):
                key = tuple(without_padding(trained.ids, pad))
                scored = self._find_scored(by_tokens.get(key, []), trained, trainer)
                if scored is None:
                    prompt = self.tokenizer.decode(trained.prompt_ids, skip_special_tokens=True)
                    text = self.tokenizer.decode(trained.ids, skip_special_tokens=True)
                    row: JsonObject = {"prompt": prompt, "completion": text, "rewards": {}}
                else:
                    row = self._describe(scored)
                finish = finish_of(row["completion"], trained.ids, ends)
                yield {
                    **row,
                    "advantage": trained.advantage,
                    "tokens": len(trained.ids),
                    "finish": finish,
                }

    def _find_scored(
        self,
        candidates: Sequence[ScoredCompletion],
        trained: TrainedCompletion,
        trainer: Trainer,
    ) -> ScoredCompletion | None:
        """The scored completion that was trained, among those of the same tokens.

        Where they answer several prompts, the tokens of the prompt decide, and where these are the
        same, too, the advantage.
        """
        if not candidates:
            return None
        prompts = [candidate.prompt for candidate in candidates]
        if any(prompt != prompts[0] for prompt in prompts):
            arguments = {
                "tools": getattr(trainer, "tools", None),
                TEMPLATE_ARGUMENTS: getattr(trainer.args, "chat_template_kwargs", None),
            }
            same = []
            for candidate in candidates:
                ids = candidate.prompt_ids
                if ids is None:
                    ids = encode_prompt(self.tokenizer, candidate.prompt, arguments)
                if list(ids) == trained.prompt_ids:
                    same.append(candidate)
            candidates = same
        if not candidates or trained.advantage is None:
            return candidates[0] if candidates else None
        size = getattr(trainer, "num_generations", 1)
        return min(candidates, key=partial(self._distance, trained.advantage, size))

    def _distance(self, advantage: float, size: int, candidate: ScoredCompletion) -> float:
        """The distance of a candidate from an advantage; infinite for one of another sign."""
        first = candidate.place // size * size
        group = list(_completions_of(candidate.rollout))[first : first + size]
        above_mean = self._total(candidate) - fmean(map(self._total, group))
        if above_mean * advantage < 0:
            return math.inf
        return abs(above_mean - advantage)

    def _rows_of_rewards(self, ends: Sequence[int]) -> Iterator[JsonObject]:
        """The completions that were scored last, of a trainer whose batch is not shown."""
        all_ids = self.rollout.columns.get("completion_ids")
        for completion in _completions_of(self.rollout):
            row = self._describe(completion)
            if all_ids:
                completion_ids = all_ids[completion.place]
                ids = without_padding(completion_ids, self.tokenizer.pad_token_id)
                stops = [index for index, token in enumerate(completion_ids) if token in ends]
                if stops:
                    ids = completion_ids[: stops[0] + 1]
                row["tokens"] = len(ids)
                row["finish"] = finish_of(row["completion"], ids, ends)
            yield row

    def _total(self, completion: ScoredCompletion) -> float:
        """The weighted sum of what a completion has earned."""
        total = 0.0
        for name, value in completion.rewards.items():
            total += self.weights.get(name, 1.0) * (value or 0.0)
        return total

    def _describe(self, completion: ScoredCompletion) -> JsonObject:
        """The prompt, completion and rewards of a scored completion; the rest is unknown yet."""
        return {
            "prompt": completion.prompt,
            "completion": completion.completion,
            "rewards": completion.rewards,
            "reward": self._total(completion),
            "advantage": None,
            "tokens": None,
            "finish": None,
        }


def _completions_of(rollout: ScoredCompletions) -> Iterator[ScoredCompletion]:
    for place in range(len(rollout.columns.get("completions", ()))):
        yield ScoredCompletion(rollout, place)


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
