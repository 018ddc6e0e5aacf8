"""Losses of the user's own for trainers that learn from what they sample, as GRPO and RLOO do.

Each class here comes before TRL's in the method order and calls TRL's public ``compute_loss``,
which makes the forward pass and logs; what the model answered is noted on the way, and the loss is
made of it anew. PPO calls its own loss itself, in ``ppo.losses``.

B is the number of completions of a micro-batch, T of tokens in each.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from runner.errors import ConfigError, Fault, SickRun
from runner.training.user_loss import Count, Loss, Objective, call_loss


class Completions(Objective):
    """A trainer that samples, with a loss of the user's own."""

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, **count: Count
    ) -> Loss:
        outputs: list[ModelOutput] = []

        def answer(**arguments: Any) -> ModelOutput:
            output = model(**arguments)
            outputs.append(output)
            return output

        super().compute_loss(answer, inputs, return_outputs, **count)
        if len(outputs) != 1:
            raise SickRun(
                Fault(
                    where="loss",
                    found=f"{len(outputs)} forward passes in a step",
                    expected="1: another TRL computes its loss differently",
                    fix="loss=none",
                )
            )
        loss = self.loss_of_batch(outputs[0], inputs)
        if self.aux_loss_enabled:  # the load balancing of a mixture of experts
            balance = self.router_aux_loss_coef * outputs[0].aux_loss
            loss = loss + balance / self.micro_batches
        return loss

    @property
    def micro_batches(self) -> float:
        """The divisor of a micro-batch's loss, where the Trainer's loop does not divide it."""
        return 1.0

    def loss_of_batch(self, output: ModelOutput, inputs: Mapping[str, Any]) -> Tensor:
        """The user's loss of a micro-batch, for what the model answered."""
        raise NotImplementedError


class Groups(Completions):
    """For GRPO: a loss of each sampled token, averaged as ``loss.average`` says."""

    @property
    def micro_batches(self) -> float:
        is_training = self.model.training
        return float(self.current_gradient_accumulation_steps) if is_training else 1.0

    def loss_of_batch(self, output: ModelOutput, inputs: Mapping[str, Any]) -> Tensor:
        mask = inputs["completion_mask"]
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"]
        mask = mask.bool()
        log_probs = output.log_probs[:, -mask.size(1) :]
        old_log_probs = inputs.get("old_per_token_logps")
        if old_log_probs is None:  # the policy has not changed since it sampled
            old_log_probs = log_probs.detach()
        given = {
            "log_probs": log_probs,
            "old_log_probs": old_log_probs,
            "advantages": self._advantages(inputs),
            "mask": mask,
            "entropy": output.entropy[:, -mask.size(1) :],
            "beta": self.beta,
        }
        if inputs.get("ref_per_token_logps") is not None:
            given["ref_log_probs"] = inputs["ref_per_token_logps"]
        rows, tokens = mask.shape
        losses = losses_of(self.hooks.loss, given, [(rows, tokens), (rows, 1)])
        if "importance_sampling_ratio" in inputs:  # of the policy to vLLM
            losses = losses * inputs["importance_sampling_ratio"]

        tokens = inputs["num_items_in_batch"].clamp(min=1.0) / self.accelerator.num_processes
        if self.model.training:  # they are those of all steps that one sampling is for
            tokens = tokens * self.current_gradient_accumulation_steps
            tokens = tokens / self.args.steps_per_generation
        return self._averaged(losses, mask, tokens)

    def _averaged(self, losses: Tensor, mask: Tensor, tokens: Tensor) -> Tensor:
        """A micro-batch's share in the average of a step, in the order of TRL's operations.

        ``tokens`` are those of the step, divided by the processes, whose gradients are averaged.
        """
        losses = losses * mask
        match self.hooks.loss_part.average:
            case "token":  # dapo
                return losses.sum() / tokens
            case "micro_batch":  # bnpo
                mean = losses.sum() / mask.sum().clamp(min=1.0)
            case "sequence":  # grpo
                mean = (losses.sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
            case "constant":  # dr_grpo
                mean = losses.sum() / (len(mask) * self.max_completion_length)
            case _:  # luspo
                mean = losses.sum(-1).mean()
        return mean / self.micro_batches

    def _advantages(self, inputs: Mapping[str, Any]) -> Tensor:
        """The advantage of each completion (B, 1).

        A reward less the mean of its group is (n - 1) / n of it less the mean of all others, where
        a group has n rewards.
        """
        advantages: Tensor = inputs["advantages"]
        if advantages.dim() == 1:
            advantages = advantages.unsqueeze(1)
        size = self.num_generations if self.model.training else self.num_generations_eval
        if self.hooks.loss_part.advantage == "leave_one_out" and size > 1:
            advantages = advantages * (size / (size - 1))
        return advantages


class Sequences(Completions):
    """For RLOO: a loss of each completion, of which the mean is taken."""

    def loss_of_batch(self, output: ModelOutput, inputs: Mapping[str, Any]) -> Tensor:
        mask = inputs["completion_mask"].bool()
        given = {
            "log_probs": output.log_probs[:, -mask.size(1) :],
            "old_logps": inputs["old_logps"],
            "advantages": inputs["advantages"],
            "mask": mask,
            "entropy": output.entropy[:, -mask.size(1) :],
        }
        return losses_of(self.hooks.loss, given, [(len(mask),)]).mean()


def losses_of(
    loss: Callable[..., object] | None, given: Mapping[str, object], shapes: list[tuple[int, ...]]
) -> Tensor:
    """The losses of tokens or completions, in one of some shapes; ConfigError for another."""
    losses = call_loss(loss, **given)
    if isinstance(losses, Tensor) and losses.shape in shapes:
        return losses
    found = type(losses).__name__
    if isinstance(losses, Tensor):
        found = f"a result of shape {tuple(losses.shape)}"
    unit = "token" if len(shapes[0]) > 1 else "completion"
    raise ConfigError(
        Fault(
            where="loss",
            found=found,
            expected=f"a tensor of shape {' or '.join(map(str, shapes))}: a loss for each {unit}",
            fix="a loss that keeps the shape of its tensors, or loss=none",
        )
    )


def try_loss(loss: Callable[..., object] | None, kind: str | None, beta: float | None) -> None:
    """Call a loss with two made-up completions, before anything is sampled for it.

    Raises ConfigError for a result of another shape, one that is not finite, or one by which
    nothing is learnt.
    """
    mask = torch.tensor([[True, True, True], [True, True, False]])
    log_probs = torch.tensor([[-0.5, -1.0, -1.5], [-2.0, -0.7, 0.0]], requires_grad=True)
    old_log_probs = (log_probs.detach() - 0.1) * mask
    advantages = torch.tensor([1.0, -1.0])
    given: dict[str, object] = {"log_probs": log_probs, "mask": mask, "advantages": advantages}
    shapes: list[tuple[int, ...]] = [(2,)]
    if kind == "sequences":
        given |= {"old_logps": old_log_probs.sum(1), "entropy": -log_probs}
    else:
        given |= {"old_log_probs": old_log_probs, "advantages": advantages.unsqueeze(1) * mask}
        shapes = [(2, 3)]
    if kind == "groups":
        given |= {"advantages": advantages.unsqueeze(1), "entropy": -log_probs, "beta": beta}
        shapes.append((2, 1))
        if beta:
            given["ref_log_probs"] = old_log_probs
    losses = losses_of(loss, given, shapes)
    losses = (losses * mask).sum(-1) if losses.dim() == 2 else losses
    gradient = None
    if losses.requires_grad:
        (gradient,) = torch.autograd.grad(losses.sum(), log_probs, allow_unused=True)
    if gradient is None:
        raise ConfigError(
            Fault(
                where="loss",
                found="a result without a gradient of log_probs, so that nothing would be learnt",
                expected="tensors made of log_probs, which neither detach() nor item() has cut off",
                fix="a loss of log_probs, or loss=none",
            )
        )
    if not (losses.isfinite().all() and gradient.isfinite().all()):
        raise ConfigError(
            Fault(
                where="loss",
                found=f"losses {losses.tolist()} for two made-up completions, with the gradient "
                f"{gradient.tolist()}",
                expected="finite numbers",
                fix="a loss that stays finite where mask is False, or loss=none",
            )
        )
