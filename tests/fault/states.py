"""States tell the truth in random lives of a run.

Started, stopped, killed, damaged and started again.

    python tests/fault/states.py                    1000 lives of up to eight events, some minutes
    python tests/fault/states.py --count 100

The worker, its lock, its files, its callbacks, the seals and the end of a training are the real
ones; only what costs time is made up: the steps of this trainer are hashes of the ones before, so
that its weights tell whether each was done once and in order. What is killed, or meets a full disk,
is a process of its own. The exit code is 1 where a life breaks a promise.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import gc
import hashlib
import io
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from instant import TOUCHES, Instant, _path, watch

from runner.errors import code_of
from runner.io.files import read_json
from runner.launch import signals, worker
from runner.launch.plan import state_of
from runner.run import Run, open_run
from runner.run.alarms import steps_to_notice
from runner.run.history import read_metrics
from runner.run.record import read_run
from runner.run.seal import damage_of, sealed_checkpoints
from runner.training.callback.step_record import Record
from runner.training.callback.stop import StopAtStep
from runner.training.checkpoint import Seal
from runner.training.components.types import Components

STEPS = 7
SAVE = 2
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
WAYS = ("finish", "raise", "leave", "signal", "kill", "full", "stays full")
FORKED = ("kill", "full", "stays full")
# The files that an undisturbed run touches; a fault planned for later never occurs.
MOST_TOUCHES = 260


def weights_after(step: int) -> str:
    """The weights after so many steps."""
    text = "start"
    for number in range(1, step + 1):
        text = hashlib.sha256(f"{text} {number}".encode()).hexdigest()
    return text


# --- A trainer without a model --------------------------------------------------------------------


class Trainer:
    """Takes steps that cost nothing, with the callbacks that watch every training."""

    def __init__(self, run: Run, stop: signals.Stop, way: str, when: int):
        self.way = way
        self.when = when
        self.begun = run.folder.parent / "begun"
        self.hooks = SimpleNamespace(use_cache=None, measure=None)
        seal = Seal(2, steps_to_notice(), set_status=run.set_status)
        self.callbacks = [StopAtStep(stop), Record(run.metrics, run.set_status), seal]
        self.callback_handler = SimpleNamespace(callbacks=self.callbacks)
        self.args = SimpleNamespace(
            output_dir=str(run.checkpoints),
            process_index=0,
            load_best_model_at_end=False,
            metric_for_best_model=None,
            save_strategy="steps",
            gradient_accumulation_steps=1,
            world_size=1,
            seed=0,
            fsdp=None,
            deepspeed=None,
            to_dict=dict,
        )
        self.state = SimpleNamespace(
            global_step=0,
            max_steps=STEPS,
            is_world_process_zero=True,
            best_model_checkpoint=None,
            best_metric=None,
            log_history=[],
            total_flos=0,
        )
        self.control = SimpleNamespace(
            should_save=False, should_log=False, should_training_stop=False
        )
        self.accelerator = SimpleNamespace(
            unwrap_model=lambda model: model, wait_for_everyone=lambda: None
        )
        self.model = self.model_wrapped = object()
        self.weights = weights_after(0)
        self.is_fsdp_enabled = False
        self.processing_class = SimpleNamespace(save_pretrained=lambda folder: None)

    def is_world_process_zero(self) -> bool:
        return True

    def add_callback(self, callback: object) -> None:
        self.callbacks.append(callback)

    def remove_callback(self, callback: object) -> None:
        self.callbacks = [hook for hook in self.callbacks if callback not in (hook, type(hook))]

    def tell(self, event: str, **kwargs: object) -> None:
        for callback in list(self.callbacks):
            getattr(callback, event)(self.args, self.state, self.control, **kwargs)

    def train(self, resume_from_checkpoint: str | None = None) -> None:
        if resume_from_checkpoint:
            self.state.global_step = read_json(Path(resume_from_checkpoint) / "trainer_state.json")[
                "global_step"
            ]
            self.weights = (Path(resume_from_checkpoint) / "model.safetensors").read_text()
        self.begun.write_text(str(self.state.global_step))
        self.tell("on_train_begin")
        while self.state.global_step < STEPS and not self.control.should_training_stop:
            self.tell("on_step_begin")
            self.step()
        self.tell("on_train_end")

    def log(self, logs: dict[str, float]) -> None:
        self.tell("on_log", logs=logs)

    def step(self) -> None:
        step = self.state.global_step + 1
        if step == self.when or self.way == "hold":
            misbehave(self.way)
        self.weights = hashlib.sha256(f"{self.weights} {step}".encode()).hexdigest()
        self.state.global_step = step
        self.control.should_save = step % SAVE == 0 or step == STEPS
        self.tell("on_step_end")
        self.tell("on_log", logs={"loss": 1 / step})
        if self.control.should_save:
            folder = Path(self.args.output_dir) / f"checkpoint-{step}"
            self.save_model(str(folder))
            state = {"global_step": step, "max_steps": STEPS, "best_model_checkpoint": None}
            (folder / "trainer_state.json").write_text(json.dumps(state))
            self.tell("on_save", model=None, optimizer=None)

    def save_model(self, folder: str) -> None:
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/model.safetensors", "w") as file:
            file.write(self.weights)


def misbehave(way: str) -> None:
    """Misbehave at a step."""
    if way == "raise":
        raise ValueError("a fault in somebody's code")
    if way == "leave":
        sys.exit(0)
    if way.startswith("signal"):
        os.kill(os.getpid(), SIGNALS[int(way[-1])])
    if way == "hold":
        time.sleep(60)


@contextmanager
def made_up(way: str, when: int) -> Iterator[None]:
    """Train with this trainer, and without what only real models need."""

    def components(run: Run, stop: signals.Stop) -> Components:
        trainer = Trainer(run, stop, way, when)
        seal = trainer.callbacks[-1]
        health = SimpleNamespace(sickness_behind=lambda step: None, conclude=lambda *args: None)
        return Components(
            trainer.args, None, [0], None, trainer, health, seal, trackers=[], adjustments=[]
        )

    def nothing(*args: object, **kwargs: object) -> None:
        """Stand in for what only real models need."""

    def scores(trainer: Trainer) -> dict[str, float]:
        return {"eval_loss": 1.0}

    def policy(trainer: Trainer) -> object:
        return trainer.model

    fakes = {
        "runner.command.train.build_components": components,
        "runner.command.train.check_first_rows": nothing,
        "runner.command._finish.held_out_scores": scores,
        "runner.command._finish.policy_of": policy,
        "runner.command._finish.set_seed": nothing,
        "runner.command._finish.write_plots": nothing,
        "runner.run.manifest.installed_version": nothing,
        "runner.run.manifest.run_git": nothing,
        "runner.training.beginning.collect_facts": lambda *args: {"data": {"train": {"rows": 1}}},
        "runner.training.beginning.find_process_dependence": nothing,
        "runner.training.beginning.held_out_scores": scores,
        "runner.training.checkpoint.find_unsaved": lambda *args: [],
        "runner.training.model_folder.find_missing": lambda *args: [],
        "runner.training.model_folder.policy_of": policy,
    }
    with contextlib.ExitStack() as patches:
        for name, fake in fakes.items():
            patches.enter_context(mock.patch(name, fake))
        yield


def full_from(touch: int, folder: Path, stays: bool) -> None:
    """Make the touch of a file fail as on a full disk, and all later ones if it stays full."""
    calls = 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal calls
        if (
            event not in TOUCHES
            or (path := _path(event, arguments)) is None
            or not path.startswith(str(folder))
        ):
            return
        calls += 1
        takes_room = event == "os.mkdir" or (event == "open" and _writes(arguments))
        if takes_room and (calls >= touch if stays else calls == touch):
            raise OSError(errno.ENOSPC, "No space left on device", path)

    sys.addaudithook(hook)


def _writes(arguments: tuple) -> bool:
    return isinstance(arguments[2], int) and bool(
        arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    )


def start(run: Run, way: str = "finish", when: int = 0) -> int:
    """Start the run in a process of its own; return the process id."""
    gc.freeze()  # or the child's garbage collector would copy every page
    pid = os.fork()
    if pid:
        return pid
    code = 70
    gc.disable()
    try:
        # A test may have replaced them.
        sys.stdout = sys.stderr = open(run.folder.parent / "told", "w")  # noqa: SIM115
        for number in (1, 2):
            os.dup2(sys.stdout.fileno(), number)
        for number in SIGNALS:
            signal.signal(
                number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler
            )
        if way == "kill":
            watch(Instant(str(run.folder), "", when))
        if way.endswith("full"):
            full_from(when, run.folder, way.startswith("stays"))
        with made_up(way, when):
            code = worker.work(run.folder)
    except BaseException as error:
        print(f"Traceback {error!r}", flush=True)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def start_here(run: Run, way: str, when: int) -> tuple[int, str]:
    """The exit code and output of a start in this process, if the event allows that."""
    output = io.StringIO()
    with made_up(way, when), contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        return worker.work(run.folder), output.getvalue()


def ended(pid: int) -> bool:
    """True if a child has ended; it is not reaped."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def end_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# --- A life ---------------------------------------------------------------------------------------

CODES = {
    "raise": {0, 2},
    "leave": {0, 2},
    "kill": {0, -9},
    "full": {0, 5},
    "stays full": {0, 5},
    "finish": {0},
}
PLACE = "/dev/shm" if os.path.isdir("/dev/shm") else None


class Life(RuleBasedStateMachine):
    """A run folder and its history."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(dir=PLACE))
        self.harmed: set[str] = set()  # checkpoints that are no longer as they were sealed, or gone
        self.spoiled = False  # the model of a finished run
        self.garbled = False  # the status

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    @initialize()
    def created(self) -> None:
        args = {"_target_": "trl.SFTConfig"}
        node = {"_target_": "trl.SFTTrainer", "form": "prompt", "head": "lm", "args": args}
        cfg = {
            "name": "life",
            "output_root": str(self.root),
            "seed": 0,
            "trainer": node,
            "model": {},
            "dataset": {},
        }
        self.run = open_run(cfg, [])

    @rule(
        way=st.sampled_from(WAYS),
        step=st.integers(1, STEPS),
        touch=st.integers(1, MOST_TOUCHES),
        kind=st.integers(0, 2),
    )
    def started(self, way: str, step: int, touch: int, kind: int) -> None:
        """Start the same command again, with an event."""
        if way == "signal":
            way = f"signal {kind}"
        when = touch if way in ("kill", "full", "stays full") else step
        before = self.files()
        was = self.run.status()["state"]
        newest = self.newest_whole()
        sealed = self.sealed()
        (self.run.folder.parent / "begun").unlink(missing_ok=True)
        if way in FORKED:
            code = end_of(start(self.run, way, when))
            output = (self.run.folder.parent / "told").read_text()
        else:
            code, output = start_here(self.run, way, when)
        assert "Traceback" not in output, output
        self.check_code(way, kind, code, output, was)
        if code == 4:
            assert self.garbled or (newest is None and sealed) or self.lost_model(newest), output
            assert self.files() == before, "a refused start changed something"
        elif begun := self.begun():
            assert begun == (newest or "0"), (
                f"began with step {begun}, and {newest} was the newest: {output}"
            )
            assert not (begun == "0" and sealed), "started over in silence"
        if code == 0:
            self.spoiled = False
        self.harmed = {name for name in self.harmed if (self.run.checkpoints / name).exists()}

    def check_code(self, way: str, kind: int, code: int, output: str, was: str) -> None:
        wanted = {0, code_of(SIGNALS[kind])} if way.startswith("signal") else CODES[way]
        assert code in wanted | {4}, f"{way}: exit code {code}: {output}"
        state = self.run.status()["state"]
        told = {1: "failed", 5: "failed", 0: "finished", code_of(SIGNALS[kind]): "interrupted"}
        if code in told and not way.endswith("full") and not self.garbled:
            assert state == told[code], f"{way}: {state} after exit code {code}: {output}"
        if way.endswith("full") and code == 5:
            assert state != "finished" or was == "finished", output
            assert "free" in output and "type " in output, output
            torn = [
                path
                for path in self.run.checkpoints.glob("checkpoint-*")
                if not (path / "seal.json").exists()
            ]
            assert not [path for path in torn if path.name not in self.harmed], (
                f"left {torn}: {output}"
            )

    @precondition(lambda self: sealed_checkpoints(self.run.checkpoints))
    @rule(oldest=st.booleans(), kind=st.sampled_from(("flip", "cut", "delete", "seal", "remove")))
    def checkpoint_damaged(self, oldest: bool, kind: str) -> None:
        path = sealed_checkpoints(self.run.checkpoints)[0 if oldest else -1]
        weights = path / "model.safetensors"
        if kind == "remove":
            shutil.rmtree(path)
        elif kind == "seal":
            (path / "seal.json").unlink()
        elif weights.exists():
            text = weights.read_text()
            weights.unlink()
            if kind != "delete":
                weights.write_text(text[:-1] if kind == "cut" else f"{text[:-1]}x")
        if path.exists():
            self.harmed.add(path.name)

    @precondition(lambda self: self.run.model.is_dir())
    @rule(kind=st.sampled_from(("change", "remove")))
    def model_damaged(self, kind: str) -> None:
        if kind == "remove":
            shutil.rmtree(self.run.model)
        else:
            (self.run.model / "model.safetensors").write_text("other")
        self.spoiled = True

    @rule(text=st.sampled_from(("", "{", "[]", '{"state": "done"}')))
    def status_garbled(self, text: str) -> None:
        (self.run.folder / "status.json").write_text(text)
        self.garbled = True

    @precondition(lambda self: self.garbled)
    @rule()
    def status_cured(self) -> None:
        """Do what the refusal says to type.

        It forgets the sealed step as well, and only the seals are left.
        """
        (self.run.folder / "status.json").unlink()
        self.garbled = False

    @precondition(lambda self: not self.garbled and self.run.status()["state"] != "finished")
    @rule()
    def two_started(self) -> None:
        """One holds the folder, the other is refused, and the first is killed."""
        (self.root / "life" / "begun").unlink(missing_ok=True)
        first = start(self.run, "hold")
        while self.begun() == "" and not ended(first):
            time.sleep(0.002)
        # refused like any other start, or with nothing left to hold it
        if self.begun() in ("", str(STEPS)):
            end_of(first)
            self.spoiled = self.spoiled and self.begun() == ""
            return
        assert state_of(self.run.folder) == "running"
        assert end_of(start(self.run)) == 4
        os.kill(first, signal.SIGKILL)
        end_of(first)
        self.harmed = {name for name in self.harmed if (self.run.checkpoints / name).exists()}

    @invariant()
    def finished_is_true(self) -> None:
        """Finished only with all steps done, once and in order, and sealed, correct weights."""
        if not hasattr(self, "run") or self.run.status()["state"] != "finished":
            return
        assert self.run.status()["step"] == STEPS
        steps = [line["step"] for line in read_metrics(self.run.metrics)]
        assert steps == list(range(1, STEPS + 1)), steps
        if not self.spoiled:
            assert not damage_of(self.run.model)
            assert (self.run.model / "model.safetensors").read_text() == weights_after(STEPS)

    @invariant()
    def nobody_runs(self) -> None:
        """Between two events no process exists, and no file claims that one does."""
        if hasattr(self, "run"):
            assert state_of(self.run.folder) != "running"
            assert read_run(self.run.folder).state != "running"

    @invariant()
    def seals_are_true(self) -> None:
        """An undamaged checkpoint is complete, and its weights are those of its step."""
        for path in sealed_checkpoints(self.run.checkpoints) if hasattr(self, "run") else ():
            if path.name not in self.harmed:
                assert not damage_of(path), path
                step = int(path.name.rpartition("-")[2])
                assert (path / "model.safetensors").read_text() == weights_after(step)

    def files(self) -> dict[str, bytes]:
        run_files = (path for path in self.run.folder.rglob("*") if path.is_file())
        ours = ("log.txt", ".lock", "status.json", "manifest.json")
        return {str(path): path.read_bytes() for path in run_files if path.name not in ours}

    def begun(self) -> str:
        path = self.run.folder.parent / "begun"
        return path.read_text() if path.exists() else ""

    def sealed(self) -> bool:
        """True if there was a sealed checkpoint."""
        return (
            bool(sealed_checkpoints(self.run.checkpoints))
            or self.run.status().get("sealed") is not None
        )

    def newest_whole(self) -> str | None:
        undamaged = [
            path for path in sealed_checkpoints(self.run.checkpoints) if not damage_of(path)
        ]
        return undamaged[-1].name.rpartition("-")[2] if undamaged else None

    def lost_model(self, newest: str | None) -> bool:
        return self.spoiled and newest is None


def live(count: int, seed: bool = True) -> None:
    """So many random lives; raises with the shortest one that breaks a promise."""
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    how = settings(
        max_examples=count, stateful_step_count=8, deadline=None, database=None, derandomize=seed,
        suppress_health_check=checks,
    )  # fmt: skip
    run_state_machine_as_test(Life, settings=how)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="lives")
    asked = parser.parse_args()
    live(asked.count)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(
        f"{asked.count} lives, no promise broken; "
        f"{sum(u.ru_utime + u.ru_stime for u in used):.0f} CPU seconds"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
