"""Passes of a training without the padding of its batches.

A batch of rows of unlike length is mostly padding: with lengths that scatter as those of real
conversations do, three tokens for each that is learnt from. Here the trunk of a model is given the
rows of a batch end to end instead, each of which attends to itself alone (``model.padding_free``),
and its states are put back to where the padded batch has them. TRL's fused head, which off a GPU
scores each position of a batch, is given only those states whose next token has a label. Batch,
loss and figures are those of the padded batch, but for the order in which numbers are added up.

It is done by hooks of the modules, which DDP, FSDP2, adapters and the trainers' own evaluations go
through. Left as they are: batches without padding, passes with anything beside tokens, mask and
labels, models that attend in another way, and passes in which dropout is drawn.

Letters at the end of a tensor's name are its shape: B rows, T tokens of a padded row, N tokens of
all rows without padding, M of them whose next token has a label, H hidden.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor, nn
from transformers import PreTrainedModel, TrainingArguments
from transformers.modeling_outputs import ModelOutput

from runner.generate.sampler import Model, evaluating
from runner.io.files import JsonObject
from runner.model.padding_free import equal_to_rounding, make_padding_free, to_line_arguments
from runner.model.trunk import find_backbone
from runner.run import SKIPPED, Run
from runner.run.continuation import other_run

IGNORED = -100  # the label of a token that is in no loss
LINE = "line"  # the argument of a pass that says how its batch lies in a line
# The arguments of a pass that may be laid in a line.
OF_TRUNK = {"input_ids", "attention_mask", "use_cache", LINE}
OF_FUSED_HEAD = {"input_ids", "attention_mask", "use_cache", "labels", "fused_lm_head"}
# What a fused head returns for each position.
PER_TOKEN = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")


@dataclass(frozen=True)
class Line:
    """The tokens of a padded batch, end to end without the padding."""

    mask_BT: Tensor  # True where a token is
    places_N: Tensor = field(init=False)  # of the tokens in the flattened batch
    row_lengths: list[int] = field(init=False)
    is_target_BT: Tensor | None = None  # True where the next token has a label

    def __post_init__(self) -> None:
        places_N = self.mask_BT.flatten().nonzero().squeeze(1)
        lengths = self.mask_BT.sum(dim=1).tolist()
        object.__setattr__(self, "places_N", places_N)
        object.__setattr__(self, "row_lengths", [length for length in lengths if length])

    def arguments(self, input_ids_BT: Tensor) -> dict[str, Any]:
        """The arguments of a trunk's pass over the line, with the positions of the padded batch."""
        width = self.mask_BT.shape[1]
        arguments = to_line_arguments(self.row_lengths, input_ids_BT.device)
        return arguments | {
            "input_ids": input_ids_BT.flatten()[self.places_N].unsqueeze(0),
            "position_ids": (self.places_N % width).unsqueeze(0),
            "use_cache": False,
            LINE: self,
        }

    def put_back(self, states_NH: Tensor) -> Tensor:
        """The states in the places of the padded batch [B, T, H], with zeros for padding."""
        rows, width = self.mask_BT.shape
        hidden = states_NH.shape[1]
        padded = states_NH.new_zeros(rows * width, hidden)
        return padded.index_copy(0, self.places_N, states_NH).view(rows, width, hidden)


def wants_no_padding(run: Run) -> bool:
    """True where the passes of a run are to leave out padding, if its models can.

    A run that goes on does as its steps began, also those of another run: those of an earlier
    version computed it, and the last digits of what follows depend on it.
    """
    choice = run.experiment.trainer.skip_padding
    if choice is not None:
        return choice
    for beginning in _manifests_of_steps(run):
        if "padding" in beginning:
            is_skipped: bool = beginning["padding"] == SKIPPED
            return is_skipped
        if "data" in beginning:  # a run of an earlier version
            return False
    return True


def _manifests_of_steps(run: Run) -> Iterator[JsonObject]:
    """The manifests that say how the steps before were taken: its own, and that of another run."""
    yield run.manifest()
    if run.experiment.resume:
        earlier = other_run(run.experiment)
        if earlier is not None:
            yield earlier.manifest()


def skip_padding(models: Iterable[nn.Module | None], args: TrainingArguments) -> bool:
    """Have the passes of a trainer's models leave out padding, where all of them can.

    Returns whether they do. A model that two roles share is taken once.
    """
    if args.world_size > 1 or args.deepspeed or args.torch_compile:
        return False
    distinct = {id(model): model for model in models if model is not None}
    for model in distinct.values():
        if not isinstance(model, PreTrainedModel | PeftModel) or not _can_skip(model):
            return False
    for model in distinct.values():
        trunk = _trunk_of(model)
        trunk.register_forward_pre_hook(_lay_in_line, with_kwargs=True)
        trunk.register_forward_hook(_put_back, with_kwargs=True)
        model.register_forward_pre_hook(_score_targets_alone, with_kwargs=True)
        model.register_forward_hook(_put_scores_back, with_kwargs=True)
    return True


def _can_skip(model: Model) -> bool:
    """True for a model without dropout whose rows can lie end to end."""
    if isinstance(model, PeftModel) and model.active_peft_config.is_prompt_learning:
        return False
    if model.device.type != "cpu" or draws_dropout(model):
        return False
    if getattr(model.config.get_text_config(), "output_router_logits", False):
        return False  # the loss of the experts looks at the mask
    trunk = _trunk_of(model)
    with evaluating(trunk):
        return make_padding_free(trunk) and _keeps_positions(trunk)


@torch.no_grad()
def _keeps_positions(trunk: PreTrainedModel) -> bool:
    """True for a trunk whose states of a padded batch are those of the line, on either side."""
    mask_BT = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 0]], device=trunk.device)
    ids_BT = torch.arange(mask_BT.numel(), device=trunk.device).view(mask_BT.shape)
    padded_BTH = trunk(input_ids=ids_BT, attention_mask=mask_BT, use_cache=False).last_hidden_state
    line = Line(mask_BT.bool())
    states_NH = trunk(**line.arguments(ids_BT)).last_hidden_state[0]
    is_same: bool = equal_to_rounding(states_NH, padded_BTH[line.mask_BT])
    return is_same


def draws_dropout(model: nn.Module) -> bool:
    """True for a model that drops states or weights of attention out while it is trained."""
    for part in model.modules():
        if isinstance(part, nn.Dropout) and part.p > 0:
            return True
        rate = getattr(part, "attention_dropout", 0)
        if isinstance(rate, float) and rate > 0:
            return True
    return False


def _trunk_of(model: Model) -> PreTrainedModel:
    """The model without its head, below an adapter."""
    return find_backbone(model.get_base_model() if isinstance(model, PeftModel) else model)


# --- Hooks of a trunk


def _lay_in_line(trunk: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give a trunk the rows of a padded batch end to end."""
    if len(args) == 1:  # as classes with a head for scores ask their trunk
        kwargs = kwargs | {"input_ids": args[0]}
    line = kwargs.get(LINE) or lay_in_line(kwargs, OF_TRUNK, is_positional=len(args) > 1)
    if line is None:
        return None
    return (), kwargs | line.arguments(kwargs["input_ids"])


def _put_back(
    trunk: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: ModelOutput
) -> ModelOutput | None:
    """Give back the states in the places of the padded batch, or those that the head needs."""
    line = kwargs.get(LINE)
    if line is None:
        return None
    states_NH = output.last_hidden_state[0]
    if line.is_target_BT is None:
        output.last_hidden_state = line.put_back(states_NH)
    else:
        is_target_N = line.is_target_BT.flatten()[line.places_N]
        output.last_hidden_state = states_NH[is_target_N].unsqueeze(0)
    return output


def lay_in_line(kwargs: dict[str, Any], allowed: set[str], *, is_positional: bool) -> Line | None:
    """The line of the batch of a pass; None where it has no padding, or more than tokens."""
    given = {name for name, value in kwargs.items() if value is not None}
    mask_BT = kwargs.get("attention_mask")
    # A fused head keeps no cache, whatever it is asked.
    keeps_cache = kwargs.get("use_cache") is not False and not kwargs.get("fused_lm_head")
    if is_positional or given - allowed or keeps_cache:
        return None
    if not isinstance(mask_BT, Tensor) or mask_BT.dim() != 2 or bool(mask_BT.all()):
        return None
    return Line(mask_BT.bool())


# --- Hooks of a model with TRL's fused head


def _score_targets_alone(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Have a fused head score no position but those whose next token has a label."""
    if not kwargs.get("fused_lm_head"):
        return None
    line = lay_in_line(kwargs, OF_FUSED_HEAD, is_positional=bool(args))
    if line is None or kwargs.get("labels") is None:
        return None
    labels_BT = kwargs["labels"]
    next_BT = torch.full_like(labels_BT, IGNORED)
    next_BT[:, :-1] = labels_BT[:, 1:]
    is_target_BT = next_BT != IGNORED
    # A label behind padding is scored by the state of the padding.
    if not is_target_BT.any() or (is_target_BT & ~line.mask_BT).any():
        return None
    line = Line(line.mask_BT, is_target_BT)
    targets = next_BT[is_target_BT].unsqueeze(0)
    return (), kwargs | {"labels": None, "shift_labels": targets, LINE: line}


def _put_scores_back(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: ModelOutput
) -> ModelOutput | None:
    """Give back what was scored in the places of the padded batch [B, T - 1], zeros elsewhere."""
    line = kwargs.get(LINE)
    if line is None:
        return None
    is_target = line.is_target_BT[:, :-1]
    for name in PER_TOKEN:
        scores_1M = output.get(name)
        if scores_1M is not None:
            padded = scores_1M.new_zeros(is_target.shape)
            setattr(output, name, padded.masked_scatter(is_target, scores_1M))
    output.label_mask = is_target
    return output
