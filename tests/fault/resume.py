"""A resume never differs in silence: what may change is on a list; all else is refused, old -> new.

    python tests/fault/resume.py                    everything, about ten minutes of one processor
    python tests/fault/resume.py fields groups      some of: fields groups bits files control

fields     every field of every trainer's config, changed once groups     every other key of a
configuration, changed once bits       a run that goes on from another one with a change of the list
ends as if it had had it from the start files      a changed file of rows, tokenizer, base model or
code, for the same command and for another run control    TRL's own trainer, resumed with a changed
field

Prints a line for each kind. The exit code is 1 where a change is neither on the list nor refused
with both values, where a run with a change of the list differs in its weights, or where the control
never is silent.
"""

from __future__ import annotations

import argparse
import copy
import json
import resource
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from runner.config.experiment import Experiment

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from damage import LAST_SAVE, flip
from kill import GROUPS, TRAINERS, WORDS, Place, unbroken
from needs import needed
from warm import Warm

from runner.config.composition import compose
from runner.config.override import parse, quote_text
from runner.errors import Fault
from runner.io.files import files_of, read_json
from runner.run import Run, open_run
from runner.run.continuation import find_resume_faults
from runner.run.seal import seal
from runner.schema.literal import to_text
from runner.schema.read import UNKNOWN, read_signature
from runner.schema.text import flatten

CONF = Path(__file__).resolve().parents[2] / "conf" / "trainer"
NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))
# What the documentation promises, written down independently: no step of a training depends on
# these.
ALLOWED = frozenset(
    {
        *(
            "logging_strategy",
            "logging_steps",
            "logging_first_step",
            "log_on_each_node",
            "log_level",
        ),
        *(
            "log_level_replica",
            "log_completions",
            "log_unique_prompts",
            "report_to",
            "run_name",
            "project",
        ),
        *(
            "trackio_space_id",
            "trackio_bucket_id",
            "trackio_static_space_id",
            "skip_memory_metrics",
        ),
        *(
            "push_to_hub",
            "hub_token",
            "hub_private_repo",
            "hub_model_id",
            "hub_strategy",
            "hub_always_push",
        ),
        *(
            "hub_revision",
            "save_strategy",
            "save_steps",
            "save_total_limit",
            "eval_strategy",
            "eval_steps",
        ),
        *("eval_delay", "eval_on_start", "per_device_eval_batch_size", "eval_accumulation_steps"),
        *(
            "dataloader_num_workers",
            "dataloader_pin_memory",
            "dataloader_prefetch_factor",
            "dataset_num_proc",
        ),
        *("ddp_timeout", "max_steps", "num_train_epochs"),  # the last two may grow
    }
)
# Keys beside the trainer's config that name, place, launch or watch a run.
ASIDE = (
    "name",
    "output_root",
    "tracker",
    "allow",
    "objective",
    "learning_rate",
    "kl_coef",
    "resume",
    "on_memory",
)
ASIDE += ("attempts", "launcher", "on_sick", "tolerate")
# Keys that change no step: one only refuses rows, the other is in the learning rate by then.
NO_EFFECT = ("trainer.images", "peft.learning_rate_factor")
STEADY = "trainer.args.lr_scheduler_type=constant"
# Listed changes as words of a command. SFT has dropout, so that its bits depend on each
# random number.
EVALUATED = "trainer.args.eval_strategy=steps"
CHANGES = {
    "sft": (
        *(("trainer.args.logging_steps=3",), ("trainer.args.logging_first_step=true",)),
        *(("trainer.args.logging_strategy=epoch",), ("trainer.args.log_level=info",)),
        *(
            ("trainer.args.save_steps=3",),
            ("trainer.args.save_strategy=epoch",),
            ("trainer.args.save_total_limit=1",),
        ),
        *((EVALUATED, "trainer.args.eval_steps=3"), ("trainer.args.eval_strategy=no",)),
        *(("trainer.args.eval_on_start=true",), (EVALUATED, "trainer.args.eval_delay=1")),
        *(
            ("trainer.args.per_device_eval_batch_size=3",),
            ("trainer.args.eval_accumulation_steps=1",),
        ),
        *(
            ("trainer.args.dataloader_num_workers=2",),
            ("trainer.args.dataloader_pin_memory=false",),
        ),
        ("trainer.args.dataloader_num_workers=1", "trainer.args.dataloader_prefetch_factor=3"),
        *(("trainer.args.dataset_num_proc=2",), ("trainer.args.skip_memory_metrics=false",)),
        *(("trainer.args.ddp_timeout=99",), ("trainer.args.log_level_replica=info",)),
        *(
            ("trainer.args.max_steps=11",),
            ("trainer.args.max_steps=11", "trainer.args.save_steps=3"),
        ),
    ),
    "grpo": (
        *(("trainer.args.logging_steps=3",), ("trainer.args.log_completions=true",)),
        *(
            ("trainer.args.save_steps=4",),
            (EVALUATED, "trainer.args.eval_steps=3"),
            ("trainer.args.max_steps=10",),
        ),
    ),
    "dpo": ((EVALUATED, "trainer.args.eval_steps=3"), ("trainer.args.max_steps=10",)),
    "ppo": ((EVALUATED, "trainer.args.eval_steps=3"), ("trainer.args.max_steps=10",)),
}


# --- The lists, by the real functions and without a training --------------------------------------


def laid(cfg: Mapping[str, Any], root: Path) -> dict[str, Any]:
    """The configuration that would resume a run of this one, which stopped in its fourth step."""
    cfg = dict(cfg) | {"output_root": str(root)}
    run = open_run(cfg, [])
    folder = run.checkpoints / "checkpoint-4"
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_text("weights")
        seal(folder)
        run.set_status("interrupted", step=4, max_steps=8, sealed=4)
    return cfg | {"resume": str(run.folder)}


def composed(trainer: str, *words: str) -> dict[str, Any]:
    return dict(compose([f"trainer={trainer}", *needed(trainer), STEADY, *words]).cfg)


def misses_of_fields(root: Path, trainers: list[str] = NAMES) -> Iterator[tuple[str, str]]:
    """The faults in how a change of each field of each trainer's config is treated."""
    for trainer in trainers:
        cfg = laid(composed(trainer), root / trainer)
        for name, (old, new) in changes_of(cfg).items():
            now = told_differently(cfg, {name: new})
            yield (
                f"{trainer} {name}",
                judged(now, f"trainer.args.{name}", old, new, name in ALLOWED),
            )


def changes_of(cfg: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Each field of the trainer's config with its value and another one."""
    fields = read_signature(cfg["trainer"]["args"]["_target_"]).parameters
    defaults = {
        name: None if field.default is UNKNOWN else field.default for name, field in fields.items()
    }
    values = {name: cfg["trainer"]["args"].get(name, default) for name, default in defaults.items()}
    return {name: (value, changed(value)) for name, value in values.items()}


def told_differently(cfg: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration with other values of some fields of the trainer's config."""
    args = dict(cfg["trainer"]["args"]) | dict(fields)
    return dict(cfg) | {"trainer": dict(cfg["trainer"]) | {"args": args}}


def misses_of_groups(root: Path) -> Iterator[tuple[str, str]]:
    """The same for every key beside the trainer's config, and for groups that come and go."""
    words = (
        "peft=lora",
        "quant=none",
        "optimizer=adamw",
        "metric=exact",
        "weight=none",
        "callback=samples",
    )
    cfg = laid(composed("grpo", *words), root)
    for path, old in flatten(
        {key: node for key, node in cfg.items() if key not in ("launcher", "resume")}
    ).items():
        if path.startswith("trainer.args.") and path != "trainer.args._target_":
            continue
        now = copy.deepcopy(cfg)
        new = changed(old)
        put(now, path, new)
        aside = path.partition(".")[0] in ASIDE or path in NO_EFFECT
        yield (
            path,
            ""
            if aside and not find_resume_faults(Experiment.read(now))
            else judged(now, path, old, new, aside),
        )
    now = cfg | {"launcher": dict(cfg["launcher"] or {}) | {"num_processes": 2}}
    told = " ".join(
        f"{fault.where} {fault.found}" for fault in find_resume_faults(Experiment.read(now))
    )
    yield "launcher.num_processes", "" if told == "launcher 1 -> 2 processes" else f"told: {told}"
    for group in ("peft", "optimizer", "metric", "callback", "reward"):
        yield (
            f"{group} gone",
            "" if find_resume_faults(Experiment.read(cfg | {group: None})) else "not refused",
        )


def changed(old: Any) -> Any:
    """Another value of the same kind; more of a number."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int | float):
        return old + 1
    if old == "runner":  # as a sampler; null is that of TRL
        return None
    return (
        f"{old}-other"
        if isinstance(old, str)
        else [*old, "other"]
        if isinstance(old, list)
        else "other"
    )


def put(cfg: dict[str, Any], path: str, value: Any) -> None:
    *outer, last = path.split(".")
    for key in outer:
        cfg = cfg[key]
    cfg[last] = value


def judged(now: Mapping[str, Any], path: str, old: Any, new: Any, allowed: bool) -> str:
    """The fault in how a change is treated.

    Accepted but not on the list, or refused without both values.
    """
    faults = find_resume_faults(Experiment.read(now))
    if allowed:
        return f"on the list, and refused: {faults[0]}" if faults else ""
    told = [fault for fault in faults if fault.where == path]
    if not told:
        return f"neither on the list nor refused: {to_text(old)} -> {to_text(new)}"
    return "" if is_whole(told[0], old, new) else f"without both values: {told[0]}"


def is_whole(fault: Fault, old: Any, new: Any) -> bool:
    """True if a fault names the old value, the new one, and what to type to go on."""
    named = fault.found.startswith((f"{to_text(old)} -> ", "its default -> "))
    is_complete = (
        named
        and fault.found.endswith(f"-> {to_text(new)}")
        and "resume" in fault.fix
        and bool(fault.expected)
    )
    return is_complete and is_typeable(fault.fix.partition(", or leave resume out")[0], old)


def is_typeable(fix: str, old: Any) -> bool:
    """True if a shell and Hydra read the words to type as the old value, which need not have been
    there.
    """
    if fix.startswith("leave "):
        return True
    [override] = parse(map(quote_text, shlex.split(fix)))
    text = override.value()
    return to_text(getattr(text, "text", text)) == to_text(old)


# --- Real runs ------------------------------------------------------------------------------------


class Interrupted:
    """A run of each trainer that was killed at its third save, copies of which are resumed.

    Made once each.
    """

    def __init__(self, root: Path, warm: Warm):
        self.root = root
        self.warm = warm
        self.count = 0
        self.killed: dict[str, Place] = {}

    def words(self, trainer: str) -> tuple[str, ...]:
        settings = (
            (*GROUPS, "kl_coef=0.1")
            if trainer == "grpo"
            else ("trainer.args.gradient_accumulation_steps=2",)
        )
        short = "dataset.limit={train: 32, eval: 4}"  # two epochs and more
        limits = () if trainer in ("grpo", "ppo") else (short,)
        return (*WORDS, TRAINERS[trainer][0], *settings, *limits, STEADY)

    def place(self, name: str, trainer: str) -> Place:
        return Place(
            self.root / name, self.root, self.warm, dropout=0.1 if trainer == "sft" else 0.0
        )

    def copy(self, trainer: str) -> Place:
        """The folder of a killed run once more."""
        if trainer not in self.killed:
            self.killed[trainer] = self.kill(f"killed-{trainer}", trainer)
        self.count += 1
        twin = copy.copy(self.killed[trainer])
        twin.folder = self.root / f"copy-{self.count}"
        shutil.copytree(self.killed[trainer].folder, twin.folder)
        return twin

    def kill(self, name: str, trainer: str, words: tuple[str, ...] = ()) -> Place:
        place = self.place(name, trainer)
        (place.folder / "mine.py").write_text(CODE)
        assert (
            place.start((*self.words(trainer), *words), pattern=LAST_SAVE, count=1)
            .wait()
            .returncode
            == -9
        )
        return place

    def whole(self, trainer: str, change: tuple[str, ...]) -> Run:
        """The run that had the change from the start."""
        self.count += 1
        place = self.place(f"whole-{self.count}", trainer)
        unbroken(place, (*self.words(trainer), *change))
        return place.run


CODE = "from transformers import TrainerCallback\n\n\nclass Mine(TrainerCallback):\n    pass\n"
OWN = ("callback.mine._target_=mine.Mine", "allow=[mine]")


def misses_of_bits(
    runs: Interrupted, changes: Mapping[str, tuple] = CHANGES
) -> Iterator[tuple[str, str]]:
    """Each listed change after which a resumed run differs from one that had the change from the
    start.
    """
    for trainer, changed in changes.items():
        for change in changed:
            yield f"{trainer} {' '.join(change)}", differs(runs, trainer, change)


def differs(runs: Interrupted, trainer: str, change: tuple[str, ...]) -> str:
    place = runs.copy(trainer)
    before = place.run.folder
    done = place.start(
        (*runs.words(trainer), *change, f"resume={before.relative_to(place.folder)}")
    ).wait()
    if done.returncode or "begins    with checkpoint-6" not in done.stdout:
        return f"exit code {done.returncode}: {done.stdout[-200:]} {done.stderr[-300:]}"
    after = Run(next(folder for folder in before.parent.iterdir() if folder.name != before.name))
    weights_after, wanted = (weights(run) for run in (after, runs.whole(trainer, change)))
    return (
        f"differs in {sorted(name for name in wanted if weights_after.get(name) != wanted[name])}"
        if weights_after != wanted
        else ""
    )


def weights(run: Run) -> dict[str, str]:
    return {
        name: digest
        for name, digest in files_of(run.model).items()
        if name.endswith(".safetensors")
    }


def add_row(folder: Path) -> None:
    lines = (folder / "rows" / "train.jsonl").read_text().splitlines()
    (folder / "rows" / "train.jsonl").write_text("\n".join([lines[1], *lines[1:]]) + "\n")


def edit_tokenizer(folder: Path) -> None:
    path = folder / "start" / "tokenizer_config.json"
    path.write_text(json.dumps(read_json(path) | {"padding_side": "left", "model_max_length": 77}))


FILES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "rows": ("rows/train.jsonl", add_row),
    "tokenizer": ("start/tokenizer_config.json", edit_tokenizer),
    "base model": (
        "start/model.safetensors",
        lambda folder: flip(folder / "start" / "model.safetensors"),
    ),
}


def misses_of_files(
    runs: Interrupted, names: tuple[str, ...] = tuple(FILES)
) -> Iterator[tuple[str, str]]:
    """Each changed file, for the same command and for a run that would resume it with other
    logging.
    """
    for name in names:
        for way in ("the same command", "another run"):
            yield f"{name}, {way}", refused(runs, name, way)
    for way in ("the same command", "another run"):
        yield f"code, {way}", noted(runs, way)


def refused(runs: Interrupted, name: str, way: str) -> str:
    """Empty if a changed file ended the command with its name, both hashes, and nothing begun."""
    place = runs.copy("sft")
    file, change = FILES[name]
    change(place.folder)
    before = place.run.folder
    words = [*runs.words("sft")]
    if way == "another run":
        words += ["trainer.args.logging_steps=2", f"resume={before.relative_to(place.folder)}"]
    done = place.start(tuple(words)).wait()
    trained = [path for path in place.folder.glob("outputs/run/*/model")]
    missing = [word for word in (file, " -> ", "type ") if word not in done.stderr]
    shutil.rmtree(place.folder)
    if done.returncode == 4 and not missing and not trained:
        return ""
    return f"exit code {done.returncode}, not said: {missing}: {done.stderr[-400:]}"


def noted(runs: Interrupted, way: str) -> str:
    """Empty if changed code of the user's is reported on the terminal and in the manifest of the
    resumed run.
    """
    runs.count += 1
    place = runs.kill(f"code-{runs.count}", "sft", OWN)
    before = place.run.folder
    (place.folder / "mine.py").write_text(CODE.replace("pass", "mended = True"))
    words = [*runs.words("sft"), *OWN]
    if way == "another run":
        words += ["trainer.args.ddp_timeout=99", f"resume={before.relative_to(place.folder)}"]
    done = place.start(tuple(words)).wait()
    folders = [
        folder
        for folder in before.parent.iterdir()
        if way == "the same command" or folder != before
    ]
    notes = f"{len(folders)} folders"
    if len(folders) == 1:
        notes = " ".join(Run(folders[0]).manifest().get("notes", []))
    told = "mine.py" in done.stderr and " -> " in done.stderr and "mine.py" in notes
    shutil.rmtree(place.folder)
    return (
        ""
        if told and not done.returncode
        else f"exit code {done.returncode}; {notes}; {done.stderr[-400:]}"
    )


SILENT = (
    "learning_rate=0.001",
    "weight_decay=0.1",
    'optim="sgd"',
    "per_device_train_batch_size=2",
    "data_seed=5",
)
SILENT += (
    "max_length=16",
    'lr_scheduler_type="cosine"',
    "max_grad_norm=0.1",
    "gradient_accumulation_steps=1",
)


def control(runs: Interrupted) -> dict[str, int]:
    """The reaction of TRL's own trainer to a changed field.

    It stops, warns of that field, or says nothing.
    """
    counts = {"stopped": 0, "told": 0, "in silence": 0}
    killed = Place(runs.root / "plain", runs.root, runs.warm, "plain:main")
    assert killed.start((), pattern=LAST_SAVE, count=1).wait().returncode == -9
    shutil.rmtree(killed.folder / "outputs/plain/checkpoint-8", ignore_errors=True)
    for number, word in enumerate(SILENT):
        place = copy.copy(killed)
        place.folder = runs.root / f"plain-{number}"
        shutil.copytree(killed.folder, place.folder)
        done = place.start((word,)).wait()
        name = word.partition("=")[0]
        counts[
            "stopped"
            if done.returncode
            else "told"
            if name in done.stderr + done.stdout
            else "in silence"
        ] += 1
    return counts


def told_of(kind: str, cases: Iterator[tuple[str, str]]) -> int:
    """Print how many cases of a kind were as promised, and each that was not.

    Return the number of the latter.
    """
    told = dict(cases)
    bad = {name: text for name, text in told.items() if text}
    print(f"{kind:<8} {len(told) - len(bad):>4} of {len(told):>4} as promised", flush=True)
    print("".join(f"         {name}: {text}\n" for name, text in bad.items()), end="")
    return len(bad)


def main() -> int:
    kinds = ("fields", "groups", "bits", "files", "control")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", default=kinds)
    asked = parser.parse_args().kinds
    bad = 0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        warm = Warm(root / "warm")
        runs = Interrupted(root, warm)
        cases = {
            "fields": lambda: misses_of_fields(root / "fields"),
            "groups": lambda: misses_of_groups(root / "groups"),
            "bits": lambda: misses_of_bits(runs),
            "files": lambda: misses_of_files(runs),
        }
        for kind in (kind for kind in kinds if kind in asked and kind in cases):
            bad += told_of(kind, cases[kind]())
        if "control" in asked:
            plain = control(runs)
            bad += not plain["in silence"]
            print(f"control  {', '.join(f'{number} {name}' for name, number in plain.items())}")
        warm.close()
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(f"{sum(u.ru_utime + u.ru_stime for u in used):.0f} CPU seconds")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
