"""Going on from the checkpoint of another run: ``resume=outputs/<name>/<run>``.

A changed field makes another run, which trains from the first step. But where it would have taken
the very same steps so far, it may begin with those of the old run, and ends as if it had taken them
itself, bit for bit. Any other change is refused.
"""

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runner.config.batch import MADE
from runner.config.experiment import Experiment
from runner.config.machines import words_for
from runner.errors import ConfigError, Fault, FolderError
from runner.io.files import CALLS, read_json, write_json
from runner.run.find import find_run
from runner.run.folder import Run, held
from runner.run.key import folder_of, lasting, made_of_batch
from runner.run.layout import find_foreign_faults
from runner.run.seal import damage_of, describe_damage, sealed_checkpoints, step_of
from runner.schema import upstream
from runner.schema.literal import to_text
from runner.schema.read import UNKNOWN, read_signature
from runner.schema.text import Config, Node, flatten, last_key, nodes, select, to_override, walk

LENGTH_INDEPENDENT_SCHEDULES = ("constant", "constant_with_warmup", "inverse_sqrt")
PREFIX = "trainer.args."
# when a reference's log-probabilities are computed, in a manifest
ONCE = "once"
EACH_STEP = "in each step"
# Callbacks of ours act on no log; the only one that users can choose logs samples.
OURS = "runner."
LIBRARY = "transformers."
FROM_START = "leave resume out, to start from the first step"
MAX_NEIGHBOURS = 50  # runs beside a new one that are looked at


@dataclass(frozen=True)
class ChangedValue:
    """A key that has one value in the old run and another in the new one."""

    path: str
    old: object
    new: object
    was_set: bool  # in the old run, and no default

    @property
    def trainer_arg(self) -> str:
        """The name of the trainer's argument; empty for any other key."""
        if not self.path.startswith(PREFIX):
            return ""
        return self.path.removeprefix(PREFIX)


# --- The other run ------------------------------------------------------------------------------
def find_resume_faults(experiment: Experiment) -> list[Fault]:
    """Faults that keep a configuration from going on from the run that its ``resume`` names."""
    other = _find_named(experiment)
    if isinstance(other, Fault):
        return [other]
    own = Run(folder_of(experiment.node, []))
    # In its own folder a run goes on anyway.
    if other is None or other.folder.resolve() == own.folder.resolve():
        return _find_process_faults(own, experiment)
    # They are found first, because a folder of another format ends the check before its lock is
    # looked at, which would write there.
    differences = list(_differences(other, experiment))
    foreign = find_foreign_faults(other.folder)
    if foreign:
        return foreign + differences
    if held(other):
        pid = other.status().get("pid")
        return [
            Fault(
                where="resume",
                found=f"{other} is being trained by pid {pid}",
                expected="a run that nobody is training",
                fix="wait for it",
            ),
            *differences,
        ]
    if not sealed_checkpoints(other.checkpoints):
        return [
            Fault(
                where="resume",
                found=f"{other} has no checkpoint",
                expected="a run that was saved",
                fix=FROM_START,
            ),
            *differences,
        ]
    return differences


def _find_process_faults(run: Run, experiment: Experiment) -> list[Fault]:
    """The fault of a run that shares its batch among processes, and yet needs as many as before."""
    manifest = run.manifest() if made_of_batch(experiment.node) else {}
    reason = manifest.get("of_processes")
    then = (manifest.get("hardware") or {}).get("processes")
    now = experiment.launcher.all_processes
    if not reason or not isinstance(then, int) or then == now:
        return []
    return [
        Fault(
            where="launcher.num_processes",
            found=f"{now}, but {run} was trained by {then}, and another number "
            f"would take other steps: {reason}",
            expected=str(then),
            fix=f"{words_for(experiment.node, then)}, or name=<another name>",
        )
    ]


def other_run(experiment: Experiment) -> Run | None:
    """The run to go on from; raises FolderError or ConfigError where that has become impossible."""
    other = _find_named(experiment)
    if isinstance(other, Fault):
        raise FolderError(other)
    ConfigError.refuse(find_resume_faults(experiment))
    return other


def _find_named(experiment: Experiment) -> Run | Fault | None:
    """The run that ``resume`` names; a fault where there is none."""
    if not experiment.resume:
        return None
    folder = find_run(experiment.resume, "report", experiment.root)
    if isinstance(folder, Fault):
        return Fault(
            where="resume",
            found=f"{experiment.resume}: {folder.found}",
            expected=folder.expected,
            fix=folder.fix,
        )
    return Run(folder.absolute())


def begin_from(other: Run, cycle_steps: int) -> Path:
    """The newest checkpoint of another run from which a resume is exact.

    Raises FolderError where there is none.
    """
    refused = []
    for path in reversed(sealed_checkpoints(other.checkpoints)):
        damage = damage_of(path)
        if damage:
            refused.append(f"{path.name}: {describe_damage(damage)}")
        elif step_of(path) % cycle_steps:
            refused.append(f"{path.name}: inside a generation cycle of {cycle_steps} steps")
        else:
            return path
    raise FolderError(
        Fault(
            where="resume",
            found="; ".join(refused) or "no checkpoint",
            expected=f"a complete checkpoint of {other}",
            fix=FROM_START,
        )
    )


def copy_history(run: Run, other: Run) -> None:
    """Begin with the log and the samples of another run, and the scores of its start model.

    The start model of both is the same.
    """
    for name in ("metrics.jsonl", "samples.jsonl", "completions.jsonl", CALLS):
        if (other.folder / name).exists() and not (run.folder / name).exists():
            shutil.copyfile(other.folder / name, run.folder / name)
    before = (read_json(other.folder / "scores.json") or {}).get("before")
    if before is not None and not (run.folder / "scores.json").exists():
        write_json(run.folder / "scores.json", {"before": before})


def find_offer(experiment: Experiment, folder: Path) -> str:
    """A line where a new run could begin with the steps of one beside it; empty where it cannot."""
    statuses = sorted(folder.parent.glob("*/status.json"))
    folders = [path.parent for path in statuses]
    folders = [neighbour for neighbour in folders if neighbour != folder]
    for neighbour in folders[:MAX_NEIGHBOURS]:
        other = Run(neighbour)
        step = other.status().get("sealed")
        if not step or not (neighbour / "config.yaml").exists():
            continue
        with contextlib.suppress(FolderError):  # of another format, or torn
            resumed = Experiment.read({**experiment.node, "resume": str(neighbour)})
            if not find_resume_faults(resumed):
                name = f"{neighbour.parent.name}/{neighbour.name}"
                return (
                    f"{name} has taken {step} of the same steps; "
                    f"to continue from them, add resume={other}"
                )
    return ""


# --- Changed values -----------------------------------------------------------------------------
def _differences(other: Run, experiment: Experiment) -> Iterator[Fault]:
    """The faults of what has changed since another run, and would have changed its steps."""
    old = other.experiment  # FolderError for a folder of another format
    defaults = _defaults_of(experiment.trainer.args["_target_"])
    # A batch may be shared by however many processes.
    same_batch = bool(experiment.batch) and experiment.batch == old.batch
    before = old.launcher.all_processes
    after = experiment.launcher.all_processes
    if before != after and not same_batch:
        yield Fault(
            where="launcher",
            found=f"{before} -> {after} processes",
            expected="the same number of processes, because each draws its own rows",
            fix=f"{words_for(experiment.node, before)}, or leave resume out",
        )
    is_longer = False
    for change in _changed_values(old.node, experiment.node, defaults):
        if same_batch and change.path in MADE:
            continue
        is_longer = is_longer or change.trainer_arg in upstream.LONGER
        reason = _objection(change, experiment, defaults)
        if reason:
            yield _change_fault(change, reason, defaults)
    if is_longer:
        yield from _find_reference_faults(other, experiment, defaults)

    status = other.status()
    took_all_steps = status["step"] == status["max_steps"]
    if status["state"] == "finished" and not (is_longer and took_all_steps):
        found = f"{other} is finished"
        if is_longer:
            found += ", but stopped before its last step"
        yield Fault(
            where="resume",
            found=found,
            expected="steps that are left",
            fix="a larger trainer.args.max_steps, or leave resume out",
        )


def _defaults_of(target: str) -> dict[str, object]:
    """The defaults of the trainer's arguments; None where the machine decides, or unknown."""
    signature = read_signature(target)
    if signature is None:
        return {}
    defaults: dict[str, object] = {}
    for name, parameter in signature.parameters.items():
        is_fixed = parameter.default is not UNKNOWN and name not in upstream.MACHINE_DEFAULTS
        defaults[name] = parameter.default if is_fixed else None
    return defaults


def _changed_values(old_cfg: Config, new_cfg: Config, defaults: Node) -> Iterator[ChangedValue]:
    """The keys with another value in two configurations; one that is not set has its default."""
    then = flatten(lasting(old_cfg))
    now = flatten(lasting(new_cfg))
    for path in {**then, **now}:
        default = None
        if path.startswith(PREFIX):
            default = defaults.get(path.removeprefix(PREFIX))
        old = then.get(path, default)
        new = now.get(path, default)
        if old != new:
            yield ChangedValue(path, old, new, was_set=path in then)


def _change_fault(change: ChangedValue, reason: str, defaults: Node) -> Fault:
    """The fault of a changed value, with how to have the old one again."""
    name = change.trainer_arg
    is_machine_default = not change.was_set and name in upstream.MACHINE_DEFAULTS
    is_unknown = not change.was_set and name not in defaults
    old = "its default" if is_machine_default else to_text(change.old)
    again = to_override(change.path, change.old)
    if is_machine_default or is_unknown:
        again = f"leave {change.path} out"
    return Fault(
        where=change.path,
        found=f"{old} -> {to_text(change.new)}",
        expected=reason,
        fix=f"{again}, or {FROM_START}",
    )


def _objection(change: ChangedValue, experiment: Experiment, defaults: Node) -> str:
    """The reason why a run from the start would have taken other steps with the new value.

    It is empty where the steps would have been the same.
    """
    name = change.trainer_arg
    args = {**defaults, **experiment.trainer.args}
    if name in upstream.CALLBACK_VISIBLE:
        acting = []
        if args.get("load_best_model_at_end"):
            acting.append(f"{PREFIX}load_best_model_at_end")
        acting += _callbacks_but(experiment, (OURS,))
        if acting:
            return f"the same, because {acting[0]} may act on it"
    is_logged = name in upstream.LOGGED or name in upstream.CALLBACK_VISIBLE
    if is_logged and args.get("num_completions_to_print"):
        return "the same, because trainer.args.num_completions_to_print draws some each time"
    if name in upstream.MAP_STYLE_ONLY and _streams(experiment):
        return "the same, because streamed rows come in another order"
    if name in upstream.LONGER:
        return _length_objection(change, experiment, args)
    if name in upstream.EXTENDABLE:
        return ""
    return "the same, because the steps so far were taken with it"


def _length_objection(change: ChangedValue, experiment: Experiment, args: Node) -> str:
    """The reason why a training cannot be made longer; empty where it can."""
    old = change.old
    new = change.new
    otherwise = "the same, because its length was set in another way"
    if not isinstance(old, int | float) or not isinstance(new, int | float):
        return otherwise
    if min(old, new) <= 0:  # which leaves the length to other arguments
        return otherwise
    if new < old:
        return f"more than {to_text(old)}"
    if args.get("load_best_model_at_end"):
        return (
            "the same, because the best checkpoint so far stays behind "
            "(trainer.args.load_best_model_at_end)"
        )
    users = _callbacks_but(experiment, (OURS, LIBRARY))
    if users:
        return f"the same, because {users[0]} may depend on the total number of steps"
    schedule = select(experiment.node, "optimizer.scheduler._target_")
    if schedule:
        signature = read_signature(schedule)
        looks_ahead = signature is None or "num_training_steps" in signature.parameters
    else:
        schedule = str(args.get("lr_scheduler_type"))
        is_share = 0 < (args.get("warmup_steps") or 0) < 1  # of all steps, for the warm-up
        looks_ahead = schedule not in LENGTH_INDEPENDENT_SCHEDULES or is_share
    if not looks_ahead:
        return ""
    return (
        f"the same, because the schedule ({schedule}) was drawn for {to_text(old)} "
        "from the first step"
    )


def _callbacks_but(experiment: Experiment, prefixes: tuple[str, ...]) -> list[str]:
    """The dotted keys of the callbacks whose targets begin with none of these."""
    callbacks = nodes(experiment.node.get("callback"), "callback")
    return [path for path, node in callbacks if not node["_target_"].startswith(prefixes)]


def _streams(experiment: Experiment) -> bool:
    """True for a dataset that is read while it trains."""
    for key, value in walk(experiment.dataset.node):
        if last_key(key) == "streaming" and value:
            return True
    return False


# --- The reference's log-probabilities ----------------------------------------------------------
def _find_reference_faults(other: Run, experiment: Experiment, defaults: Node) -> Iterator[Fault]:
    """The fault of a longer run that would compute its reference once, and the old one did not."""
    manifest = other.manifest()
    rows = select(manifest, "data.train.rows")
    is_chosen = "precompute_ref_log_probs" in experiment.trainer.args
    if is_chosen or not rows or manifest.get("reference") != EACH_STEP:
        return
    if computes_once(experiment, {**defaults, **experiment.trainer.args}, rows):
        yield Fault(
            where="trainer.args.precompute_ref_log_probs",
            found=f"{EACH_STEP}, and {ONCE} in a run that reads each of its {rows} rows",
            expected="as the run so far",
            fix="=false, or leave resume out",
        )


def computes_once(experiment: Experiment, args: Node, rows: float, kept: bool = False) -> bool:
    """True where a reference's log-probabilities are computed once by default.

    Each row is read, or they are ``kept`` from before; and nothing changes them.
    """
    changes_rows = experiment.collator or experiment.group("weight")
    if changes_rows or _streams(experiment) or experiment.launcher.all_processes > 1:
        return False
    if any(args.get(name) for name in ("sync_ref_model", "fsdp", "deepspeed")):
        return False
    for _, node in nodes(experiment.node.get("callback")):
        signature = read_signature(node["_target_"])
        if signature and "ref_model" in signature.parameters:
            return False
    if not args.get("disable_dropout"):
        return False
    return kept or upstream.passes(args, rows, 1) >= 1
