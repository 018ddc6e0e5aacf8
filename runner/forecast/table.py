"""A forecast as text: what holds how much, what there is, how long it takes, and what it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.forecast.machine import Device
from runner.forecast.memory import Memory, Trainer, held_gradients, measure, state_bytes
from runner.forecast.plan import Rows, build_trainer, is_known, setting, steps_of
from runner.forecast.structure import Source
from runner.run import processes_of
from runner.space import free, sized

TIGHT = 0.9  # of what is there, from which on a forecast warns: allocators keep some more than what is alive
ASSUMED = 100e12  # operations a second, as a scale where nothing was measured


@dataclass(frozen=True)
class Forecast:
    """What a run needs on one device."""

    cfg: Mapping[str, Any]
    rows: Rows
    device: Device
    trainer: Trainer
    memory: Memory

    @property
    def steps(self) -> int | None:
        return steps_of(self.cfg, self.rows)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of one optimizer step over all processes, without padding; of sampled ones all that may be written."""
        args, batch = self.cfg["trainer"]["args"], self.trainer.batch
        mean = self.rows.mean + (batch.width - batch.prompt if batch.prompt else 0)
        rows = setting(args, "per_device_train_batch_size", 8) * self.trainer.accumulates * processes_of(self.cfg)
        pairs = 2 if self.trainer.name in ("DPOTrainer", "RewardTrainer", "ORPOTrainer", "CPOTrainer") else 1
        return round(rows * pairs * mean)

    @property
    def operations_per_step(self) -> float:
        """Operations of one optimizer step on one process: passes of the mean width there and back, and sampling."""
        args, batch, memory = self.cfg["trainer"]["args"], self.trainer.batch, self.memory
        rows = setting(args, "per_device_train_batch_size", 8)
        written = batch.width - batch.prompt if batch.prompt else 0
        share = (self.rows.padded(rows) + written) / batch.width
        pairs = max(1, batch.rows // rows) if self.trainer.name != "PPOTrainer" else 1
        passes = self.trainer.accumulates * rows * pairs / batch.rows * self._repeats(args)
        update = passes * (memory.update.linear * share + memory.update.square * share**2)
        sampled = self.trainer.rollout_rows
        each = (memory.forward.linear * share + memory.forward.square * share**2) / max(1, sampled)
        return update + each * self._read(args)

    def _repeats(self, args: Mapping[str, Any]) -> float:
        """How often each row goes there and back in a step: of PPO in each epoch, through policy and critic."""
        return 2 * setting(args, "num_ppo_epochs", 4) if self.trainer.name == "PPOTrainer" else 1

    def _read(self, args: Mapping[str, Any]) -> float:
        """How many rows are read without a way back in a step: sampled, and looked at by each other model."""
        if not self.trainer.batch.prompt:
            return 0
        rows = setting(args, "per_device_train_batch_size", 8) * self.trainer.accumulates
        looks = 1 + (self.trainer.name == "PPOTrainer") + self.trainer.penalises + len(self.trainer.others)
        return rows * looks / setting(args, "num_iterations", 1)


def find_forecast(
    cfg: Mapping[str, Any], rows: Rows, device: Device, origins: Mapping[str, Source] | None = None
) -> Forecast:
    """What a run needs on a device; ``origins`` as in ``build_trainer``."""
    trainer = build_trainer(cfg, rows, gpu=device.gpu, origins=origins)
    return Forecast(cfg, rows, device, trainer, measure(trainer))


def to_lines(founds: Sequence[Forecast]) -> list[str]:
    """Forecasts of one run, a column for each device, ending with a warning where something will not fit."""
    first = founds[0]
    policy, batch = first.trainer.policy, first.trainer.batch
    trained = "all of them trained" if policy.trained == policy.count else f"{_many(policy.trained)} of them trained"
    lines = [
        f"  {'model':<13}{_many(policy.count)} weights, {trained}",
        f"  {'batch':<13}{batch.rows} rows of {batch.width} tokens, the longest that were seen, at a time",
        f"  {'computed':<13}{'; '.join(f'{found.device.name} in {_how(found)}' for found in founds)}",
        *([] if is_known(first.trainer.name) else [f"  {'':<13}taken for a trainer that makes all logits"]),
        *_columns(founds),
        f"  {'steps':<13}{_steps(first)}",
        *(f"  {'time' if not place else '':<13}{_time(found)}" for place, found in enumerate(founds)),
        *([f"  {'':<13}sampling may take several times as long: memory bounds it"] if batch.prompt else []),
        *_disk(first),
    ]
    if first.memory.why:
        lines.append(f"  unknown      activations, and with them the peak: {first.memory.why}")
    return [*lines, *(line for found in founds for line in _warning(found))]


def _columns(founds: Sequence[Forecast]) -> list[str]:
    """Bytes by what holds them, a column for each device."""
    shares = [_shares(found) for found in founds]
    names = list(dict.fromkeys(name for share in shares for name in share))
    names.sort(key=lambda name: name in ("peak", "there"))
    cells = {name: [sized(share[name]) if share.get(name) is not None else "-" for share in shares] for name in names}
    cells = {"": [found.device.name for found in founds], **cells}
    width = max(len(cell) for row in cells.values() for cell in row)
    return [f"  {name:<13}{'  '.join(cell.rjust(width) for cell in row)}" for name, row in cells.items()]


def _shares(found: Forecast) -> dict[str, int | None]:
    """What each thing takes; activations and sampling take turns, and the peak is with the larger."""
    held, phases = dict(found.memory.held), found.memory.phases
    gradients = held_gradients(found.trainer)
    shares = {"weights": held.pop("weights"), "gradients": gradients, **held}
    shares["activations"] = None if found.memory.why else max(0, phases["update"] - gradients)
    if "sampling" in phases:
        shares["or sampling"] = phases["sampling"]
    return shares | {"peak": found.memory.peak, "there": found.device.memory}


def _how(found: Forecast) -> str:
    kind = "bf16 autocast" if found.trainer.setting.autocast else str(found.trainer.policy.model.dtype)
    return kind.removeprefix("torch.") + (" with activations recomputed" if found.trainer.setting.recompute else "")


def _warning(found: Forecast) -> list[str]:
    there, peak = found.device.memory, found.memory.peak
    if not there or peak <= TIGHT * there:
        return []
    over = "more than" if peak > there else "nearly all of"
    return [f"  warning      {found.device.name}: {over} the memory that is there; {_lighter(found)}"]


def _lighter(found: Forecast) -> str:
    """What to type for less memory: of what takes most."""
    held, phases = found.memory.held, found.memory.phases
    gradients = held_gradients(found.trainer)
    if max(phases.values()) - gradients > held["weights"] + held.get("optimizer", 0) + gradients:
        if not found.trainer.setting.recompute and found.memory.largest == "update":
            return "trainer.args.activation_checkpointing=true"
        size = setting(found.cfg["trainer"]["args"], "per_device_train_batch_size", 8)
        return f"trainer.args.per_device_train_batch_size={max(1, size // 2)}"
    return "peft=qlora" if found.cfg["peft"] else "peft=lora"


def _steps(found: Forecast) -> str:
    steps, tokens = found.steps, found.tokens_per_step
    if not steps:
        return f"unknown, nobody has counted the rows; {tokens:,} tokens each"
    return f"{steps:,} of {tokens:,} tokens, {_many(tokens * steps)} in all"


def _time(found: Forecast) -> str:
    """How long all steps take at the speed of a device, and where that speed comes from."""
    device, each = found.device, found.operations_per_step
    speed = device.speed or ASSUMED
    at = f"{speed / 1e12:.3g} TFLOP/s" if speed >= 1e11 else f"{speed / 1e9:.3g} GFLOP/s"
    why = f"{device.name} at {at} ({device.how or 'assumed; type speed=<TFLOP/s>'})"
    if not found.steps:
        return f"{_span(each / speed)} a step, {each:.2g} FLOP: {why}"
    return f"{_span(each * found.steps / speed)}, {each * found.steps:.2g} FLOP: {why}"


def _disk(found: Forecast) -> list[str]:
    args, trainer, policy = found.cfg["trainer"]["args"], found.trainer, found.trainer.policy
    adapted = hasattr(policy.model, "peft_config")
    model = policy.trained_bytes if adapted else policy.weights
    weights = model + trained_extra(trainer)
    state = 0 if args.get("save_only_model") else found.memory.held.get("optimizer", state_bytes(trainer))
    saves = _saves(args, found.steps)
    room = free(Path(str(found.cfg["output_root"])))
    need = saves * (weights + state) + model
    many = f"{saves} checkpoint{'s' * (saves > 1)} of {sized(weights + state)} at a time" if saves else "no checkpoint"
    line = f"  {'disk':<13}{many}, {sized(model)} for model/; {sized(room)} free"
    full = f"  {'warning':<13}{sized(need)} do not fit on the disk: output_root=<a larger disk>"
    return [line, full] if need > room else [line]


def trained_extra(trainer: Trainer) -> int:
    """Bytes of a checkpoint beside the policy: PPO's critic, and the policy once more for others."""
    if trainer.name != "PPOTrainer":
        return 0
    return held_gradients(trainer)


def _saves(args: Mapping[str, Any], steps: int | None) -> int:
    """Checkpoints on the disk at the same time: those that are kept, and the one that is written."""
    if setting(args, "save_strategy", "steps") == "no":
        return 0
    most = int(args.get("save_total_limit") or 2) + 1
    every = float(setting(args, "save_steps", 500))
    return min(most, max(1, round(steps / every))) if steps and every >= 1 else most


def _many(count: float) -> str:
    """A large number for people.

    >>> _many(494_032_768), _many(1_500), _many(8.2e9)
    ('494 M', '1.5 k', '8.2 G')
    """
    for size, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return str(round(count))


def _span(seconds: float) -> str:
    """A time of hours or days for people.

    >>> _span(42), _span(7200), _span(300_000)
    ('42 s', '2 h', '3.5 days')
    """
    for size, name in ((86_400 * 2, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / (86_400 if name == 'days' else size):.2g} {name}"
    return f"{seconds:.2g} s"
