"""Dynamic sampling for TRL's trainers: prompts that teach nothing give way to others.

``PPOTrainer`` does it by itself (``ppo.dynamic_sampling``). A trainer of TRL samples and asks its
rewards inside of ``training_step``, where rows can no longer be exchanged. So the runner does both
before, and the trainer is shown what came out: through the public ``model.generate``, which gives
the completions, and ``reward_funcs``, which give what they earned. Everything else is the
trainer's own, also its tokens of prompts, which are compared with those here.

Letters at the end of a tensor's name are its shape: B completions of this process, F rewards, P
prompt tokens, R response tokens.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from accelerate.utils import gather
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase, Trainer
from trl.chat_template_utils import parse_response
from trl.models import unwrap_model_for_generation

from runner.errors import Fault, RunnerError
from runner.generate.completion import Completion, to_completions
from runner.generate.padding import TOKENS_PER_PASS, pad
from runner.generate.sampler import Responses, cut, seeded_generator
from runner.io.temporary import temporarily
from runner.io.turns import TEMPLATE_ARGUMENTS, Row
from runner.model.encoding import encode_prompt, tokenizer_of
from runner.reward.panel import ScoredCompletions, find_differing_groups, watch_reward
from runner.training.curriculum import RowCurriculum, own_share

# From completions, their rows, the state of the training and a number of tokens to the rewards of
# each token [B, R] and the sums of each reward [B, F], as ``generate.earned.Rewards`` gives them.
Score: TypeAlias = Callable[..., tuple[Tensor, Tensor]]

EXCHANGED = "sampling/prompts_exchanged"


@dataclass
class SampledGroups:
    """Rows in groups of one prompt each, their completions, and what these earned."""

    rows: list[Row]
    completions: list[Completion]
    rewards_BF: Tensor  # NaN where a reward does not apply
    totals_B: Tensor  # the weighted sums

    def differ(self, size: int) -> list[bool]:
        """For each group true where its completions earned different rewards."""
        differ: list[bool] = find_differing_groups(self.totals_B, size).tolist()
        return differ

    def replace(self, group: int, size: int, further: "SampledGroups", index: int) -> None:
        """Put a group of ``further`` in the place of one of these."""
        here = slice(group * size, (group + 1) * size)
        there = slice(index * size, (index + 1) * size)
        self.rows[here] = further.rows[there]
        self.completions[here] = further.completions[there]
        self.rewards_BF[here] = further.rewards_BF[there]
        self.totals_B[here] = further.totals_B[there]


@dataclass
class DynamicSampling:
    """Exchanges prompts, ``times`` in a row, whose completions all earned the same.

    A prompt may be exchanged only for the one drawn for its own place, so that the prompts do not
    depend on the number of processes. What is drawn follows from the seed and the step alone, and
    a resume needs no saved state.
    """

    times: int
    seed: int
    score: Score
    scored: ScoredCompletions  # what other parts see as the completions that rewards were asked for
    curriculum: RowCurriculum | None = None  # by whose weights rows are drawn
    micro_batches: int = 0  # of this process so far
    step: int = -1
    generations: int = 0  # in this step

    @contextmanager
    def exchanging(self, trainer: Trainer, rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
        """The rows of a micro-batch, for whose completions the trainer asks inside."""
        args = trainer.args
        # TRL samples for so many micro-batches at once, and hands out its shares of them.
        is_due = self.micro_batches % (args.steps_per_generation * trainer.num_iterations) == 0
        self.micro_batches += 1
        if not is_due:
            yield rows
            return
        if trainer.state.global_step != self.step:
            self.step = trainer.state.global_step
            self.generations = 0
        self.generations += 1
        groups, exchanged = self._sample_groups(trainer, rows)
        with (
            _replaying_completions(trainer, groups.completions),
            temporarily(trainer, reward_funcs=self._replayed_rewards(trainer, groups, exchanged)),
        ):
            yield groups.rows

    def _sample_groups(self, trainer: Trainer, rows: Sequence[Row]) -> tuple[SampledGroups, int]:
        """The groups to train on, and the number of those of all processes that are exchanged."""
        size = trainer.num_generations
        numbers: list[int] = []
        if self.curriculum is not None:
            prompts = len(rows) // size
            numbers = self.curriculum.draw(trainer, prompts, self.step, self.generations)
            rows = _rows_of(trainer, numbers)
        groups = _sample(trainer, rows, self.score)
        if self.curriculum is not None:
            self.curriculum.record(trainer, numbers, groups.totals_B)
        exchanged = 0
        for number in range(self.times):
            differ = groups.differ(size)
            if not _total(trainer, differ.count(False)):
                break
            drawn = self._draw_rows(trainer, len(differ), number)
            alike = [index for index, differs in enumerate(differ) if not differs]
            scores_B = torch.full((len(rows),), math.nan)
            if alike:
                further_rows = _rows_of(trainer, [drawn[group] for group in alike])
                further = _sample(trainer, further_rows, self.score)
                further_differ = further.differ(size)
                scores_PG = scores_B.view(-1, size)
                further_scores_PG = further.totals_B.view(-1, size)
                for index, group in enumerate(alike):
                    scores_PG[group] = further_scores_PG[index]
                    if further_differ[index]:
                        groups.replace(group, size, further, index)
                        exchanged += 1
            if self.curriculum is not None:
                self.curriculum.record(trainer, drawn, scores_B)
        return groups, _total(trainer, exchanged)

    def _replayed_rewards(
        self, trainer: Trainer, groups: SampledGroups, exchanged: int
    ) -> list[Callable[..., Sequence[float | None]]]:
        """Rewards that answer with what groups have earned, and log the number of exchanges."""
        rewards: list[Callable[..., Sequence[float | None]]] = []
        for name, answer_B in zip(trainer.reward_func_names, groups.rewards_BF.T, strict=True):
            answer = [None if math.isnan(value) else value for value in answer_B.tolist()]
            noted = {} if rewards else {EXCHANGED: float(exchanged)}
            replay = functools.partial(_replay_reward, answer, noted)
            rewards.append(watch_reward(name, replay, self.scored))
        return rewards

    def _draw_rows(self, trainer: Trainer, prompts: int, number: int) -> list[int]:
        """The numbers of rows of the dataset, one for each of the prompts of this process."""
        args = trainer.args
        if self.curriculum is not None:
            purpose = (self.step, self.generations, number)
            return self.curriculum.draw(trainer, prompts, *purpose)
        generator = seeded_generator(self.seed, "further", self.step, self.generations, number)
        total = prompts * args.world_size
        everyone = torch.randint(len(trainer.train_dataset), (total,), generator=generator)
        return own_share(everyone.tolist(), args)


def _rows_of(trainer: Trainer, numbers: Sequence[int]) -> list[Row]:
    """Rows of the dataset, each as often as the trainer samples a completion of it."""
    rows: list[Row] = []
    for number in numbers:
        rows += [trainer.train_dataset[number]] * trainer.num_generations
    return rows


def _total(trainer: Trainer, count: int) -> int:
    counts = gather(torch.tensor([count], device=trainer.args.device))
    return int(counts.sum())


@torch.no_grad()
def _sample(trainer: Trainer, rows: Sequence[Row], score: Score) -> SampledGroups:
    """A completion for each row, sampled as the trainer would, and what it earned."""
    tokenizer = tokenizer_of(trainer.processing_class)
    template_arguments = {TEMPLATE_ARGUMENTS: trainer.args.chat_template_kwargs or {}}
    prompts = [encode_prompt(tokenizer, row["prompt"], template_arguments) for row in rows]
    ids_BP, mask_BP = pad(prompts, trainer.args.device, side="left")
    with unwrap_model_for_generation(
        trainer.model_wrapped,
        trainer.accelerator,
        generation_kwargs=trainer.generation_kwargs,
        gradient_checkpointing_kwargs=trainer.args.gradient_checkpointing_kwargs,
    ) as model:
        tokens_BR = model.generate(
            input_ids=ids_BP, attention_mask=mask_BP, generation_config=trainer.generation_config
        )[:, ids_BP.shape[1] :].cpu()
    stop_ids = trainer.eos_token_ids
    tokens = [cut(tokens_R, stop_ids) for tokens_R in tokens_BR]
    responses = Responses(tokens, [torch.zeros(len(tokens_R)) for tokens_R in tokens])
    completions = to_completions(tokenizer, rows, prompts, responses, stop_ids)
    # The attribute by which TRL, too, finds out that answers have parts.
    schema = getattr(tokenizer, "response_schema", None)
    if getattr(tokenizer, "response_template", schema) is not None:
        completions = [_parse(completion, tokenizer) for completion in completions]
    earned_BR, rewards_BF = score(completions, rows, trainer.state, TOKENS_PER_PASS)
    return SampledGroups(list(rows), completions, rewards_BF, earned_BR.nansum(1))


def _parse(completion: Completion, tokenizer: PreTrainedTokenizerBase) -> Completion:
    """The completion of a chat with its thoughts apart, as the trainer gives it to rewards."""
    if isinstance(completion.prompt, str):
        return completion
    turn = parse_response(tokenizer, completion.token_ids, prefix=completion.prompt_ids)
    return replace(completion, turns=[turn])


@contextmanager
def _replaying_completions(trainer: Trainer, completions: Sequence[Completion]) -> Iterator[None]:
    """Have the model of a trainer answer with what was sampled before."""
    model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
    before = vars(model).get("generate")  # the runner's sampler, where it is the one
    model.generate = functools.partial(_replay_completions, completions, trainer)
    try:
        yield
    finally:
        del model.generate  # below it is the method of the class
        if before is not None:
            model.generate = before


def _replay_completions(
    completions: Sequence[Completion],
    trainer: Trainer,
    *,
    input_ids: Tensor,
    attention_mask: Tensor,
    **_: Any,
) -> Tensor:
    """The prompts with the completions, as ``generate`` gives them.

    Raises RunnerError where the trainer has other tokens of the prompts.
    """
    for completion, ids_P, mask_P in zip(completions, input_ids, attention_mask, strict=True):
        if ids_P[mask_P.bool()].tolist() != list(completion.prompt_ids):
            raise RunnerError(
                Fault(
                    where="trainer.dynamic_sampling",
                    found="the trainer encodes a prompt otherwise than the runner",
                    expected="the same tokens, for which completions were sampled",
                    fix="=0",
                )
            )
    tokens = [torch.tensor(completion.token_ids) for completion in completions]
    padding = trainer.generation_config.pad_token_id
    tokens_BR = pad_sequence(tokens, batch_first=True, padding_value=padding)
    return torch.cat([input_ids, tokens_BR.to(input_ids.device)], 1)


def _replay_reward(
    answer: Sequence[float | None],
    noted: dict[str, float],
    *,
    log_metric: Callable[[str, float], None],
    **_: Any,
) -> Sequence[float | None]:
    for name, value in noted.items():
        log_metric(name, value)
    return answer
