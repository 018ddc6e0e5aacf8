"""Changes that may lie between a run and the one that goes on from its checkpoint: ``resume=outputs/<name>/<run>``.

A changed field is another run, from the first step. But where it would have taken the very same steps so far, it may
begin with those of the old one, and ends as if it had taken them itself, bit for bit. Any other field is refused.
"""

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.config.batch import MADE
from runner.config.machines import processes_of, words_for
from runner.errors import ConfigError, Fault, FolderError, fault
from runner.io.files import read_json, write_json
from runner.run import Run, find_foreign_faults, held
from runner.run.key import folder_of, lasting, made_of_batch
from runner.run.read import find_run
from runner.run.seal import damage_of, describe_damage, sealed_checkpoints, step_of
from runner.schema import upstream
from runner.schema.read import UNKNOWN, read_signature
from runner.schema.text import flatten, last_key, nodes, to_override, to_text, walk

LENGTH_INDEPENDENT_SCHEDULES = ("constant", "constant_with_warmup", "inverse_sqrt")
PREFIX = "trainer.args."
ONCE, EACH_STEP = "once", "in each step"  # when a reference's log-probabilities are computed, in a manifest
OURS = "runner."  # of which a user can choose samples alone, which listens to no log


def find_resume_faults(cfg: Mapping[str, Any]) -> list[Fault]:
    """Faults that keep a configuration from going on from the run that its ``resume`` names; none without it."""
    if isinstance(other := _named(cfg), Fault):
        return [other]
    if other is None or other.folder.resolve() == folder_of(cfg, []).resolve():  # in its own it goes on anyway
        run = Run(folder_of(cfg, []))
        manifest = run.manifest() if made_of_batch(cfg) else {}
        then, reason = (manifest.get("hardware") or {}).get("processes"), manifest.get("of_processes")
        if not reason or not isinstance(then, int) or then == (now := processes_of(cfg)):
            return []
        return [fault("run.other_processes", now=now, then=then, run=run, reason=reason, words=words_for(cfg, then))]
    differences = list(_differences(other, cfg))  # first, because it changes no byte of a folder of another format
    if faults := find_foreign_faults(other.folder):
        return faults + differences
    if held(other):
        return [fault("run.resumes_living", run=other, pid=other.status().get("pid")), *differences]
    if not sealed_checkpoints(other.checkpoints):
        return [fault("run.resumes_unsaved", run=other), *differences]
    return differences


def other_run(cfg: Mapping[str, Any]) -> Run | None:
    """The run to go on from; raises FolderError or ConfigError where that has become impossible."""
    if isinstance(other := _named(cfg), Fault):
        raise FolderError(other)
    ConfigError.refuse(find_resume_faults(cfg))
    return other


def begin_from(other: Run, cycle_steps: int) -> Path:
    """The newest checkpoint of another run from which a resume is exact; FolderError where there is none."""
    refused = []
    for path in reversed(sealed_checkpoints(other.checkpoints)):
        step = step_of(path)
        if wrong := damage_of(path):
            refused.append(f"{path.name}: {describe_damage(wrong)}")
        elif step % cycle_steps:
            refused.append(f"{path.name}: inside a generation cycle of {cycle_steps} steps")
        else:
            return path
    raise FolderError(fault("run.resumes_damaged", run=other, damage="; ".join(refused) or "no checkpoint"))


def find_offer(cfg: Mapping[str, Any], folder: Path) -> str:
    """A line where a new run could begin with the steps of one beside it; empty where it could not."""
    others = [path.parent for path in sorted(folder.parent.glob("*/status.json")) if path.parent != folder]
    for other in map(Run, others[:50]):
        step = other.status().get("sealed") if (other.folder / "config.yaml").exists() else 0
        with contextlib.suppress(FolderError):  # of another format, or torn
            if step and not find_resume_faults({**cfg, "resume": str(other.folder)}):
                word = f"{other.folder.parent.name}/{other.folder.name}"
                return f"{word} has taken {step} of the same steps; to go on from them, add resume={other}"
    return ""


def _named(cfg: Mapping[str, Any]) -> Run | Fault | None:
    if not cfg.get("resume"):
        return None
    if isinstance(found := find_run(str(cfg["resume"]), "report", Path(str(cfg["output_root"]))), Fault):
        return Fault("resume", f"{cfg['resume']}: {found.found}", found.expected, found.fix)
    return Run(found.absolute())


def _differences(other: Run, cfg: Mapping[str, Any]) -> Iterator[Fault]:
    """A fault for each value that is another one and not on the list, or that does not fit its condition there."""
    then, now = map(flatten, (lasting(other.cfg), lasting(cfg)))
    defaults = read_signature(cfg["trainer"]["args"]["_target_"])
    known = {name: each.default for name, each in defaults.parameters.items()} if defaults else {}
    known |= {name: None for name, value in known.items() if value is UNKNOWN or name in upstream.MACHINE_DEFAULTS}
    longer = False
    same_batch = cfg.get("batch") and cfg["batch"] == other.cfg.get("batch")  # shared by however many processes
    if (before := processes_of(other.cfg)) != (after := processes_of(cfg)) and not same_batch:
        yield fault("run.resumes_other_processes", before=before, after=after, words=words_for(cfg, before))
    for path in {**then, **now}:
        name = path.removeprefix(PREFIX)
        old, new = (each.get(path, known.get(name) if path.startswith(PREFIX) else None) for each in (then, now))
        if old == new or (same_batch and path in MADE):
            continue
        longer = longer or name in upstream.LONGER
        if reason := _objection(path, old, new, cfg, known):
            unknown = path not in then and name not in known
            is_default = path not in then and name in upstream.MACHINE_DEFAULTS
            was = "its default" if is_default else to_text(old)
            fix = f"leave {path} out" if is_default or unknown else to_override(path, old)
            fix += ", or leave resume out, to start from the first step"
            yield Fault(path, f"{was} -> {to_text(new)}", reason, fix)
    facts, once = other.manifest(), upstream.PRECOMPUTE_REF_LOG_PROBS
    rows, args = ((facts.get("data") or {}).get("train") or {}).get("rows"), {**known, **cfg["trainer"]["args"]}
    is_open = longer and facts.get("reference") == EACH_STEP and once not in cfg["trainer"]["args"]
    if is_open and rows and computes_once(cfg, args, rows):
        yield fault("run.reference_computed_once", each_step=EACH_STEP, once=ONCE, rows=rows)
    status = other.status()
    if status["state"] == "finished" and not (longer and status["step"] == status["max_steps"]):
        found = f"{other} is finished" + (", and stopped before its last step" if longer else "")
        yield Fault("resume", found, "steps that are left", "a larger trainer.args.max_steps, or leave resume out")


def computes_once(cfg: Mapping[str, Any], args: Mapping[str, Any], rows: float, kept: bool = False) -> bool:
    """True where a reference is computed once by default: each row is read, or it is kept; and nothing changes it."""
    against = [cfg.get("collator"), cfg.get("weight"), _streams(cfg), processes_of(cfg) > 1]
    against += [args.get(name) for name in (upstream.SYNC_REF_MODEL, upstream.FSDP, upstream.DEEPSPEED)]
    callbacks = (read_signature(node["_target_"]) for _, node in nodes(cfg.get("callback")))
    against += [signature and upstream.REF_MODEL in signature.parameters for signature in callbacks]
    is_same = not any(against) and bool(args.get(upstream.DISABLE_DROPOUT))
    return is_same and (kept or upstream.passes(args, rows, 1) >= 1)


def _streams(cfg: Mapping[str, Any]) -> bool:
    return any(last_key(key) == "streaming" and each for key, each in walk(cfg.get("dataset") or {}))


def _objection(path: str, old: object, new: object, cfg: Mapping[str, Any], known: Mapping[str, Any]) -> str:
    """Why a run from the start would not have taken the same steps with the new value; empty where it would."""
    name = path.removeprefix(PREFIX) if path.startswith(PREFIX) else ""
    args, callbacks = {**known, **cfg["trainer"]["args"]}, list(nodes(cfg.get("callback"), "callback"))
    if name in upstream.CALLBACK_VISIBLE:
        best = upstream.LOAD_BEST_MODEL_AT_END
        acting = [f"{PREFIX}{best}"] if args.get(best) else []
        acting += [path for path, node in callbacks if not node["_target_"].startswith(OURS)]
        if acting:
            return f"the same, because {acting[0]} may act on it"
    if name in upstream.LOGGED | upstream.CALLBACK_VISIBLE and args.get(upstream.NUM_COMPLETIONS_TO_PRINT):
        return "the same, because trainer.args.num_completions_to_print draws some each time"
    if name in upstream.MAP_STYLE_ONLY and _streams(cfg):
        return "the same, because streamed rows come in another order"
    if name in upstream.LONGER:  # why it cannot be made longer, if it cannot
        if not (isinstance(old, int | float) and isinstance(new, int | float) and min(old, new) > 0):
            return "the same, because its length was given otherwise"
        if new < old:
            return f"more than {to_text(old)}"
        if args.get(upstream.LOAD_BEST_MODEL_AT_END):
            return "the same, because the best checkpoint so far stays behind (trainer.args.load_best_model_at_end)"
        if users := [path for path, node in callbacks if not node["_target_"].startswith((OURS, "transformers."))]:
            return f"the same, because {users[0]} may look at how many steps there will be"
        if own := (cfg.get("optimizer") or {}).get("scheduler"):
            signature = read_signature(own["_target_"])
            ahead, schedule = not signature or "num_training_steps" in signature.parameters, own["_target_"]
        else:
            schedule = str(args.get(upstream.LR_SCHEDULER_TYPE))
            ahead = schedule not in LENGTH_INDEPENDENT_SCHEDULES or 0 < (args.get(upstream.WARMUP_STEPS) or 0) < 1
        reason = f"the same, because the schedule ({schedule}) was drawn for {to_text(old)} from the first step"
        return reason if ahead else ""
    return "" if name in upstream.EXTENDABLE else "the same, because the steps so far were taken with it"


def copy_history(run: Run, other: Run) -> None:
    """Begin with the log and the samples of another run, and the scores of its start model, which is the same one."""
    for name in ("metrics.jsonl", "samples.jsonl"):
        if (other.folder / name).exists() and not (run.folder / name).exists():
            shutil.copyfile(other.folder / name, run.folder / name)
    before = (read_json(other.folder / "scores.json") or {}).get("before")
    if before is not None and not (run.folder / "scores.json").exists():
        write_json(run.folder / "scores.json", {"before": before})
