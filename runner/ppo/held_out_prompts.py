"""Completions of held-out prompts: their scores in evaluations, and samples for people to read.

Each function takes the PPOTrainer, of which it reads only what is public.
Letters at the end of a tensor's name are its shape: B rows of this process.
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import Trainer
from transformers.trainer_utils import EvalLoopOutput

from runner.io.files import replace_rows
from runner.io.turns import Row
from runner.ppo.passes import kernels
from runner.ppo.preparation import as_list
from runner.ppo.random_numbers import held_out_noise
from runner.ppo.rollout import Rollout
from runner.ppo.rollout_logprobs import compute_logprobs
from runner.ppo.sampling import roll_out
from runner.ppo.scoring import score


def evaluate_held_out(trainer: Trainer, dataloader: DataLoader, set_name: str) -> EvalLoopOutput:
    """The mean figures of a completion of each prompt, of the rows of all processes."""
    args = trainer.args
    columns: dict[str, list[Tensor]] = defaultdict(list)
    table: list[dict[str, object]] = []
    for index, rows in enumerate(dataloader):
        # Batches go to the processes in turn.
        first = (index * args.world_size + args.process_index) * args.eval_batch_size
        with kernels(trainer):
            rollout = _roll_out_held_out(trainer, rows, first)
            figures = score(trainer, rollout).figures
        scores_B = figures["objective/scores"]
        table += rollout.to_table(scores_B, trainer.state.global_step, set_name)
        for name, values_B in trainer.accelerator.gather_for_metrics(figures).items():
            columns[name].append(values_B)
    metrics = {}
    for name, values in columns.items():
        metrics[f"{set_name}_{name}"] = torch.cat(values).nanmean().item()
    _write_table(trainer, gather_object(table))
    count = sum(len(scores_B) for scores_B in columns["objective/scores"])
    return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=count)


def write_samples(trainer: Trainer) -> None:
    """Write completions of the first held-out prompts into ``completions.jsonl``.

    That is ``num_sample_generations`` times in a training, whether or not it has evaluations.
    """
    if trainer.eval_dataset is None:
        return
    times = trainer.args.num_sample_generations
    state = trainer.state
    is_due = state.global_step * times % state.max_steps < times
    if not is_due:
        return
    rows: list[Row] = []
    for dataset in as_list(trainer.eval_dataset):
        rows += dataset.take(trainer.args.per_device_eval_batch_size)
    trainer.model.eval()
    with torch.no_grad():
        rollout = _roll_out_held_out(trainer, rows, first=0)
        scores_B = score(trainer, rollout).figures["objective/scores"]
    _write_table(trainer, rollout.to_table(scores_B, state.global_step, "samples"))


def _roll_out_held_out(trainer: Trainer, rows: Sequence[Row], first: int) -> Rollout:
    """A completion of each row, with its noise, which is the same at every evaluation."""
    noise_BR = held_out_noise(trainer.args, first, len(rows))
    rollout: Rollout = roll_out(trainer, rows, noise_BR)
    # Scores read the distance from the reference, and the log the ratios to another sampler.
    if trainer.args.penalises_kl or rollout.sampler_logprobs_BR is not None:
        compute_logprobs(trainer, rollout)
    return rollout


def _write_table(trainer: Trainer, table: list[dict[str, object]]) -> None:
    """Put the completions of an evaluation into the file, in the place of those of its step."""
    if trainer.is_world_process_zero():
        path = Path(trainer.args.output_dir) / "completions.jsonl"
        replace_rows(path, table, same=["step", "set"])
