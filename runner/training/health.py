"""The figures that alarms judge, of every optimizer step and in all processes at once, and the callback that asks them.

Whatever the logging steps are, every optimizer step is looked at: its loss, the gradient and the weights in a few small
pieces (:class:`Probe`), the figures that the trainer notes for its own log (``held_out.NOTES``), and the rewards that
``reward.panel`` has seen. All weights are looked at when they are saved, so that no sick checkpoint is ever sealed.
"""

import functools
import json
import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from accelerate.utils import gather
from peft import LoraConfig, PeftConfig
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments

from runner.config.build import asked_for
from runner.config.menu import read_options
from runner.errors import SickRun
from runner.io.files import read_json, write_text
from runner.model.adapter import moves_start
from runner.reward.panel import RewardTracker
from runner.run import Run
from runner.run.alarms import (
    CHOSEN,
    NOTED,
    Alarm,
    Change,
    Facts,
    GradientAscent,
    NotFinite,
    Step,
    build_alarms,
)
from runner.schema import upstream
from runner.schema.text import number
from runner.training.held_out import Notes, notes_of

BROKEN = "a weight is no finite number"
GREEDY = 0.1  # a temperature, or a share of probability, below which a model hardly ever samples a second answer
MEMORY = "alarms.json"  # of a checkpoint: what the alarms have seen so far


@dataclass(eq=False)
class Health(TrainerCallback):
    """Ends a sick training with SickRun: within five steps, in all processes at once, and before anything is saved.

    ``build(resumed=)`` makes the alarms, with true where they begin in the middle of a training; ``rewards`` gives what
    was earned so far. Of a trainer that notes no figures of a step, what is logged is judged. The state of the alarms
    is stored in each checkpoint, so that a sick run that goes on from its last good one is found sick again.
    """

    build: Callable[..., list[Alarm]]
    rewards: Callable[[], Mapping[str, tuple[float, float, int]]] | None = None
    facts: Facts = field(default_factory=Facts)
    alarms: list[Alarm] = field(default_factory=list)
    notes: Notes | None = None
    loss: Tensor | None = None
    length: Tensor | None = None
    taken: dict[str, int] = field(default_factory=dict)
    last_step: Step = field(default_factory=lambda: Step(0))
    rate: float = 0.0  # the highest so far
    slope_at: tuple[Tensor | None, Tensor | None] = (None, None)
    norm: Tensor | None = None  # of the gradient before its clip

    def observe_loss(self, trainer: Trainer, batch: object, loss: Tensor) -> None:
        """Add the loss of a micro-batch to that of the step; its gradient is there, and nobody has changed it yet."""
        self.notes = notes_of(trainer, "train")  # every step, however seldom it is logged; of one without, its log
        # The mean number of tokens of an answer in a batch of pairs or of labelled answers; None of any other.
        masks = batch if isinstance(batch, Mapping) and CHOSEN in (self.notes or ()) else {}
        mask = masks.get("completion_mask")
        if mask is None and "chosen_labels" in masks:
            mask = masks["chosen_labels"] != upstream.IGNORED
        self.length = None if mask is None else mask.sum() / len(mask)
        loss = loss.detach() if loss.requires_grad else loss
        self.loss = loss if self.loss is None else self.loss + loss
        if any(isinstance(alarm, GradientAscent) and not alarm.over for alarm in self.alarms):
            self.slope_at = self.probe.weights(), self.probe.gradients()
        accelerator = getattr(trainer, "accelerator", None)
        if accelerator is None or accelerator.sync_gradients:
            self.norm = self.trained.norm()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control, model: nn.Module, **_) -> None:
        self.trained = Probe(model)
        self.probe = Probe(model.policy) if hasattr(model, "policy") else self.trained
        is_half = any(weight.dtype in (torch.float16, torch.bfloat16) for weight in self.trained.all)
        self.facts = replace(self.facts, is_half=is_half)
        self._recall(Path(args.output_dir), state.global_step)
        self.gradient, self.skipped, self.pace, self.slope_at = None, False, 1.0, (None, None)
        self.rate, self.norm = float(getattr(args, "learning_rate", 0.0)), None

    def _recall(self, folder: Path, number: int) -> None:
        """Make the alarms as they were at a step, of which there may be a checkpoint."""
        memory = read_json(folder / f"checkpoint-{number}" / MEMORY)
        self.fresh = [vars(alarm) for alarm in self.build(resumed=False)]
        self.alarms = self.build(resumed=number > 0 and memory is None)
        for alarm in self.alarms:
            vars(alarm).update((memory or {}).get(alarm.name, {}))
            alarm.facts = self.facts

    def on_pre_optimizer_step(self, args, state, control, **_) -> None:
        self.gradient = self.probe.gradient()

    def on_optimizer_step(self, args, state, control, optimizer: Optimizer, **_) -> None:
        self.skipped = bool(getattr(optimizer, "step_was_skipped", False))
        paces = [group["lr"] / group["initial_lr"] for group in optimizer.param_groups if group.get("initial_lr")]
        self.pace = float(max(paces, default=1.0))
        self.rate = max([self.rate, *(float(group["lr"]) for group in optimizer.param_groups)])

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control, **_) -> None:
        weights = self.probe.weights()
        # A policy without a gradient waits for its critic, which then has to move.
        waits = self.gradient is None and self.probe is not self.trained
        moved = self.trained.moved(self.trained.weights()) if waits else self.probe.moved(weights)
        rewards = dict(self.rewards()) if self.rewards else {}
        found = [
            math.nan if self.loss is None else self.loss.item(),
            -1.0 if self.gradient is None else self.gradient,
            -1.0 if weights is None else weights.norm().item() / math.sqrt(len(weights)),
            moved,
            -1.0 if self.norm is None else self.norm.item(),
            self._slope(weights),
            math.nan if self.length is None else self.length.item(),
            *(value for each in rewards.values() for value in each),
        ]
        self.loss, self.norm = None, None
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            found = _merged(gather(torch.tensor([found], dtype=torch.float64, device=args.device)).tolist())
        gradient, weight, moves, norm = (None if most < 0 else most for most in found[1:5])  # below 0 nobody saw it
        spread = zip(found[7::3], found[8::3], map(int, found[9::3]), strict=True)
        noted = {name: values for name, values in (self.notes or {}).items() if name in NOTED}
        fresh = {name: values[self.taken.get(name, 0) :] for name, values in noted.items()}
        self.taken = {name: len(values) for name, values in noted.items()}
        means = {name: statistics.fmean(map(float, values)) for name, values in fresh.items() if values}  # in this step
        earned, has_moved = dict(zip(rewards, spread, strict=True)), None if moves is None else moves > 0
        slope, length = (value if math.isfinite(value) else None for value in found[5:7])
        step = Step(state.global_step, found[0], gradient=gradient, weight=weight, moved=has_moved, slope=slope)
        step = replace(step, pace=self.pace, rate=self.rate, norm=norm)
        self._judge(replace(step, length=length, skipped=self.skipped, noted=means, rewards=earned))

    def on_log(self, args, state: TrainerState, control, logs: Mapping[str, float], **_) -> None:
        if "loss" in logs:
            self.taken = {}  # with this the trainer has emptied its notes
        if "loss" in logs and self.notes is None:
            noted = {name: value for name, value in logs.items() if isinstance(value, float)}
            self._judge(Step(state.global_step, noted=noted))
        norm = logs.get("grad_norm")
        if norm is not None and not math.isfinite(norm) and not self.skipped:
            self._end(Step(state.global_step, gradient=norm), f"the norm of the gradient is {norm}")

    def on_evaluate(self, args, state: TrainerState, control, metrics: Mapping[str, float], **_) -> None:
        numbers = {name: value for name, value in metrics.items() if isinstance(value, float)}
        losses = {name: value for name, value in numbers.items() if name.startswith("eval_") and name.endswith("loss")}
        bad = [f"{name} is {value}" for name, value in losses.items() if not math.isfinite(value)]
        if bad:
            self._end(Step(state.global_step, loss=math.nan), ", ".join(bad))

    def on_save(self, args: TrainingArguments, state: TrainerState, control, **_) -> None:
        self._refuse_broken_weights(args.device, state.global_step)
        if state.is_world_process_zero:
            seen = zip(self.alarms, self.fresh, strict=True)
            memory = {
                alarm.name: {key: new for key, new in vars(alarm).items() if key != "facts" and new != old[key]}
                for alarm, old in seen
            }
            write_text(Path(args.output_dir) / f"checkpoint-{state.global_step}" / MEMORY, json.dumps(memory))

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control, **_) -> None:
        self._refuse_broken_weights(args.device, state.global_step)

    def conclude(self, args: TrainingArguments, state: TrainerState, held_out: Sequence[Change]) -> None:
        """Raise SickRun after the last step, where the whole of the training is what is sick.

        Its checkpoints are as good as any, so that they stay: it goes on from them where the sickness is tolerated.
        """
        if not self.alarms:  # the best checkpoint was loaded, and no training has begun
            self._recall(Path(args.output_dir), state.global_step)
        step = replace(self.last_step, number=state.global_step)
        for alarm in self.alarms:
            if sickness := alarm.conclude(step, held_out):
                raise sickness

    def _judge(self, step: Step) -> None:
        self.last_step = step
        for alarm in self.alarms:
            if sickness := alarm.observe(step):
                raise sickness

    def sickness_behind(self, number: int) -> SickRun | None:
        """The sickness of a step that raised, where weights that are no numbers are behind it."""
        if not self.alarms or self.trained.are_finite():
            return None
        return self._not_finite(Step(number, loss=math.nan), BROKEN)

    def _not_finite(self, step: Step, found: str) -> SickRun | None:
        alarms = [alarm for alarm in self.alarms if isinstance(alarm, NotFinite)]
        return alarms[0].sickness(step, found) if alarms else None

    def _end(self, step: Step, found: str) -> None:
        if sickness := self._not_finite(replace(step, rate=self.rate), found):
            raise sickness

    def _refuse_broken_weights(self, device: torch.device, number: int) -> None:
        broken = gather(torch.tensor([float(not self.trained.are_finite())], device=device)).any()
        if broken:
            self._end(Step(number), BROKEN)

    def _slope(self, weights: Tensor | None) -> float:
        """The cosine between the gradient that the loss gave and what became of the weights; NaN where one is 0."""
        (before, gradient), self.slope_at = self.slope_at, (None, None)
        if weights is None or before is None or gradient is None:
            return math.nan
        change = weights - before
        return (change @ gradient / (change.norm() * gradient.norm())).item()


def build_health(run: Run, args: TrainingArguments, peft: PeftConfig | None, panel: RewardTracker | None) -> Health:
    """The alarms that fit this kind of training, which the trainer's signature and arguments tell."""
    cfg = run.cfg
    asked = asked_for(cfg["trainer"]["_target_"])
    online, anchored = upstream.REWARD_FUNCS in asked, upstream.REF_MODEL in asked
    # A prompt or prefix starts elsewhere by nature, with a right reference.
    rounding = (5e-2 if args.bf16 or args.fp16 else 1e-4) if anchored and not moves_start(peft) else None
    pairs = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
    tolerate, length = cfg.get("tolerate"), upstream.completion_length(vars(args))
    alarms = functools.partial(
        build_alarms, tolerate, online=online, anchored=anchored, pairs=pairs, rounding=rounding, length=length
    )
    facts = Facts(
        usual_rate=usual_rate(run, args, peft),
        max_grad_norm=args.max_grad_norm or 0.0,
        has_kl_coef=cfg.get("kl_coef") is not None,
        steps_within=hasattr(args, "num_ppo_epochs"),
        greedy=sampling_advice(args) if online else "",
        reward_weights=tuple(getattr(args, upstream.REWARD_WEIGHTS, None) or ()),
        changed=tuple(list_changed_parts(run)),
    )
    return Health(alarms, panel.spread if panel else None, facts)


def list_changed_parts(run: Run) -> Iterator[str]:
    """Advice on each part of a configuration that can make a loss endless."""
    if run.cfg.get("weight"):
        yield "smaller weights (weight=)"
    if run.cfg.get("loss"):
        yield "another loss="
    if changed := run.cfg["model"].get("config"):
        yield f"no {', '.join(f'model.config.{key}=' for key in changed)}"


def usual_rate(run: Run, args: TrainingArguments, peft: PeftConfig | None) -> float | None:
    """The learning rate that the options of a run bring; None where another optimizer or tuner has another scale.

    An adapter learns at about ten times the rate of all weights.
    """
    optimizer = (run.cfg.get("optimizer") or {}).get("_target_") or str(args.optim)
    is_lora = isinstance(peft, LoraConfig)
    if "adam" not in optimizer.lower() or not (peft is None or is_lora):
        return None
    rates = list[float]()
    for group, option in (run.manifest().get("choices") or {}).items():
        options = read_options(group) if group in ("trainer", "model", "experiment") else {}
        rate = (options.get(option) or {}).get("learning_rate")
        if rate is not None:
            rates.append(float(rate))
    return max(rates) * (10 if is_lora else 1) if rates else None


def sampling_advice(args: TrainingArguments) -> str:
    """Advice where the completions of a prompt are sampled all alike; empty where they are not."""
    more = getattr(args, upstream.GENERATION_KWARGS, None) or {}
    temperature = more.get("temperature", getattr(args, "temperature", 1.0))
    if more.get("do_sample") is False:
        return "trainer.args.generation_kwargs.do_sample=true, because greedy completions of a prompt are all alike"
    if temperature is not None and temperature < GREEDY:
        key = "generation_kwargs.temperature" if "temperature" in more else "temperature"
        return f"trainer.args.{key}=1, because at {number(temperature)} the completions of a prompt are all alike"
    for key in ("top_k", "top_p"):
        place = f"generation_kwargs.{key}" if key in more else key
        value = more.get(key, getattr(args, key, None))
        if value is not None and (value == 1 if key == "top_k" else value < GREEDY):
            usual = 0 if key == "top_k" else 1
            return f"trainer.args.{place}={usual}, because at {value} the completions of a prompt are all alike"
    return ""


class Probe:
    """Small pieces of the weights that are trained, spread evenly over them; what befalls all of them shows there.

    A look costs a few microseconds for each of at most ``TENSORS`` pieces, whatever the size of the model. What only
    looks so in the pieces is looked up in all weights.
    """

    TENSORS, ENTRIES = 16, 256

    def __init__(self, model: nn.Module):
        self.all = [each for each in model.parameters() if each.requires_grad and _local(each).numel()]
        self.picked = self.all[:: math.ceil(len(self.all) / self.TENSORS) or 1]
        self.places, self.pieces = list[int](), list[Tensor]()  # in memory, and of the weights that are there
        self.before, self.bits = self.weights(), None

    @torch.no_grad()
    def weights(self) -> Tensor | None:
        """The entries that are looked at, in one row."""
        places = [_local(each).data_ptr() for each in self.picked]
        if places != self.places:
            self.places, self.pieces = places, [_piece(each) for each in self.picked]
        return _in_a_row(self.pieces)

    @torch.no_grad()
    def gradients(self) -> Tensor | None:
        """The entries that belong to those of ``weights``, 0 where a weight keeps none."""
        return _in_a_row([_piece(each.grad if _has_gradient(each) else torch.zeros_like(each)) for each in self.picked])

    @torch.no_grad()
    def gradient(self) -> float | None:
        """The largest entry of a piece, NaN where one is none; 0 where every entry is; None where none is kept."""
        for each in filter(_has_gradient, reversed(self.picked)):
            if (largest := _piece(each.grad).abs().max().item()) != 0:
                return largest
        every = (_local(each.grad).abs().max().item() for each in self.all if _has_gradient(each))
        return max(every, key=lambda found: (math.isnan(found), found), default=None)

    @torch.no_grad()
    def norm(self) -> Tensor | None:
        """The norm of all gradients, of those of this process; None where none is kept."""
        gradients = [_local(weight.grad) for weight in self.all if _has_gradient(weight)]
        return get_total_norm(gradients) if gradients else None

    def moved(self, weights: Tensor | None) -> float:
        """1 where some weight has changed since the last call, 0 where none of all has, -1 where it is not known."""
        before, self.before = self.before, weights
        if weights is None:
            return -1.0
        if not torch.equal(weights, before):
            self.bits = None
            return 1.0
        bits, self.bits = self.bits, self.sum_of_bits()
        return -1.0 if bits is None else float(bits != self.bits)

    @torch.no_grad()
    def sum_of_bits(self) -> int:
        """A number that another value of any weight changes."""
        kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
        return sum(int(_local(each).view(kinds[each.element_size()]).sum(dtype=torch.int64)) for each in self.all)

    @torch.no_grad()
    def are_finite(self) -> bool:
        """True where all weights are numbers."""
        # A sum passes on what is no number, without a copy; only where it may have overflown are all entries looked at.
        doubtful = (each for each in map(_local, self.all) if not each.sum(dtype=torch.float32).isfinite())
        return all(bool(each.isfinite().all()) for each in doubtful)


def _largest(values: Sequence[float]) -> float:
    return max(values, key=lambda value: (math.isnan(value), value))


def _merged(every: Sequence[Sequence[float]]) -> list[float]:
    """The figures of all processes as one: means of loss and length, and of the rest what is largest, or known."""
    columns = list(zip(*every, strict=True))
    losses, *seen, slopes, lengths = columns[:7]
    slope = next(filter(math.isfinite, slopes), math.nan)
    means = [sum(each) / len(every) for each in (losses, lengths)]
    spread = zip(columns[7::3], columns[8::3], columns[9::3], strict=True)
    rewards = [(-_largest([-one for one in low]), _largest(high), sum(counts)) for low, high, counts in spread]
    return [means[0], *map(_largest, seen), slope, means[1], *(value for each in rewards for value in each)]


def _local(tensor: Tensor) -> Tensor:
    if type(tensor) is Tensor or type(tensor) is nn.Parameter:  # as nearly all, and asking takes longer
        return tensor
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _has_gradient(weight: Tensor) -> bool:
    return weight.grad is not None and not weight.grad.is_sparse and weight.grad.numel() > 0


def _piece(tensor: Tensor) -> Tensor:
    """The first entries of the middle row, without a copy of the tensor."""
    tensor = _local(tensor)
    middle = tuple(size // 2 for size in tensor.shape[:-1])
    return (tensor[middle] if middle else tensor)[: Probe.ENTRIES]


def _in_a_row(pieces: Sequence[Tensor]) -> Tensor | None:
    if not pieces:
        return None
    device = pieces[0].device
    return torch.cat([piece if piece.device == device else piece.to(device) for piece in pieces]).to(torch.float32)
