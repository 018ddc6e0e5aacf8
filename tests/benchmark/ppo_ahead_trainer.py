"""A PPOTrainer whose rollouts are sampled one update ahead, in a forked process.

The weights of a fork are those of its moment, whatever the training does with its own afterwards,
and cost no transfer. The first update of each pass over the prompts is sampled in step, because
the prompts of the next pass are not known before.

Left out on purpose, because this measures whether it would pay: tools, environments, dynamic
sampling, several processes, cards (a fork cannot use them), checkpoints of what is being sampled,
and a word to the user where the sampling process fails.
"""

from __future__ import annotations

import os
import pickle
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import torch

from runner.io.turns import Row
from runner.ppo import PPOTrainer
from runner.ppo import trainer as ppo_trainer
from runner.ppo.random_numbers import rollout_noise
from runner.ppo.rollout import Rollout, SampledRows
from runner.ppo.sampling import sample_one_turn


@dataclass
class UpdateCost:
    """The seconds of one update."""

    wall: float
    trainer_cpu: float  # all threads of the training
    main_thread_cpu: float  # the wall seconds that a machine without other work would need
    sampler_cpu: float = 0.0  # the process that samples ahead
    waited: float = 0.0  # for that process, behind the update


class MeasuredTrainer(PPOTrainer):
    """PPO as it is, with the cost of each update."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.costs: list[UpdateCost] = []

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        wall = time.perf_counter()
        cpu = time.process_time()
        thread = time.thread_time()
        loss = super().training_step(*args, **kwargs)
        cost = UpdateCost(
            wall=time.perf_counter() - wall,
            trainer_cpu=time.process_time() - cpu,
            main_thread_cpu=time.thread_time() - thread,
        )
        self.costs.append(cost)
        return loss


class _SamplingAhead(PPOTrainer):
    """PPO that samples the completions of an update while it computes the one before."""

    recomputes = True  # the log-probabilities of the policy as the update begins

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.read_ahead: list[tuple[list[list[Row]], Any]] = []
        self.ready: SampledRows | None = None
        self.sampler_cpu = 0.0
        self.waited = 0.0

    def get_batch_samples(self, *args: Any) -> tuple[list[list[Row]], Any]:
        """The batch of this update, after that of the next one has been read."""
        if not self.read_ahead:
            self.read_ahead.append(super().get_batch_samples(*args))
        batches = self.read_ahead.pop()
        following = super().get_batch_samples(*args)
        if following[0]:
            self.read_ahead.append(following)
        return batches

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        ready = self.ready
        self.ready = None
        self.sampler_cpu = 0.0
        self.waited = 0.0
        with TemporaryDirectory(dir="/dev/shm") as folder:
            pid = None
            if self.read_ahead:
                (following,), _ = self.read_ahead[0]
                pid = self._fork_sampler(following, Path(folder, "sampled"))
            if ready is None:
                loss = super().training_step(*args, **kwargs)
            else:
                rollout = self._rollout_of(ready)
                with patch.object(ppo_trainer, "roll_out_groups", lambda *_: rollout):
                    loss = super().training_step(*args, **kwargs)
            if pid is not None:
                self.ready = self._collect(pid, Path(folder, "sampled"))
        return loss

    def _fork_sampler(self, rows: Sequence[Row], path: Path) -> int:
        self.model.eval()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            torch.set_num_threads(1)  # a fork has no others
            noise_BR = rollout_noise(self.args, len(rows), self.state.global_step + 1, "train")
            with torch.no_grad():
                path.write_bytes(pickle.dumps(sample_one_turn(rows, noise_BR, self)))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _collect(self, pid: int, path: Path) -> SampledRows:
        began = time.perf_counter()
        _, status, usage = os.wait4(pid, 0)
        if status:
            raise RuntimeError(f"the process that samples ahead ended with {status}")
        self.waited = time.perf_counter() - began
        self.sampler_cpu = usage.ru_utime + usage.ru_stime
        sampled: SampledRows = pickle.loads(path.read_bytes())
        return sampled

    def _rollout_of(self, sampled: SampledRows) -> Rollout:
        rollout = Rollout(sampled.rows, sampled.completions, self.args.device)
        logprobs_N = torch.cat(sampled.logprobs)
        logprobs_BR = torch.zeros_like(rollout.logprobs_BR)
        logprobs_BR = logprobs_BR.masked_scatter(rollout.mask_BR, logprobs_N)
        if self.recomputes:
            rollout.sampler_logprobs_BR = logprobs_BR
        else:
            rollout.logprobs_BR = logprobs_BR
            rollout.has_logprobs = True
        return rollout


class WeightedAhead(MeasuredTrainer, _SamplingAhead):
    """Ahead, with the losses of tokens weighted by their importance, as beside vLLM."""

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        loss = super().training_step(*args, **kwargs)
        self.costs[-1].sampler_cpu = self.sampler_cpu
        self.costs[-1].waited = self.waited
        return loss


class UnweightedAhead(WeightedAhead):
    """Ahead, with the sampler's log-probabilities as the old ones of the surrogate's ratio."""

    recomputes = False
