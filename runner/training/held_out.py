"""Held-out figures as figures of the set: sums over rows or tokens, for any batch and processes.

TRL averages what it notes of each micro-batch, the Trainer takes the mean of the batches' losses,
and accelerate deals some rows twice where several processes share them. Here each micro-batch adds
what it has to sums, with as many rows or tokens as each figure is a mean of, and no row counts more
than another.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from accelerate import Accelerator
from accelerate.data_loader import DataLoaderShard
from accelerate.utils import broadcast_object_list, gather_object
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader
from transformers import Trainer

from runner.io.temporary import temporarily
from runner.schema import upstream

# Attributes in which trainers note what they will log: public in our PPO and in online DPO, private
# in the rest of TRL. They are only read. ``tests/test_held_out`` and ``tests/test_sick_runs`` fail
# where upstream renames them.
NOTES = ("metrics", "stats", "_stored_metrics", "_metrics")
Notes = Mapping[str, Sequence[float | Tensor]]  # by the name in the trainer's own log
Counts = dict[str, float]  # of what a micro-batch has, by the names in UNITS

ROWS, TOKENS, CHOSEN, REJECTED = "rows", "tokens", "chosen", "rejected"
CHOSEN_TOKENS, REJECTED_TOKENS, TERMINATED = "chosen tokens", "rejected tokens", "terminated"
LIKELIHOOD_TOKENS = "likelihood tokens"  # those of a likelihood that is a part of a loss of pairs
LIKELIHOOD = "likelihood"
# What a figure is a mean of, the first that the micro-batch has; of all others it is rows.
UNITS: dict[str, tuple[str, ...]] = {
    r"mean_token_accuracy": (CHOSEN_TOKENS, TOKENS),
    r"entropy|cross_entropy": (TOKENS,),
    r"logits/chosen": (CHOSEN_TOKENS,),
    r"logits/rejected": (REJECTED_TOKENS,),
    r"(rewards|logps)/chosen": (CHOSEN,),
    r"(rewards|logps)/rejected": (REJECTED,),
    r"likelihood|nll_loss": (LIKELIHOOD_TOKENS,),
    r"completions/mean_terminated_length": (TERMINATED,),
}
LEAST, MOST = re.compile(r"(^|[/_])min([/_]|$)"), re.compile(r"(^|[/_])max([/_]|$)")
DEVIATIONS = ("_std", "/std")


def notes_of(trainer: Trainer, mode: str) -> Notes | None:
    """Notes of a trainer since it logged, of a mode, ``train`` or ``eval``; None without any."""
    notes = next((getattr(trainer, name) for name in NOTES if hasattr(trainer, name)), None)
    if notes and isinstance(next(iter(notes.values())), Mapping):  # of trainings and evaluations
        return notes.get(mode, {})
    return notes


# --- Rows, dealt to processes ---------------------------------------------------------------------
class EvenBatches:
    """Batches of one of several processes, each with as many rows as those of the others.

    ``copies`` says of each batch how often all processes together have its rows: once but for the
    few at the end that cannot be shared. Groups of ``group`` neighbours stay in one batch of all.
    """

    def __init__(self, order: Sequence[int], size: int, processes: int, process: int, group: int = 1):
        self.processes, self.process = processes, process
        self.batches, self.copies = list[list[int]](), list[int]()
        everyone, least = size * processes, math.lcm(processes, group)
        whole = len(order) // everyone * everyone
        shared = len(order) // least * least
        self._deal(order[:whole], everyone, 1)
        self._deal(order[whole:shared], everyone, 1)
        rest = list(order[shared:])
        if rest:
            copies = least // math.gcd(len(rest), least)
            self._deal(rest * copies, everyone // least * least, copies)

    def _deal(self, rows: Sequence[int], most: int, copies: int) -> None:
        for start in range(0, len(rows), most):
            batch = rows[start : start + most]
            share = len(batch) // self.processes
            self.batches.append(list(batch[self.process * share :][:share]))
            self.copies.append(copies)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


def deal_evenly(loader: DataLoader, accelerator: Accelerator, size: int, group: int) -> DataLoader:
    """The loader of one of several processes, with batches in which no row fills up another's."""
    (order,) = broadcast_object_list([list(loader.batch_sampler.batch_sampler.sampler)])
    batches = EvenBatches(order, size, accelerator.num_processes, accelerator.process_index, group)
    same = ("collate_fn", "num_workers", "pin_memory", "prefetch_factor", "multiprocessing_context")
    return DataLoaderShard(
        loader.dataset,
        device=loader.device,
        batch_sampler=batches,
        **{name: getattr(loader, name) for name in same},
    )


class OneProcess:
    """An accelerator that gathers from one process alone, which judges its own rows."""

    def __init__(self, accelerator: Accelerator):
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def gather(self, tensor: Any) -> Any:
        return tensor

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        return input_data


@contextlib.contextmanager
def judged_by_row(trainer: Trainer) -> Iterator[None]:
    """Have a trainer judge rows without other processes, and without what a batch has as a whole.

    Left out are the balance of experts and KTO's KL, an estimate from the batch; AOT, which sorts
    the pairs of a batch, is what it is of one pair. Trainers whose completions form groups judge
    those of all processes together.
    """
    values: dict[str, Any] = {}
    if group_size(trainer) == 1:
        alone = OneProcess(trainer.accelerator)
        values |= {"accelerator": alone, "gather_function": alone.gather_for_metrics}
    for name in ("aux_loss_enabled", "calculate_KL"):
        if getattr(trainer, name, False):
            values[name] = False
    kinds = list(getattr(trainer, "loss_types", ()))
    if any(kind in upstream.SORTED_LOSSES for kind in kinds):
        is_sorted = upstream.SORTED_LOSSES
        values["loss_types"] = ["sigmoid" if kind in is_sorted else kind for kind in kinds]
    with temporarily(trainer, **values):
        yield


def group_size(trainer: Trainer) -> int:
    """Completions of one held-out prompt, which stay together; 1 where they form no groups."""
    sizes = (upstream.NUM_GENERATIONS_EVAL, upstream.NUM_GENERATIONS)
    return next(filter(None, (getattr(trainer.args, name, None) for name in sizes)), 1)


# --- Sums -----------------------------------------------------------------------------------------
@dataclass
class HeldOutSums:
    """Sums of the figures of micro-batches, each weighed with what it is a mean of."""

    copies: Sequence[int] = ()  # of the rows of each micro-batch
    batches: int = 0
    share: float = 0.0  # of the likelihood in the loss
    # The sum of each figure, and of its weights.
    totals: dict[str, list[float]] = field(default_factory=dict)
    squares: dict[str, list[float]] = field(default_factory=dict)  # of figures that are deviations
    least: dict[str, float] = field(default_factory=dict)
    most: dict[str, float] = field(default_factory=dict)

    def add(self, figures: Mapping[str, float], counts: Counts, loss_unit: str) -> None:
        """Add the figures of a micro-batch with these counts."""
        weight = 1 / self.copies[self.batches] if self.copies else 1.0
        self.batches += 1
        for name, value in figures.items():
            if name.endswith(DEVIATIONS):
                mean = figures.get(_mean_beside(name), math.nan)
                square = (counts[ROWS] - 1) * value**2 + counts[ROWS] * mean**2
                _add(self.squares, name, square * weight, counts[ROWS] * weight)
            elif LEAST.search(name):
                self.least[name] = min(value, self.least.get(name, math.inf))
            elif MOST.search(name):
                self.most[name] = max(value, self.most.get(name, -math.inf))
            else:
                count = counts[loss_unit if name == "loss" else unit_of(name, counts)]
                if count:
                    _add(self.totals, name, value * count * weight, count * weight)

    def gathered(self) -> "HeldOutSums":
        """The sums of all processes together."""
        together = HeldOutSums(share=self.share)
        for sums in gather_object([self]):
            for mine, theirs in ((together.totals, sums.totals), (together.squares, sums.squares)):
                for name, (total, weight) in theirs.items():
                    _add(mine, name, total, weight)
            for name, value in sums.least.items():
                together.least[name] = min(value, together.least.get(name, math.inf))
            for name, value in sums.most.items():
                together.most[name] = max(value, together.most.get(name, -math.inf))
        return together

    def figures(self) -> dict[str, float]:
        """The figures of the set."""
        means = {name: total / weight for name, (total, weight) in self.totals.items()}
        for name, (total, rows) in self.squares.items():
            mean = means.get(_mean_beside(name), math.nan)
            means[name] = math.sqrt(max(0.0, total - rows * mean**2) / max(1.0, rows - 1))
        likelihood = means.pop(LIKELIHOOD, None)
        if likelihood is not None and "loss" in means:
            means["loss"] += self.share * likelihood
        # Of labelled answers a micro-batch has none where one side is missing.
        sides = [means.get(f"rewards/{side}") for side in (CHOSEN, REJECTED)]
        if sides[0] is not None and sides[1] is not None:
            means["rewards/margins"] = sides[0] - sides[1]
        return means | self.least | self.most


def _mean_beside(deviation: str) -> str:
    return deviation.removesuffix("_std") if deviation.endswith("_std") else f"{deviation[:-3]}mean"


def _add(sums: dict[str, list[float]], name: str, value: float, weight: float) -> None:
    total = sums.setdefault(name, [0.0, 0.0])
    total[0] += value
    total[1] += weight


def unit_of(name: str, counts: Counts) -> str:
    """The name in ``counts`` of what a figure is a mean of."""
    for pattern, units in UNITS.items():
        if re.fullmatch(pattern, name):
            return next((unit for unit in units if unit in counts), ROWS)
    return TOKENS if name == "kl" and TERMINATED in counts else ROWS


# --- A micro-batch --------------------------------------------------------------------------------
def count_units(trainer: Trainer, batch: Any) -> Counts:
    """The rows and tokens of a micro-batch, as the trainer counts them for its means."""
    if not isinstance(batch, Mapping):  # prompts
        return {ROWS: len(batch)}
    if "chosen_labels" in batch:
        trained = batch["chosen_labels"] != upstream.IGNORED
        if not hasattr(trainer, upstream.CPO_ALPHA):  # ORPO, whose likelihood is that of the prompt, too
            trained = batch["chosen_attention_mask"] == 1
        return _of_pairs(len(trained)) | {LIKELIHOOD_TOKENS: trained[:, 1:].sum().item()}
    if "labels" in batch:
        trained = batch["labels"][..., 1:] != upstream.IGNORED
        return {ROWS: len(batch["labels"]), TOKENS: trained.sum().item()}
    if "completion_mask" in batch:
        lengths = batch["completion_mask"][:, 1:].sum(1)
        if "label" in batch:
            is_right = batch["label"].bool()
            chosen, rejected = lengths[is_right], lengths[~is_right]
            counts: Counts = {ROWS: len(lengths), CHOSEN: len(chosen), REJECTED: len(rejected)}
        else:
            sides = lengths.chunk(3 if getattr(trainer, upstream.TPO_ALPHA, None) else 2)
            chosen, rejected = sides[0], sides[1]
            imitated = sides[2] if len(sides) > 2 else chosen
            counts = _of_pairs(len(chosen)) | {LIKELIHOOD_TOKENS: imitated.sum().item()}
        counts |= {CHOSEN_TOKENS: chosen.sum().item(), REJECTED_TOKENS: rejected.sum().item()}
        return counts | {TOKENS: lengths.sum().item()}
    texts = next((len(part) for part in batch.values() if isinstance(part, Tensor)), 0)
    return _of_pairs(texts // 2)


def _of_pairs(rows: int) -> Counts:
    return {ROWS: rows, CHOSEN: rows, REJECTED: rows}


def likelihood_share(trainer: Trainer) -> float:
    """The factor of a likelihood, a mean over tokens, in a loss that is a mean over pairs; or 0."""
    for name in (upstream.CPO_ALPHA, upstream.TPO_ALPHA):
        if hasattr(trainer, name):
            return float(getattr(trainer, name))
    if hasattr(trainer, "odds_ratio_loss"):
        return 1.0
    if "sft" in getattr(trainer, "loss_types", ()) and trainer.hooks.loss is None:
        weighed = zip(trainer.loss_types, trainer.loss_weights, strict=True)
        is_sum = trainer.ld_alpha is None and not trainer.use_weighting
        return math.fsum(weight for kind, weight in weighed if kind == "sft") if is_sum else 0.0
    return 0.0


@dataclass
class Reading:
    """The cross-entropy of the answers of a micro-batch, from what the model says of them anyway."""

    labels: Tensor | None = None
    first_row: int = 0  # of the outputs that belong to the labels
    takes_logits: bool = False
    cross_entropy: float | None = None

    def note(self, module: object, args: object, output: Any) -> None:
        """Take the mean negative log-probability of a token from an output, as a forward hook."""
        log_probs = getattr(output, "log_probs", None)
        if log_probs is not None:
            self.cross_entropy = _mean(-log_probs[output.label_mask])
        elif self.takes_logits and self.labels is not None:
            # Prompt learning puts virtual tokens before the real ones.
            logits = output.logits[self.first_row :, -self.labels.size(1) :][:, :-1]
            trained = self.labels[:, 1:] != upstream.IGNORED
            wanted = self.labels[:, 1:][trained].to(logits.device)
            predicted = logits[trained.to(logits.device)].float()
            self.cross_entropy = _mean(cross_entropy(predicted, wanted, reduction="none"))


def _mean(values: Tensor) -> float:
    return values.float().mean().item() if values.numel() else 0.0


@contextlib.contextmanager
def read_along(trainer: Trainer, batch: Any) -> Iterator[Reading]:
    """Watch what the policy says of a micro-batch, where the notes of the trainer do not tell it."""
    reading = Reading()
    if isinstance(batch, Mapping) and trainer.hooks.reads_cross_entropy:
        reading = Reading(batch["labels"], takes_logits=trainer.hooks.loss is not None)
    elif isinstance(batch, Mapping) and getattr(trainer, upstream.TPO_ALPHA, None):
        # Of three answers, one below the other, the last is learnt by its likelihood.
        first_row = len(batch["input_ids"]) // 3 * 2
        labels = batch["input_ids"].masked_fill(batch["completion_mask"] == 0, upstream.IGNORED)
        reading = Reading(labels[first_row:], first_row, takes_logits=True)
    if reading.labels is None:
        yield reading
        return
    hook = trainer.accelerator.unwrap_model(trainer.model).register_forward_hook(reading.note)
    try:
        yield reading
    finally:
        hook.remove()


@contextlib.contextmanager
def summed_up(trainer: Trainer, sums: HeldOutSums, batch: Any, losses: list[Tensor | None]) -> Iterator[None]:
    """Add to the sums what the trainer notes of a micro-batch inside; its loss goes to ``losses``."""
    counts = count_units(trainer, batch)
    before = {name: len(values) for name, values in (notes_of(trainer, "eval") or {}).items()}
    with read_along(trainer, batch) as reading:
        yield
    figures = {}
    is_sampled = not isinstance(batch, Mapping)
    for name, values in (notes_of(trainer, "eval") or {}).items():
        fresh = [float(value) for value in values[before.get(name, 0) :]]
        judges_none = is_sampled and bool(fresh) and math.isnan(fresh[-1])  # as a reward may
        if fresh and not judges_none:
            figures[name.removeprefix("eval_")] = fresh[-1]
    figures = {name: value for name, value in figures.items() if name not in left_out(trainer)}
    if is_sampled and "completions/mean_length" in figures:
        counts[TOKENS] = figures["completions/mean_length"] * counts[ROWS]
        counts[TERMINATED] = (1 - figures.get("completions/clipped_ratio", 0.0)) * counts[ROWS]
    if trainer.hooks.reads_cross_entropy and reading.cross_entropy is not None:
        figures[upstream.CROSS_ENTROPY] = reading.cross_entropy
    sums.share = likelihood_share(trainer)
    if sums.share:
        figures[LIKELIHOOD] = _likelihood(figures, counts, reading)
    is_mean_of_tokens = "labels" in batch
    if is_sampled and not hasattr(trainer, upstream.REWARD_FUNCS):  # of a teacher
        is_mean_of_tokens = TOKENS in counts
    if losses and losses[0] is not None:
        loss = losses[0].float().mean().item()
        figures["loss"] = loss - sums.share * figures.get(LIKELIHOOD, 0.0)
    sums.add(figures, counts, TOKENS if is_mean_of_tokens else ROWS)


def _likelihood(figures: Mapping[str, float], counts: Counts, reading: Reading) -> float:
    """The mean negative log-probability of the tokens that are learnt by it, in a loss of pairs."""
    if "nll_loss" in figures:
        return figures["nll_loss"]
    if reading.cross_entropy is not None:
        return reading.cross_entropy
    return -figures["logps/chosen"] * counts[CHOSEN] / max(1.0, counts[LIKELIHOOD_TOKENS])


def left_out(trainer: Trainer) -> set[str]:
    """The figures of a trainer that are of a batch, its padding, or the training, and of no set."""
    names = {"num_tokens", "aux_loss"}
    if hasattr(trainer, "calculate_KL"):
        names.add("kl")
    if hasattr(trainer, "concatenated_forward"):
        names |= {"logits/chosen", "logits/rejected"}
    return names
