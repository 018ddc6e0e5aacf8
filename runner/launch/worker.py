"""The worker: run folder -> command, with its lock, its log, its state and its exit code.

    python -m runner.launch outputs/<name>/<label>-<key> [--trust] [--debug]

Hydra is not met here: the folder holds all there is to know. Relaunching a run is this same command. A folder can come
from anybody, so what it may run is looked at again, unless the command line has done so or the user trusts it.
"""

import contextlib
import faulthandler
import gc
import logging
import os
import re
import shlex
import signal
import stat
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from runner import config, errors
from runner.config.build import build, locate
from runner.config.machines import processes_here, processes_of
from runner.errors import ConfigError, EnvironmentFault, FolderError, Interrupted, RunnerError, describe, fault
from runner.io.files import PACKAGE, open_own
from runner.io.hub import is_of_network
from runner.io.secrets import hidden
from runner.io.temporary import temporarily, uncollected
from runner.io.terminal import Copied, Hiding, copied_output, is_logged, print_error, said, to_terminal
from runner.model.jinja import KEY
from runner.run import PATIENCE, Run, add_notes, check_lines, check_metadata, find_foreign_faults, locked
from runner.run.adjustments import is_out_of_memory
from runner.run.blame import find_refused_keys
from runner.run.disk import full, is_full
from runner.run.inputs import check_fingerprints
from runner.run.place import hold_place
from runner.run.read import finished
from runner.run.seal import damage_of, describe_damage, remove_leftovers, remove_unfinished, sealed_checkpoints
from runner.schema.text import nodes, read_tables
from runner.validate import find_dangers, find_frozen_faults
from runner.validate.context import OWN
from runner.validate.start import find_missing_libraries, find_variable_faults
from runner.validate.targets import is_allowed

log = logging.getLogger("runner.launch.worker")

# Seconds that the processes of a run have for the end of their step and its save, once they are asked to end; and those
# that whoever starts them needs to tell how they ended. Both are over before Slurm kills (launcher.signal_seconds).
GRACE = 90.0
MARGIN = 15.0
MISSING = re.compile("No such file|does not exist")  # in the words of Python, torch and safetensors
RecordEnd = Callable[[Run, str | None, RunnerError, bool], None]  # takes a run, its last state, the error, --debug


@dataclass(eq=False)
class Stop:
    """A signal handler that waits for the end of the step while a loop is listening, and else stops at once."""

    number: int | None = None
    announced: bool = False
    agreed: bool = False  # heard of from another process, before the signal came to this one
    listening: bool = False

    def __call__(self, number: int, frame: object = None) -> None:
        # A scheduler announces its SIGTERM by SIGUSR2, sends both to every process, and we or torchrun hand them on to
        # each: one request.
        self.announced |= number == signal.SIGUSR2 or config.world_size() > 1
        again = self.number is not None and not self.agreed and (not self.announced or number == signal.SIGINT)
        self.number, self.agreed = number, False
        if number == signal.SIGHUP:
            detach_terminal()
        if again or not self.listening:
            raise self.error()

    def error(self) -> Interrupted:
        """The exception that ends the process once the step is saved."""
        number = self.number or signal.SIGTERM
        return Interrupted(fault("launch.asked_to_stop", name=signal.Signals(number).name), number)


def detach_terminal() -> None:
    """Send what is written to a terminal from here on nowhere: it is closed, and to write to it would be an error."""
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def stop_signals() -> list[int]:
    """The signals that ask a process to stop; a closed terminal does not where it was started with nohup."""
    deaf = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    answer = signal.getsignal(signal.SIGUSR2)  # a scheduler's word of a time limit, unless submitit answers it
    limit = [signal.SIGUSR2] if answer is signal.SIG_DFL or isinstance(answer, Stop) else []
    return [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, *limit, *([] if deaf else [signal.SIGHUP])]


@contextlib.contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Answer the signals that ask to stop by a handler, and give the old answers back afterwards."""
    before = {number: signal.signal(number, handler) for number in stop_signals()}
    try:
        yield
    finally:
        for number, answer in before.items():
            signal.signal(number, answer)


def describe_exit(code: int) -> str:
    """The end of a process that has not said itself why it ended, by its exit code or the signal below zero.

    >>> describe_exit(-9)
    'was killed by SIGKILL (by a person, or by the system for want of memory)'
    """
    if code >= 0:
        return f"left with exit code {code} before the run was finished"
    hint = " (by a person, or by the system for want of memory)" if code == -signal.SIGKILL else ""
    known = {int(number) for number in signal.Signals}
    name = signal.Signals(-code).name if -code in known else f"signal {-code}"  # real-time ones have no name
    return f"was killed by {name}{hint}"


def grace_of(launcher: Mapping[str, Any]) -> float:
    """The seconds that processes have for their save once they are asked to end: no more than they have in all.

    >>> grace_of({"timeout_seconds": None}), grace_of({"timeout_seconds": 20})
    (90.0, 20.0)
    """
    return float(min(GRACE, launcher.get("timeout_seconds") or GRACE))


def patience_with(launcher: Mapping[str, Any]) -> float:
    """The seconds after which one who has asked a run to end may kill it: its own processes have had theirs by then.

    >>> [patience_with({"num_processes": count, "num_machines": 2}) for count in (1, 4)], patience_with({})
    ([315.0, 315.0], 90.0)
    """
    grace = grace_of(launcher)
    machines = launcher.get("num_machines") or 1
    if machines > 1:  # each of which the first one hears, after its own end
        return (machines + 1) * (grace + MARGIN)
    return grace + MARGIN if (launcher.get("num_processes") or 1) > 1 else grace


def main(words: Sequence[str]) -> int:
    """Run the folder that the words name and return the exit code."""
    folders = [word for word in words if not word.startswith("-")]
    try:
        if len(folders) != 1 or not (Path(folders[0]) / "config.yaml").exists():
            raise ConfigError(fault("launch.no_folder", words=" ".join(words)))
        run, world = Run(Path(folders[0])), config.world_size()
        check_metadata(run)
        EnvironmentFault.refuse(find_variable_faults(processes_of(run.cfg) // processes_here(run.cfg)))
        fix = f"python -m runner.launch {run} --trust  (if you trust who wrote its config.yaml)"
        ConfigError.refuse([] if "--trust" in words else find_dangers(run.cfg, fix))  # it can come from anybody
        ConfigError.refuse([] if "--trust" in words else find_frozen_faults(run.cfg, f"{run}/config.yaml"))
        own = processes_of(run.cfg)
        if world not in (1, own):
            raise ConfigError(fault("launch.other_world", run=run, world=world, own=own))
    except RunnerError as error:
        print_error(error)
        return error.code
    debug, starts = "--debug" in words, own > world or "--launch" in words
    return launch(run, debug) if starts else work(folders[0], debug=debug)


def launch(run: Run, debug: bool = False, launcher: Mapping[str, Any] | None = None) -> int:
    """Train by the run's launcher, which may be in this process, and return the exit code."""
    node = launcher or run.cfg["launcher"]
    own = {key: build(value) for key, value in node.items() if key not in ("_target_", *OWN["launcher"])}
    try:
        target = locate(node["_target_"])
        return target(**own).train(run.folder, debug) if "wait" in own else target(run.folder, debug=debug, **own)
    except RunnerError as error:  # before anything has begun
        conclude(run, None, error, debug)
        return error.code


def conclude(run: Run, state: str | None, error: RunnerError, debug: bool = False) -> None:
    """Record how a run ended, where it has a ``state``, and print it; of several processes, the first does."""
    if config.rank() == 0 and state:
        if isinstance(error, EnvironmentFault):
            remove_unfinished(run)  # what a full disk has cut off would only keep it full
        # Then it is running without a process, which everyone reads as interrupted; or it is not there any more.
        with contextlib.suppress(OSError, FolderError):
            run.set_status(state, cause=str(error))
    if config.rank() == 0 or not state:
        print_error(hidden(traceback.format_exc()) if debug else error)


def work(folder: str | Path, command: str = "train", debug: bool = False, record_end: RecordEnd = conclude) -> int:
    """Run a command on a run folder; its end becomes a state, a message and the exit code, and is never raised.

    Where a signal has come, that is the end: libraries turn an exception that passes through them into another.
    """
    prepare_environment()
    run, stop = Run(Path(folder)), Stop()
    try:
        take_devices(run.cfg, visible_devices())
        with handle_signals(stop), contextlib.ExitStack() as held:
            placed = replace(run, place=held.enter_context(hold_place(run.folder)))
            if config.rank() == 0:
                held.enter_context(locked(placed, PATIENCE))
                check_metadata(placed)
                if is_finished(placed):
                    print(finished(placed))
                    return 0
                remove_leftovers(placed)
                placed.set_status("running", cause=None)
            held.enter_context(logging_to(placed.log))
            held.enter_context(_exits_named())
            try:
                EnvironmentFault.refuse(find_missing_libraries(placed.cfg))  # perhaps on another machine
                if config.rank() == 0:
                    check_lines(placed)
                    add_notes(
                        placed, [f"at step {placed.status()['step']}: {line}" for line in check_fingerprints(placed)]
                    )
                with uncollected():
                    module = import_module(f"runner.command.{command}")
                gc.freeze()  # nor is what is there by now looked through later
                getattr(module, command)(placed, stop)
                return 0
            except BaseException as ended:  # the user's own code may raise anything
                error = _explained(placed, ended) if stop.number is None else stop.error()
                if stop.number is None:
                    log.info("%s", traceback.format_exc())
                record_end(placed, "failed" if stop.number is None else "interrupted", error, debug)
    except (RunnerError, OSError) as ended:  # before the folder was ours
        error = _explained(run, ended)
        record_end(run, None, error, debug)
    return error.code


def prepare_environment() -> None:
    """Set what the heavy libraries read as they are imported; too late once torch is."""
    for name, value in read_tables(__file__)["environment"].items():
        os.environ.setdefault(name, value)
    os.environ["MPLBACKEND"] = "agg"  # of a notebook or a desktop: pictures are files here
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it speaks at each import without a GPU


def visible_devices() -> list[str]:
    """The GPUs that this process may use, found without waking them."""
    if (named := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in named.split(",") if name.strip()]
    return [str(number) for number, _ in enumerate(Path("/proc/driver/nvidia/gpus").glob("*"))]


def take_devices(cfg: Mapping[str, Any], devices: Sequence[str], count: int = 1) -> None:
    """Let this process see as many devices as it has processes; transformers would share each batch among all."""
    mine = list(devices if (cfg.get("model") or {}).get("device_map") else devices[:count])
    if "LOCAL_RANK" not in os.environ and mine != visible_devices():
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)


def fork(call: Callable[[], int]) -> int:
    """The number of a new process that makes a call and leaves with its exit code; it ends when this process does."""
    sys.stdout.flush()
    sys.stderr.flush()
    parent, pid = os.getpid(), os.fork()
    if pid:
        return pid
    code = 1
    try:
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):  # of this process, or of who has called it, such as submitit
                signal.signal(number, signal.SIG_DFL)
        set_parent_death_signal(parent)
        if torch := sys.modules.get("torch"):
            # It makes its pool anew at the first use after a fork, and not under a lock: of the threads that read
            # weights most would find none (RuntimeError: Invalid thread pool).
            torch.set_num_threads(torch.get_num_threads())
        code = call()
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def python_words(module: str) -> list[str]:
    """The words that run a module of ours in a Python of its own, which is asked to end when this process has."""
    code = f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); import runner; sys.path[:] = {sys.path!r}; "
    code += f"from runner.launch import worker; worker.set_parent_death_signal({os.getpid()}); "
    code += f"import runpy; runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    return [sys.executable, "-u", "-P", "-c", code]


def set_parent_death_signal(parent: int) -> None:
    """Have this process asked to save its step and end when the parent is gone, however that went."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:  # it was quicker
        os.kill(os.getpid(), signal.SIGTERM)


def is_finished(run: Run) -> bool:
    """True where a run has nothing left to do; where its model is damaged it has, if a checkpoint can make it whole.

    Raises FolderError where that cannot be, or where the files that it was made with are others now.
    """
    if run.status()["state"] != "finished":
        return False
    damage = {}
    if run.manifest().get("files"):  # else there is no model whose files were sealed
        damage = damage_of(run.model, touched_only=True) if run.model.is_dir() else {"model/": "missing"}
    if damage:
        found = f"the run is finished, and its model is damaged: {describe_damage(damage)}"
        if not sealed_checkpoints(run.checkpoints):
            raise FolderError(fault("launch.damaged_model", folder=run.model, found=found))
        log.warning("%s: %s; it is written again from the newest checkpoint", run, found)
        return False
    for line in check_fingerprints(run):
        print(f"note      {line}")
    return True


def _own_error(run: Run, error: BaseException, text: str) -> ConfigError | None:
    """The error of the user's own code that an exception came through, or that does not take or give what it should."""
    targets = {path: str(node["_target_"]) for path, node in nodes(run.cfg)}
    if place := errors.own_place(error):
        file = place.rpartition(":")[0]
        modules = {path: target.rpartition(".")[0].replace(".", os.sep) for path, target in targets.items()}
        own = (path for path, module in modules.items() if file.endswith((f"/{module}.py", f"/{module}/__init__.py")))
        return ConfigError(fault("launch.own_code", where=next(own, file), error=text, place=place))
    if any(frame.filename == "<template>" for frame in traceback.extract_tb(error.__traceback__)):
        return ConfigError(fault("launch.template_raises", key=KEY, error=text))
    strange = [path for path, target in targets.items() if not is_allowed(target, launcher=path == "launcher")]
    if strange:  # what it gave, or left behind, was met elsewhere
        return ConfigError(fault("launch.met_elsewhere", targets=", ".join(strange), error=text, first=strange[0]))
    return None


def _folder_fault(run: Run, error: BaseException, text: str) -> FolderError | None:
    """The error of a folder in which somebody moved, deleted or put something while the run worked in it."""
    if is_missing := not isinstance(error, RunnerError) and MISSING.search(text):
        time.sleep(PATIENCE)  # who deletes it may not be done
    try:
        run.check_there()
        FolderError.refuse(find_foreign_faults(run.folder))
    except FolderError as gone:
        if run.place:
            run.place.remove_remainder()
        return gone
    if isinstance(error, IsADirectoryError) and str(run.folder) in text and not errors.own_place(error):
        path = str(error.filename2 or error.filename)
        return FolderError(fault("launch.folder_in_place", path=path, quoted=shlex.quote(path)))
    if is_missing and str(run.folder) in text and not errors.own_place(error):
        return FolderError(fault("launch.files_gone", folder=run.folder, error=text))
    return None


def _explained(run: Run, error: BaseException) -> RunnerError:
    """The error of ours that an exception is: what the environment lacks, the user's code does, or our own fault."""
    text = describe(error)
    if gone := _folder_fault(run, error, text):
        return gone
    if isinstance(error, SystemExit):
        text = f"something called sys.exit({error.code!r}) or os._exit before the run was finished"
    if isinstance(error, RunnerError) and error.__cause__ and errors.own_place(error.__cause__):
        return error
    if is_full(error, run.folder):
        return full(run, error)
    if isinstance(error, RunnerError):
        return error
    if is_of_network(error):
        return EnvironmentFault(fault("launch.network", error=text))
    if is_out_of_memory(error):
        return EnvironmentFault(fault("launch.memory", error=text))
    if limit := errors.find_process_limit(error):
        return EnvironmentFault(limit)
    if isinstance(error, ImportError):
        return EnvironmentFault(fault("launch.library", error=text))
    blamed = _own_error(run, error, text) or find_refused_keys(run, error)
    return blamed or RunnerError(fault("launch.unexplained", log=run.log, error=text))


@contextlib.contextmanager
def _exits_named() -> Iterator[None]:
    """Have ``os._exit`` in the user's code end as ``sys.exit`` does, and a crash tell the lines that led to it."""
    leave, own = os._exit, os.getpid()

    def end(status: int) -> NoReturn:
        if os.getpid() == own:
            sys.exit(status)
        leave(status)

    faulthandler.enable(2)
    with temporarily(os, _exit=end):
        yield


class Log(logging.StreamHandler):
    """The log of a run without what a full disk does not take; the record of the steps fails there, and tells."""

    def __init__(self, path: Path):
        super().__init__(open_own(path, "a", encoding="utf-8"))

    def handleError(self, record: logging.LogRecord) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.stream.close()
        super().close()


@contextlib.contextmanager
def logging_to(path: Path) -> Iterator[None]:
    """Everything that is said goes to the log of the run; the terminal gets our own warnings and all errors."""
    root = logging.getLogger()
    before = root.level
    file = Log(path)
    handlers = [file] if is_logged() else [file, to_terminal(logging.WARNING if config.rank() == 0 else logging.ERROR)]
    file.setFormatter(Hiding("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.captureWarnings(True)
    root.setLevel(logging.INFO)
    said.addHandler(file)
    for handler in handlers:
        root.addHandler(handler)
    try:
        with temporarily(said, disabled=False), copied_output():
            if isinstance(sys.stdout, Copied):
                sys.stdout.log_early()
            yield
    finally:
        said.removeHandler(file)
        logging.captureWarnings(False)
        root.setLevel(before)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
