"""The log-probabilities of a rollout under policy and reference, and what follows from them.

Each function takes the PPOTrainer, of which it reads only what is public.
Letters at the end of a tensor's name are its shape: B rows of this process, R response tokens, N
response tokens of all rows.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import Trainer

from runner.generate.sampler import whole
from runner.loss import kl_estimate
from runner.ppo.arithmetic import importance_ratios
from runner.ppo.batching import MicroBatch
from runner.ppo.figures import importance_figures
from runner.ppo.passes import micro_batches
from runner.ppo.preparation import as_list
from runner.ppo.rollout import Rollout


@torch.no_grad()
def compute_logprobs(trainer: Trainer, rollout: Rollout) -> None:
    """Fill in the log-probabilities of policy and reference, and the estimate of their KL."""
    args = trainer.args
    batches = micro_batches(trainer, rollout)
    with trainer.accelerator.autocast(), whole(*as_list(trainer.reference)):
        if not rollout.has_logprobs:
            for batch in batches:
                logprobs_N = trainer.actor_critic.logprobs(batch, args.temperature)
                batch.assign(rollout.logprobs_BR, logprobs_N)
        if args.penalises_kl:
            _compute_ref_logprobs(trainer, rollout, batches)
    if rollout.sampler_logprobs_BR is not None:
        _weigh_by_importance(trainer, rollout, rollout.sampler_logprobs_BR[rollout.mask_BR])
    if args.penalises_kl:
        kl_BR = kl_estimate(rollout.logprobs_BR, rollout.ref_logprobs_BR, args.kl_estimator)
        rollout.kl_BR = kl_BR * rollout.mask_BR


def _compute_ref_logprobs(
    trainer: Trainer, rollout: Rollout, batches: Sequence[MicroBatch]
) -> None:
    """Fill in the log-probabilities of the reference.

    That is a model of its own where there is one. Else it is the policy's model without its
    adapter, or with the adapter that it began with.
    """
    actor_critic = trainer.actor_critic
    if trainer.ref_logprobs:
        reference: Callable[[MicroBatch, float], Tensor] = trainer.ref_logprobs
        adapter = actor_critic.policy_adapter
    else:
        reference = actor_critic.reference_logprobs
        adapter = actor_critic.start_adapter
    with actor_critic.adapter(adapter):  # once, not for each batch
        for batch in batches:
            batch.assign(rollout.ref_logprobs_BR, reference(batch, trainer.args.temperature))


def _weigh_by_importance(trainer: Trainer, rollout: Rollout, sampler_logprobs_N: Tensor) -> None:
    """Weight the losses of tokens that another sampler drew by their truncated ratios."""
    ratios_N = importance_ratios(rollout.logprobs_BR[rollout.mask_BR], sampler_logprobs_N)
    weights_N = ratios_N.clamp(max=trainer.args.vllm_importance_sampling_clip_max)
    zeros_BR = torch.zeros_like(rollout.logprobs_BR)
    rollout.importance_BR = zeros_BR.masked_scatter(rollout.mask_BR, weights_N)
    trainer.note(importance_figures(ratios_N, trainer.accelerator.gather))
