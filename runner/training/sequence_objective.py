"""Losses of the user's own, and token weights, in the forward passes that TRL makes anyway.

Each class here comes before TRL's in the method order and calls TRL's public ``compute_loss``,
which makes the forward passes, averages, and logs. What it asks the model for is answered with
other log-probabilities (``token_objective``), or watched on the way.

The names by which a trainer is known to compute its loss in one of these ways are in
``schema.upstream``, what each way gives in ``validate.loss_parts``; a trainer of another way takes
neither. B is the number of sequences, T of tokens in each.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Trainer
from transformers.utils import ModelOutput

from runner.errors import Fault, SickRun
from runner.schema import upstream
from runner.training.policy_objective import Groups, Sequences
from runner.training.token_objective import Tokens
from runner.training.user_loss import WEIGHTS, Count, Loss, Objective, aligned

# The parts of a batch whose log-probabilities a step asks for: answers, and KTO's unmatched ones.
INPUT_IDS = "input_ids"
KL_INPUT_IDS = "KL_input_ids"


@dataclass
class WatchedSequences:
    """Token ids (B, T) that the models are asked about in a step, and their answers."""

    ids: Tensor
    weights: Tensor | None = None  # (B, T), of the tokens
    outputs: list[ModelOutput] = field(default_factory=list)  # of the policy, then the reference

    @property
    def policy_logps(self) -> Tensor:
        """The log-probability of each sequence (B,) by the policy."""
        return self._summed(self.outputs[0])

    @property
    def reference_logps(self) -> Tensor:
        """The log-probability of each sequence (B,) by the reference."""
        return self._summed(self.outputs[1])

    def _summed(self, output: ModelOutput) -> Tensor:
        """Log-probabilities of sequences, without those of virtual tokens before them."""
        return output.log_probs[:, 1 - self.ids.size(1) :].sum(1)


@contextmanager
def watched(
    trainer: Trainer, sequences: Mapping[str, WatchedSequences], times: int
) -> Iterator[None]:
    """Gather the outputs of policy and reference in one step, by their sequences.

    Log-probabilities are multiplied with the weights of their sequences before anybody sums them.
    Raises SickRun where one of the sequences does not come ``times`` times, because then something
    else was trained than was configured.
    """

    def note(
        module: nn.Module,
        args: tuple[object, ...],
        arguments: Mapping[str, Tensor],
        output: ModelOutput,
    ) -> None:
        if not arguments.get("fused_lm_head"):
            return
        called = _find_called(sequences, arguments["input_ids"])
        if called.weights is not None:
            output.log_probs = output.log_probs * aligned(called.weights, output.log_probs)
        called.outputs.append(output)

    # The reference may be the policy itself, without its adapter.
    models: dict[int, nn.Module] = {}
    for wrapped in (trainer.model, trainer.ref_model):
        if wrapped is not None:
            model = trainer.accelerator.unwrap_model(wrapped)
            models[id(model)] = model
    with ExitStack() as hooks:
        for model in models.values():
            hooks.enter_context(model.register_forward_hook(note, with_kwargs=True))
        yield
    for name, called in sequences.items():
        if len(called.outputs) != times:
            raise SickRun(
                Fault(
                    where="loss",
                    found=f"{len(called.outputs)} forward passes of {name} seen in a step",
                    expected=f"{times}: another TRL computes its loss differently",
                    fix="trainer.args.torch_compile=false, or no loss and no weight",
                )
            )


def _find_called(sequences: Mapping[str, WatchedSequences], ids: Tensor) -> WatchedSequences:
    """The sequences that a model was called with."""
    for watched_sequences in sequences.values():
        if torch.equal(watched_sequences.ids.to(ids.device), ids):
            return watched_sequences
    raise SickRun(
        Fault(
            where="loss",
            found="a forward pass over sequences that are not those of its batch",
            expected=f"{', '.join(sequences)}: another TRL computes its loss differently",
            fix="loss=none weight=none",
        )
    )


class Answers(Objective):
    """For trainers with a reference: a loss of answers, and token weights for both models."""

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, **count: Count
    ) -> Loss:
        # Weights leave the batch also where nobody asks for the KL of rows that have one.
        weights = inputs.pop(WEIGHTS, None)
        kl_weights = inputs.pop(f"KL_{WEIGHTS}", None)
        sequences = {INPUT_IDS: WatchedSequences(inputs[INPUT_IDS], weights)}
        if getattr(self, "calculate_KL", False):
            sequences[KL_INPUT_IDS] = WatchedSequences(inputs[KL_INPUT_IDS], kl_weights)
        times = 1 if self.precompute_ref_logps else 2
        with watched(self, sequences, times):
            of_trl = super().compute_loss(model, inputs, return_outputs, **count)
        if self.hooks.loss is None:
            return of_trl
        loss = self.mean_of_batch(inputs, sequences)
        if self.aux_loss_enabled:  # the load balancing of a mixture of experts
            balance = sequences[INPUT_IDS].outputs[0].aux_loss
            loss = loss + self.router_aux_loss_coef * balance
        return (loss, of_trl[1]) if return_outputs else loss

    def mean_of_batch(
        self, inputs: Mapping[str, Tensor], sequences: Mapping[str, WatchedSequences]
    ) -> Tensor:
        """The mean of the user's loss over a batch."""
        raise NotImplementedError


class Pairs(Answers):
    """For DPO: a loss of the log-probabilities of each pair."""

    def mean_of_batch(
        self, inputs: Mapping[str, Tensor], sequences: Mapping[str, WatchedSequences]
    ) -> Tensor:
        # The chosen answers of a batch lie above the rejected ones.
        pairs = sequences[INPUT_IDS]
        chosen, rejected = pairs.policy_logps.chunk(2)
        if self.precompute_ref_logps:
            ref_chosen = inputs["ref_chosen_logps"]
            ref_rejected = inputs["ref_rejected_logps"]
        else:
            ref_chosen, ref_rejected = pairs.reference_logps.chunk(2)
        chosen_lengths, rejected_lengths = inputs["completion_mask"][:, 1:].sum(1).chunk(2)
        losses = self.entrywise(
            len(chosen),
            chosen_logps=chosen,
            rejected_logps=rejected,
            beta=self.beta,
            ref_chosen_logps=ref_chosen,
            ref_rejected_logps=ref_rejected,
            chosen_lengths=chosen_lengths,
            rejected_lengths=rejected_lengths,
        )
        return losses.mean()


class Labelled(Answers):
    """For KTO: a loss of each labelled answer, in the trainer's weighted mean.

    Weights of tokens are also those of the KL.
    """

    def mean_of_batch(
        self, inputs: Mapping[str, Tensor], sequences: Mapping[str, WatchedSequences]
    ) -> Tensor:
        answers = sequences[INPUT_IDS]
        logps = answers.policy_logps
        if self.precompute_ref_logps:
            ref_logps = inputs["ref_logps"]
        else:
            ref_logps = answers.reference_logps
        desirable = inputs["label"].bool()
        losses = self.entrywise(
            len(logps),
            logps=logps,
            ref_logps=ref_logps,
            desirable=desirable,
            lengths=inputs["completion_mask"][:, 1:].sum(1),
            kl=self._kl(inputs, sequences, logps),
            beta=self.beta,
        )
        weights = torch.where(desirable, self.desirable_weight, self.undesirable_weight)
        return (weights.to(losses) * losses).mean()

    def _kl(
        self,
        inputs: Mapping[str, Tensor],
        sequences: Mapping[str, WatchedSequences],
        logps: Tensor,
    ) -> Tensor:
        """The KL to the reference that all processes estimate; 0 where it is not asked for."""
        if not self.calculate_KL:
            return logps.new_zeros(())
        unmatched = sequences[KL_INPUT_IDS]
        if self.precompute_ref_logps:
            ref_logps = inputs["ref_KL_logps"]
        else:
            ref_logps = unmatched.reference_logps
        mean_ratio = (unmatched.policy_logps - ref_logps).mean().detach()
        return self.accelerator.gather_for_metrics(mean_ratio).mean().clamp(min=0)


class Contrasts(Objective):
    """For CPO and ORPO: the part of the loss that compares, by log-probabilities and lengths.

    That of the chosen answers stays, CPO's by its alpha.
    """

    def get_batch_loss_metrics(
        self, model: nn.Module, batch: Mapping[str, Tensor], *args: Any, **kwargs: Any
    ) -> tuple[Tensor, dict[str, float]]:
        first = 0 if self.is_encoder_decoder else 1  # the first token of a text has no prediction
        self.lengths = {}
        for side in ("chosen", "rejected"):
            labels = batch[f"{side}_labels"][:, first:]
            self.lengths[f"{side}_lengths"] = (labels != upstream.IGNORED).sum(1)
        figures: tuple[Tensor, dict[str, float]] = super().get_batch_loss_metrics(
            model, batch, *args, **kwargs
        )
        return figures

    def cpo_loss(
        self, policy_chosen_logps: Tensor, policy_rejected_logps: Tensor
    ) -> tuple[Tensor, ...]:
        _, *rest = super().cpo_loss(policy_chosen_logps, policy_rejected_logps)
        return self._compared(policy_chosen_logps, policy_rejected_logps), *rest

    def odds_ratio_loss(
        self, policy_chosen_logps: Tensor, policy_rejected_logps: Tensor
    ) -> tuple[Tensor, ...]:
        _, *rest = super().odds_ratio_loss(policy_chosen_logps, policy_rejected_logps)
        # TRL subtracts it.
        return -self._compared(policy_chosen_logps, policy_rejected_logps), *rest

    def _compared(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return self.entrywise(
            len(chosen),
            chosen_logps=chosen,
            rejected_logps=rejected,
            beta=self.beta,
            **self.lengths,
        )


class Scores(Objective):
    """For reward models: a loss of the scores of each pair."""

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, **count: Count
    ) -> Loss:
        _, outputs = super().compute_loss(model, inputs, True, **count)
        chosen, rejected = outputs.logits.squeeze(-1).chunk(2)
        losses = self.entrywise(len(chosen), chosen_rewards=chosen, rejected_rewards=rejected)
        loss = losses.mean()
        return (loss, outputs) if return_outputs else loss


# By the way in which a trainer computes its loss, a key of ``upstream.LOSS_INTERFACES``.
OBJECTIVES: dict[str | None, type[Objective]] = {
    "tokens": Tokens,
    "pairs": Pairs,
    "labels": Labelled,
    "odds": Contrasts,
    "contrasts": Contrasts,
    "scores": Scores,
    "groups": Groups,
    "sequences": Sequences,
}
