"""Losses of the user's own, and token weights, in the forward passes that TRL makes anyway.

Each class here comes before TRL's in the method order and calls TRL's public ``compute_loss``, which makes the forward
passes, averages, and logs. What it asks the model for is answered with other log-probabilities, or watched on the way.

The names by which a trainer is known to compute its loss in one of these ways are in ``schema.upstream``, what each way
gives in ``validate/objective.yaml``; a trainer of another way takes neither.
"""

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Trainer
from transformers.utils import ModelOutput

from runner.config.build import arguments_of
from runner.errors import ConfigError, SickRun, fault
from runner.training.extension import Hooks

WEIGHTS = "token_weights"
WHOLE_BATCH = {"outputs", "labels", "num_items_in_batch"}
FULL_LOGITS = {"logits", "input"}
Count: TypeAlias = Tensor | int | None  # of the trained tokens of all micro-batches of a step
Loss: TypeAlias = Tensor | tuple[Tensor, ModelOutput]
Sequences: TypeAlias = Mapping[str, tuple[Tensor, Tensor | None]]  # token ids and perhaps their weights, by name
Outputs: TypeAlias = Mapping[str, list[ModelOutput]]  # of the policy, and perhaps the reference, by the same name


class Objective(Trainer):
    """A trainer whose ``hooks.loss`` is one of the user's own, or None for TRL's."""

    hooks: Hooks

    def entrywise(self, count: int, **given: object) -> Tensor:
        """One loss for each of ``count`` entries, from what is given."""
        losses = call(self.hooks.loss, given)
        if not isinstance(losses, Tensor) or losses.shape != (count,):
            found = f"a result of shape {tuple(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise ConfigError(fault("training.other_shape", found=found, count=count))
        return losses


def call(loss: Any, given: Mapping[str, object]) -> object:
    """The result of a loss called with those given arguments that its signature names."""
    names = arguments_of(getattr(loss, "forward", loss))
    return loss(**given) if names is None else loss(**{name: part for name, part in given.items() if name in names})


class Tokens(Objective):
    """For SFT: a loss of each trained token, or of the whole batch, and weights of tokens."""

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Count = None
    ) -> Loss:
        weights, calls = inputs.pop(WEIGHTS, None), []

        def answering(**given: object) -> ModelOutput | SimpleNamespace:
            if not given.pop("fused_lm_head", False):
                return model(**given)
            calls.append(True)
            return self._answer(model, weights, num_items_in_batch, given)

        found = super().compute_loss(answering, inputs, return_outputs, num_items_in_batch)
        if not calls:
            raise SickRun(fault("training.nothing_asked"))
        return found

    def _answer(self, model: nn.Module, weights: Tensor | None, count: Count, inputs: dict[str, Any]) -> ModelOutput:
        """An output that TRL's ``compute_loss`` takes for the model's, with losses where it reads log-probabilities."""
        loss = self.hooks.loss
        # Of a loss with **kwargs, too, those that it names.
        names = {*inspect.signature(getattr(loss, "forward", loss)).parameters} if loss is not None else set[str]()
        full = names & (WHOLE_BATCH | FULL_LOGITS)
        outputs = measured(model, inputs.pop("labels"), inputs) if full else model(**inputs, fused_lm_head=True)
        if names & WHOLE_BATCH:
            # A single number that comes out of TRL's division by the number of tokens as the loss that was given.
            given = {"outputs": outputs.model_outputs, "labels": outputs.labels, "num_items_in_batch": count}
            whole = call(loss, given)
            if not isinstance(whole, Tensor) or whole.numel() != 1:
                raise ConfigError(fault("training.no_number"))
            tokens = torch.as_tensor(outputs.label_mask.sum() if count is None else count).clamp(min=1)
            outputs.log_probs = -whole.reshape(1) * tokens
        elif loss is not None:
            labels, mask = inputs.get("labels"), outputs.label_mask
            targets = labels[:, -mask.size(1) :] if labels is not None else outputs.targets
            picked = targets[mask[:, -targets.size(1) :]]
            given = {"log_probs": outputs.log_probs[mask], "entropy": outputs.entropy[mask], "targets": picked}
            logits = getattr(outputs, "logits", None)
            given |= {"target": picked} | ({} if logits is None else {"logits": logits, "input": logits})
            losses = self.entrywise(len(given["log_probs"]), **given)
            outputs.log_probs = -losses.new_zeros(mask.shape).masked_scatter(mask, losses)  # 0 where none is trained
        if weights is not None:
            outputs.log_probs = outputs.log_probs * aligned(weights, outputs.log_probs)
        return outputs


def measured(model: nn.Module, labels: Tensor, inputs: Mapping[str, Any]) -> SimpleNamespace:
    """One forward pass with logits (N, vocabulary) of the N trained tokens, and what TRL reads of a fused output."""
    outputs = model(**inputs)
    logits = outputs.logits[:, -labels.size(1) :][:, :-1]  # prompt learning puts virtual tokens before the real ones
    targets = labels[:, 1:]
    mask = targets != -100
    picked, wanted = logits[mask].float(), targets[mask]
    with torch.no_grad():
        shares = picked.log_softmax(-1)
        entropy, top = -(shares.exp() * shares).sum(-1), picked.argmax(-1) == wanted
    log_probs = -cross_entropy(picked, wanted, reduction="none")

    def placed(values: Tensor) -> Tensor:
        return values.new_zeros(mask.shape).masked_scatter(mask, values)

    fused = {"log_probs": placed(log_probs), "entropy": placed(entropy), "is_top1": placed(top), "label_mask": mask}
    fused["aux_loss"] = getattr(outputs, "aux_loss", None)
    return SimpleNamespace(**fused, logits=picked, labels=labels, targets=targets, model_outputs=outputs)


def aligned(weights: Tensor, log_probs: Tensor) -> Tensor:
    """Weights of tokens (B, T) in the shape of ``log_probs``: one less, or more, where virtual tokens come first."""
    width = log_probs.size(1)
    virtual = weights.new_ones(weights.size(0), max(0, width - weights.size(1)))
    return torch.cat([virtual, weights], dim=1)[:, -width:].to(log_probs)


@contextmanager
def watched(trainer: Trainer, sequences: Sequences, times: int) -> Iterator[Outputs]:
    """Gather the outputs of policy and reference in one step, by the sequences that they were called with.

    Log-probabilities are multiplied with the weights of their sequences before anybody sums them. Raises SickRun where
    one of the sequences does not come ``times`` times, because then something else was trained than was configured.
    """
    unwrap = trainer.accelerator.unwrap_model
    models = [unwrap(model) for model in (trainer.model, trainer.ref_model) if model is not None]
    seen: dict[str, list[ModelOutput]] = {name: [] for name in sequences}

    def note(module: nn.Module, args: tuple[object, ...], given: Mapping[str, Tensor], output: ModelOutput) -> None:
        if given.get("fused_lm_head"):
            found = given["input_ids"]
            name = next(name for name, (ids, _) in sequences.items() if torch.equal(ids.to(found.device), found))
            if (weights := sequences[name][1]) is not None:
                output.log_probs = output.log_probs * aligned(weights, output.log_probs)
            seen[name].append(output)

    with ExitStack() as hooks:
        for model in {id(model): model for model in models}.values():
            hooks.enter_context(model.register_forward_hook(note, with_kwargs=True))
        yield seen
    for name, outputs in seen.items():
        if len(outputs) != times:
            raise SickRun(fault("training.other_passes", count=len(outputs), name=name, times=times))


def summed(output: ModelOutput, ids: Tensor) -> Tensor:
    """Log-probabilities of sequences of token ids (B, T), without those of virtual tokens before them."""
    return output.log_probs[:, 1 - ids.size(1) :].sum(1)


class Answers(Objective):
    """For trainers with a reference: a loss of log-probabilities of answers, and weights of tokens for both models."""

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **count: Count) -> Loss:
        names = ["input_ids", "KL_input_ids"] if getattr(self, "calculate_KL", False) else ["input_ids"]
        weighed = ("input_ids", "KL_input_ids")  # also where nobody asks for the KL of rows that have one
        weights = {name: inputs.pop(name.replace("input_ids", WEIGHTS), None) for name in weighed}
        times = 1 if self.precompute_ref_logps else 2
        with watched(self, {name: (inputs[name], weights[name]) for name in names}, times) as seen:
            found = super().compute_loss(model, inputs, return_outputs, **count)
        if self.hooks.loss is None:
            return found
        loss = self.mean_of_batch(inputs, seen)
        if self.aux_loss_enabled:  # the load balancing of a mixture of experts
            loss = loss + self.router_aux_loss_coef * seen["input_ids"][0].aux_loss
        return (loss, found[1]) if return_outputs else loss

    def mean_of_batch(self, inputs: Mapping[str, Tensor], seen: Outputs) -> Tensor:
        """The mean of the user's loss over a batch, from the outputs of policy and perhaps reference."""
        raise NotImplementedError


class Pairs(Answers):
    """For DPO: a loss of the log-probabilities of each pair."""

    def mean_of_batch(self, inputs: Mapping[str, Tensor], seen: Outputs) -> Tensor:
        chosen, rejected = summed(seen["input_ids"][0], inputs["input_ids"]).chunk(2)
        if self.precompute_ref_logps:
            references = inputs["ref_chosen_logps"], inputs["ref_rejected_logps"]
        else:
            references = summed(seen["input_ids"][1], inputs["input_ids"]).chunk(2)
        lengths = inputs["completion_mask"][:, 1:].sum(1).chunk(2)
        given = {"chosen_logps": chosen, "rejected_logps": rejected, "beta": self.beta}
        given |= zip(("ref_chosen_logps", "ref_rejected_logps"), references, strict=True)
        given |= zip(("chosen_lengths", "rejected_lengths"), lengths, strict=True)
        return self.entrywise(len(chosen), **given).mean()


class Labelled(Answers):
    """For KTO: a loss of each labelled answer, in the trainer's weighted mean; weights of tokens are the KL's too."""

    def mean_of_batch(self, inputs: Mapping[str, Tensor], seen: Outputs) -> Tensor:
        def reference(name: str, column: str) -> Tensor:
            return inputs[column] if self.precompute_ref_logps else summed(seen[name][1], inputs[name])

        logps, desirable = summed(seen["input_ids"][0], inputs["input_ids"]), inputs["label"].bool()
        kl = logps.new_zeros(())
        if self.calculate_KL:
            ratios = summed(seen["KL_input_ids"][0], inputs["KL_input_ids"]) - reference("KL_input_ids", "ref_KL_logps")
            kl = self.accelerator.gather_for_metrics(ratios.mean().detach()).mean().clamp(min=0)
        lengths = inputs["completion_mask"][:, 1:].sum(1)
        given = {"logps": logps, "ref_logps": reference("input_ids", "ref_logps"), "desirable": desirable}
        losses = self.entrywise(len(logps), **given, lengths=lengths, kl=kl, beta=self.beta)
        return (torch.where(desirable, self.desirable_weight, self.undesirable_weight).to(losses) * losses).mean()


class Contrasts(Objective):
    """For CPO and ORPO: the part of the loss that compares; that of the chosen answers stays, CPO's by its alpha."""

    def cpo_loss(self, policy_chosen_logps: Tensor, policy_rejected_logps: Tensor) -> tuple[Tensor, ...]:
        _, *rest = super().cpo_loss(policy_chosen_logps, policy_rejected_logps)
        return self._compared(policy_chosen_logps, policy_rejected_logps), *rest

    def odds_ratio_loss(self, policy_chosen_logps: Tensor, policy_rejected_logps: Tensor) -> tuple[Tensor, ...]:
        _, *rest = super().odds_ratio_loss(policy_chosen_logps, policy_rejected_logps)
        return -self._compared(policy_chosen_logps, policy_rejected_logps), *rest  # which TRL subtracts

    def _compared(self, chosen: Tensor, rejected: Tensor) -> Tensor:
        return self.entrywise(len(chosen), chosen_logps=chosen, rejected_logps=rejected, beta=self.beta)


class Scores(Objective):
    """For reward models: a loss of the scores of each pair."""

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **count: Count) -> Loss:
        _, outputs = super().compute_loss(model, inputs, True, **count)
        chosen, rejected = outputs.logits.squeeze(-1).chunk(2)
        loss = self.entrywise(len(chosen), chosen_rewards=chosen, rejected_rewards=rejected).mean()
        return (loss, outputs) if return_outputs else loss


OBJECTIVES: dict[str | None, type[Objective]] = {"tokens": Tokens, "pairs": Pairs, "labels": Labelled}
OBJECTIVES |= {"odds": Contrasts, "contrasts": Contrasts, "scores": Scores}
