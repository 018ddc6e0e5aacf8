"""Losses of trained tokens: SFT's forward pass, answered with the user's losses and weights.

B is the number of sequences of a micro-batch, T of tokens in each, N of trained tokens in all.
"""

import inspect
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers.utils import ModelOutput

from runner.errors import ConfigError, Fault, SickRun
from runner.schema.upstream import IGNORED
from runner.training.user_loss import (
    WEIGHTS,
    Count,
    Loss,
    Objective,
    aligned,
    call_loss,
)

# Arguments of a loss of the whole batch, and of one that needs all logits of a token.
WHOLE_BATCH = {"outputs", "labels", "num_items_in_batch"}
FULL_LOGITS = {"logits", "input"}


class Tokens(Objective):
    """For SFT: a loss of each trained token, or of the whole batch, and weights of tokens."""

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Count = None,
    ) -> Loss:
        weights = inputs.pop(WEIGHTS, None)
        answered = False

        def answer(**arguments: Any) -> ModelOutput | SimpleNamespace:
            nonlocal answered
            if not arguments.pop("fused_lm_head", False):
                return model(**arguments)
            answered = True
            output = self._answer(model, arguments, num_items_in_batch)
            if weights is not None:
                output.log_probs = output.log_probs * aligned(weights, output.log_probs)
            return output

        loss: Loss = super().compute_loss(answer, inputs, return_outputs, num_items_in_batch)
        if not answered:
            raise SickRun(
                Fault(
                    where="loss",
                    found="TRL has not asked for log-probabilities",
                    expected="a TRL that computes its loss from them",
                    fix="loss=none weight=none",
                )
            )
        return loss

    def _answer(self, model: nn.Module, inputs: dict[str, Any], count: Count) -> Any:
        """An output that TRL's ``compute_loss`` takes for the model's.

        Where it reads log-probabilities there are the user's losses, negated.
        """
        loss: Any = self.hooks.loss
        if loss is None:
            return model(**inputs, fused_lm_head=True)
        # Those that a loss names also where it has **kwargs, by which it takes any.
        names = set(inspect.signature(getattr(loss, "forward", loss)).parameters)
        if names & (WHOLE_BATCH | FULL_LOGITS):
            output = measured(model, inputs.pop("labels"), inputs)
        else:
            output = model(**inputs, fused_lm_head=True)
        if names & WHOLE_BATCH:
            output.log_probs = _negated_loss_of_batch(loss, output, count)
            return output
        mask = output.label_mask
        labels = inputs.get("labels")
        targets = output.targets if labels is None else labels[:, -mask.size(1) :]
        picked = targets[mask[:, -targets.size(1) :]]
        given = {
            "log_probs": output.log_probs[mask],
            "entropy": output.entropy[mask],
            "targets": picked,
            "target": picked,  # as torch's own losses name it
        }
        logits = getattr(output, "logits", None)
        if logits is not None:
            given["logits"] = logits
            given["input"] = logits
        losses = self.entrywise(len(given["log_probs"]), **given)
        # 0 where no token is trained.
        output.log_probs = -losses.new_zeros(mask.shape).masked_scatter(mask, losses)
        return output


def _negated_loss_of_batch(loss: Any, output: Any, count: Count) -> Tensor:
    """A tensor of one number, which TRL's division by the number of tokens makes the loss again."""
    of_batch = call_loss(
        loss,
        outputs=output.model_outputs,
        labels=output.labels,
        num_items_in_batch=count,
    )
    if not isinstance(of_batch, Tensor) or of_batch.numel() != 1:
        raise ConfigError(
            Fault(
                where="loss",
                found="not a single number",
                expected="the loss of the batch, as a tensor of one number",
            )
        )
    tokens = torch.as_tensor(output.label_mask.sum() if count is None else count)
    return -of_batch.reshape(1) * tokens.clamp(min=1)


def measured(model: nn.Module, labels: Tensor, inputs: Mapping[str, Any]) -> SimpleNamespace:
    """One forward pass with logits (N, vocabulary) of the trained tokens.

    Beside them it has what TRL reads of a fused output, each (B, T - 1).
    """
    output = model(**inputs)
    # Prompt learning puts virtual tokens before the real ones.
    logits = output.logits[:, -labels.size(1) :][:, :-1]
    targets = labels[:, 1:]
    mask = targets != IGNORED
    picked = logits[mask].float()
    wanted = targets[mask]
    with torch.no_grad():
        log_shares = picked.log_softmax(-1)
        entropy = -(log_shares.exp() * log_shares).sum(-1)
        is_top1 = picked.argmax(-1) == wanted
    log_probs = -cross_entropy(picked, wanted, reduction="none")

    def placed(values: Tensor) -> Tensor:
        return values.new_zeros(mask.shape).masked_scatter(mask, values)

    return SimpleNamespace(
        log_probs=placed(log_probs),
        entropy=placed(entropy),
        is_top1=placed(is_top1),
        label_mask=mask,
        aux_loss=getattr(output, "aux_loss", None),
        logits=picked,
        labels=labels,
        targets=targets,
        model_outputs=output,
    )
