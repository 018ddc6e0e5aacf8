"""Log-probabilities that a causal language model gives to tokens that were already sampled.

Letters at the end of a tensor's name are its shape: B rows, T tokens, N response tokens of all
rows, H hidden, V vocabulary.
"""

from functools import partial

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.checkpoint import checkpoint

from runner.generate.sampler import Model, evaluating
from runner.model.padding_free import equal_to_rounding, to_line_arguments
from runner.model.trunk import find_backbone
from runner.ppo.batching import MicroBatch
from runner.reward.reading import last_hidden_states

LOGITS_PER_CHUNK = {"cpu": 1 << 22}  # elements held at once: 16 MiB of float32
LOGITS_PER_CHUNK_ELSEWHERE = 1 << 26


def hidden_states(trunk: nn.Module, batch: MicroBatch) -> Tensor:
    """The last hidden states [N, H] before the targets of a batch.

    Causal attention looks back, so that rows padded on the right need no mask.
    """
    arguments = {}
    if batch.row_lengths:
        arguments = to_line_arguments(batch.row_lengths, batch.input_ids_BT.device)
    return last_hidden_states(trunk, batch.input_ids_BT, batch.positions_N, **arguments)


class TokenLogProbs:
    """Log-probabilities of the targets of micro-batches under a causal language model.

    Hidden states become logits only where a token was sampled, a chunk at a time, and the backward
    pass computes them again: with 50,000 words the logits of a micro-batch would take more memory
    than everything else together.
    """

    def __init__(self, model: Model):
        self.model = model.get_base_model() if isinstance(model, PeftModel) else model
        self.trunk = find_backbone(self.model)
        self.head = self.model.get_output_embeddings()
        self.is_plain = self._is_plain()

    def __call__(self, batch: MicroBatch, temperature: float) -> Tensor:
        """float32 log-probabilities [N] of the targets, each from the position before it."""
        if self.is_plain:
            hidden_NH = hidden_states(self.trunk, batch)
            return self.of_hidden(hidden_NH, batch.targets_N, temperature)
        logits_BTV = self.model(input_ids=batch.input_ids_BT, use_cache=False).logits
        logits_NV = logits_BTV.flatten(0, 1)[batch.positions_N]
        return _target_logprobs(logits_NV, batch.targets_N, temperature)

    def of_hidden(self, hidden_NH: Tensor, targets_N: Tensor, temperature: float) -> Tensor:
        """float32 log-probabilities [N] of the targets under softmax(logits / temperature)."""
        elements = LOGITS_PER_CHUNK.get(hidden_NH.device.type, LOGITS_PER_CHUNK_ELSEWHERE)
        words = self.head.weight.shape[0]
        rows = max(1, elements // words)
        compute = self._of_chunk
        if len(hidden_NH) > rows and torch.is_grad_enabled():
            # Forgotten after the forward pass and computed again in the backward pass.
            compute = partial(
                checkpoint, self._of_chunk, use_reentrant=False, preserve_rng_state=False
            )
        logprobs = []
        for hidden, targets in zip(hidden_NH.split(rows), targets_N.split(rows), strict=True):
            logprobs.append(compute(hidden, targets, temperature))
        return torch.cat(logprobs)

    def _of_chunk(self, hidden_NH: Tensor, targets_N: Tensor, temperature: float) -> Tensor:
        """The log-probabilities [N] of a few targets.

        The logits get no name here, so that they can go as soon as their float32 copy is there.
        """
        return _target_logprobs(self.head(hidden_NH), targets_N, temperature)

    @torch.no_grad()
    def _is_plain(self) -> bool:
        """True where the logits are just the head of the last hidden states, without cap or scale.

        The logits are compared with those that the head gave in the same pass, because kernels for
        another number of rows may round in another way; the states with those of a pass without the
        head, up to rounding.
        """
        ids_BT = torch.arange(4, device=self.model.device)[None]
        head_calls: list[tuple[Tensor, Tensor]] = []  # states and logits

        def record(module: nn.Module, inputs: tuple[Tensor, ...], logits: Tensor) -> None:
            head_calls.append((inputs[0], logits))

        hook = self.head.register_forward_hook(record)
        with evaluating(self.model):
            logits = self.model(input_ids=ids_BT, use_cache=False).logits
            hook.remove()
            states = self.trunk(input_ids=ids_BT, use_cache=False).last_hidden_state
        if not head_calls:
            return False
        head_states, head_logits = head_calls[0]
        is_trunk_whole = equal_to_rounding(states, head_states)
        return is_trunk_whole and torch.equal(logits.float(), head_logits.float())


def _target_logprobs(logits_NV: Tensor, targets_N: Tensor, temperature: float) -> Tensor:
    """float32 log-probabilities [N] of the targets; cross-entropy is minus these."""
    logits_NV = logits_NV.float()
    if temperature != 1:
        logits_NV = logits_NV / temperature
    return -cross_entropy(logits_NV, targets_N, reduction="none")
