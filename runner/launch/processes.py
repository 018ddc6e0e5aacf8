"""The processes of runs: their environment and devices, how they start, and how they ended."""

import contextlib
import faulthandler
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

from runner.config.experiment import LauncherPart, ModelPart
from runner.io.files import PACKAGE
from runner.io.server_process import set_parent_death_signal
from runner.io.temporary import temporarily

# Seconds that a run has to end its step and save it, where launcher.grace_seconds is null.
GRACE = 90.0
# Seconds beyond the grace period that whoever starts the processes of a run needs to tell how they
# ended.
MARGIN = 15.0
GPUS = Path("/proc/driver/nvidia/gpus")  # holds a folder for each
# Set before torch is imported, where the user has set no other value.
ENVIRONMENT = {
    # Measured beside one other busy process on two cores: OpenMP's default spinning makes two
    # threads 15 to 50 times slower, a short spin about 2 times, and it costs an idle machine about
    # a fifth.
    "GOMP_SPINCOUNT": "1000",
    # Tokenizers must not keep threads across a fork.
    "TOKENIZERS_PARALLELISM": "false",
    # Nothing is sent anywhere unasked. Without the second one, datasets tells a server each time
    # that rows of a local file are read.
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "DO_NOT_TRACK": "1",
    # Its records go where those of all libraries go.
    "VLLM_CONFIGURE_LOGGING": "0",
    # Each such trainer says so in its YAML.
    "TRL_EXPERIMENTAL_SILENCE": "1",
    # Where the package kernels is installed, bitsandbytes would fetch this code of the hub: on a
    # CPU with bfloat16 as it is imported, on a Mac as it rounds. It does without.
    "LOCAL_KERNELS": "kernels-community/quantization-bitsandbytes=/dev/null:"
    "kernels-community/bitsandbytes-mps=/dev/null",
}


def prepare_environment() -> None:
    """Set what the heavy libraries read as they are imported; too late once torch is."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    # That of a notebook or a desktop is no use: pictures are files here.
    os.environ["MPLBACKEND"] = "agg"
    # Without a GPU it warns whenever it is imported.
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)


def visible_devices() -> list[str]:
    """The GPUs that this process may use, found without waking them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name.strip()]
    count = len(list(GPUS.glob("*")))
    return [str(number) for number in range(count)]


def take_devices(model: ModelPart, devices: Sequence[str], count: int = 1) -> None:
    """Let this process see as many devices as it has processes, or all for a model on several.

    transformers would share each batch among all that it sees.
    """
    mine = list(devices if model.is_spread else devices[:count])
    if "LOCAL_RANK" not in os.environ and mine != visible_devices():
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(mine)


# --- How they are started -------------------------------------------------------------------------


def fork(call: Callable[[], int]) -> int:
    """The number of a new process that makes a call and leaves with its exit code.

    It ends when this process does.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for number in signal.valid_signals():
            # A handler is of this process, or of who has called it, such as submitit.
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        set_parent_death_signal(parent)
        torch = sys.modules.get("torch")
        if torch:
            # It makes its pool anew at the first use after a fork, and not under a lock: of the
            # threads that read weights most would find none (RuntimeError: Invalid thread pool).
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
    """The words that run a module of ours in a Python of its own.

    It is asked to end when this process has.
    """
    statements = [
        "import sys",
        f"sys.path.insert(0, {str(PACKAGE.parent)!r})",
        "import runner",
        f"sys.path[:] = {sys.path!r}",
        "from runner.io.server_process import set_parent_death_signal",
        f"set_parent_death_signal({os.getpid()})",
        "import runpy",
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)",
    ]
    return [sys.executable, "-u", "-P", "-c", "; ".join(statements)]


# --- How they end ---------------------------------------------------------------------------------


def grace_of(launcher: LauncherPart) -> float:
    """The grace period: seconds that a run has for its save once it is asked to end.

    A run with a shorter time limit has no more than that.

    >>> grace_of(LauncherPart()), grace_of(LauncherPart(timeout_seconds=20))
    (90.0, 20.0)
    >>> grace_of(LauncherPart(grace_seconds=300))
    300.0
    """
    grace = float(launcher.grace_seconds or GRACE)
    limit = launcher.timeout_seconds
    return min(grace, float(limit)) if limit else grace


def patience_with(launcher: LauncherPart) -> float:
    """The seconds after which one who has asked a run to end may kill it.

    Its own processes have had theirs by then.

    >>> patience_with(LauncherPart.read({"num_processes": 4, "num_machines": 2}))
    315.0
    >>> patience_with(LauncherPart.read({"num_processes": 4})), patience_with(LauncherPart())
    (105.0, 90.0)
    >>> patience_with(LauncherPart.read({"num_machines": 2}))
    315.0
    """
    grace = grace_of(launcher)
    if launcher.num_machines > 1:  # each of which the first one hears, after its own end
        return (launcher.num_machines + 1) * (grace + MARGIN)
    if launcher.num_processes > 1:
        return grace + MARGIN
    return grace


def describe_exit(code: int) -> str:
    """The end of a process that has not said itself why it ended.

    ``code`` is its exit code, or below zero the signal that ended it.

    >>> describe_exit(-9)
    'was killed by SIGKILL (by a person, or by the system for lack of memory)'
    """
    if code >= 0:
        return f"left with exit code {code} before the run was finished"
    names = {int(number): number.name for number in signal.Signals}
    text = f"was killed by {names.get(-code, f'signal {-code}')}"  # real-time ones have no name
    if code == -signal.SIGKILL:
        text += " (by a person, or by the system for lack of memory)"
    return text


@contextlib.contextmanager
def exits_named() -> Iterator[None]:
    """Have ``os._exit`` in the user's code end as ``sys.exit`` does, and crashes print a stack."""
    leave = os._exit
    pid = os.getpid()

    def end(status: int) -> NoReturn:
        if os.getpid() == pid:
            sys.exit(status)
        leave(status)

    faulthandler.enable(2)
    with temporarily(os, _exit=end):
        yield
