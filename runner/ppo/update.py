"""The update of a rollout: values and advantages, then the optimizer steps of policy and critic.

Each function takes the PPOTrainer, of which it reads only what is public.
Letters at the end of a tensor's name are its shape: B rows of this process, R response tokens, N
response tokens of all rows.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import Trainer

from runner.ppo.arithmetic import explained_variance, generalised_advantages, whiten
from runner.ppo.batching import MicroBatch
from runner.ppo.figures import update_figures
from runner.ppo.losses import policy_loss, value_loss
from runner.ppo.passes import micro_batches
from runner.ppo.random_numbers import deal_minibatches
from runner.ppo.rollout import Rollout


def update(trainer: Trainer, model: nn.Module, rollout: Rollout, rewards_BR: Tensor) -> Tensor:
    """Take the optimizer steps of a rollout but for the last, whose gradient is left."""
    args = trainer.args
    minibatches = deal_minibatches(args, len(rollout.sequences), trainer.state.global_step)
    # A mini-batch's loss is a mean over the tokens, or the rows, that all processes have in it.
    if args.loss_average == "token":
        counts = [rollout.count_tokens(rows) for rows in minibatches]
        weights_BR = rollout.mask_BR / 1
    else:
        counts = [len(rows) for rows in minibatches]
        weights_BR = rollout.mask_BR / rollout.mask_BR.sum(1, keepdim=True)
    counts_here = torch.tensor(counts, dtype=torch.float32, device=args.device)
    sizes = trainer.total(counts_here).tolist()
    rollout.weights_BR = weights_BR / sizes[0]
    compute_advantages(trainer, rollout, rewards_BR, minibatches[0])
    for number, (rows, size) in enumerate(zip(minibatches, sizes, strict=True), 1):
        batches = micro_batches(trainer, rollout, rows)
        rollout.weights_BR = weights_BR / size
        _add_gradients(trainer, rollout, batches, critic_has_learned=number == 1)
        trainer.actor_critic.restore_policy_adapter()
        _sum_over_processes(trainer, model)
        if trainer.state.global_step < args.value_warmup_steps:
            trainer.actor_critic.drop_policy_gradient()
        if number < len(minibatches):
            if args.max_grad_norm:
                trainer.accelerator.clip_grad_norm_(model.parameters(), args.max_grad_norm)
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
    return _note_update(trainer, rollout.sums, steps=len(minibatches))


def compute_advantages(
    trainer: Trainer, rollout: Rollout, rewards_BR: Tensor, first: Sequence[int]
) -> None:
    """Fill in the critic's values of all states, the returns, and the advantages, whitened.

    The values of the ``first`` mini-batch are those that its gradient begins with, and the
    returns of a row are known as soon as its values are. So a critic that shares no states with
    the policy takes that gradient in the same pass, which saves one of thirteen.
    """
    others = [row for row in range(len(rollout.sequences)) if row not in first]
    with trainer.actor_critic.adapter(trainer.actor_critic.critic_adapter):
        for rows in (first, others):
            learns = rows is first and trainer.actor_critic.critic != "head"
            for batch in micro_batches(trainer, rollout, rows):
                with torch.set_grad_enabled(learns), trainer.accelerator.autocast():
                    values_N = trainer.actor_critic.values(batch)
                batch.assign(rollout.values_BR, values_N.detach())
                rows_B = batch.rows_B
                advantages_BR, returns_BR = generalised_advantages(
                    rewards_BR[rows_B],
                    rollout.values_BR[rows_B],
                    rollout.mask_BR[rows_B],
                    trainer.args.gamma,
                    trainer.args.lam,
                )
                rollout.advantages_BR[rows_B] = advantages_BR
                rollout.returns_BR[rows_B] = returns_BR
                if learns:
                    _backward(trainer, value_loss(rollout, batch, values_N, trainer.args))
    rollout.advantages_BR = whiten(rollout.advantages_BR, rollout.mask_BR, total=trainer.total)
    returns_N = rollout.returns_BR[rollout.mask_BR]
    values_N = rollout.values_BR[rollout.mask_BR]
    explained = explained_variance(returns_N, values_N, trainer.total)
    trainer.note({"val/explained_variance": explained})


def _add_gradients(
    trainer: Trainer, rollout: Rollout, batches: list[MicroBatch], *, critic_has_learned: bool
) -> None:
    """Add the gradient of a mini-batch's losses, a micro-batch's share at a time.

    Critic and policy go one after the other, so that the activations of one are held at a time;
    measured, that takes a tenth to a quarter off the memory. A head, which reads the policy's
    states, goes with the policy.
    """
    actor_critic = trainer.actor_critic
    is_head = actor_critic.critic == "head"
    if not is_head and not critic_has_learned:
        with actor_critic.adapter(actor_critic.critic_adapter):
            for batch in batches:
                with trainer.accelerator.autocast():
                    values_N = actor_critic.values(batch)
                _backward(trainer, value_loss(rollout, batch, values_N, trainer.args))
    for batch in batches:
        if is_head:
            with trainer.accelerator.autocast():
                logprobs_N, values_N = actor_critic(batch, trainer.args.temperature)
            loss = policy_loss(rollout, batch, logprobs_N, trainer.args, trainer.own_loss)
            _backward(trainer, loss + value_loss(rollout, batch, values_N, trainer.args))
        else:
            with trainer.accelerator.autocast():
                logprobs_N = actor_critic.logprobs(batch, trainer.args.temperature)
            loss = policy_loss(rollout, batch, logprobs_N, trainer.args, trainer.own_loss)
            _backward(trainer, loss)


def _backward(trainer: Trainer, loss: Tensor) -> None:
    """Add the gradient of a share of the loss; FSDP2 takes the mean over processes."""
    if trainer.is_fsdp_enabled:
        loss = loss * trainer.args.world_size
    trainer.accelerator.backward(loss)


def _sum_over_processes(trainer: Trainer, model: nn.Module) -> None:
    """Add up the gradients of all processes, each of its own share of the mini-batch.

    A weight without a gradient here may have one elsewhere, such as an expert to which no token
    went. FSDP2 has added them up already.
    """
    if trainer.args.world_size == 1 or trainer.is_fsdp_enabled:
        return
    for parameter in model.parameters():
        if parameter.requires_grad:
            gradient = parameter.grad
            if gradient is None:
                gradient = torch.zeros_like(parameter)
            parameter.grad = trainer.accelerator.reduce(gradient, "sum")


def _note_update(trainer: Trainer, sums: Mapping[str, Tensor], steps: int) -> Tensor:
    """Note the figures of an update of so many optimizer steps; gives the mean loss."""
    sums_here = torch.stack(list(sums.values()))
    totals = trainer.total(sums_here).tolist()
    named_totals = dict(zip(sums, totals, strict=True))
    trainer.note(update_figures(named_totals, steps))
    loss = named_totals["policy"] + trainer.args.vf_coef * named_totals["value"]
    return torch.tensor(loss / steps, device=trainer.args.device)
