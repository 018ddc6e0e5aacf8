"""A configuration, run folder or file of a stranger runs nothing, writes nowhere and sends nothing.

    python tests/fault/danger.py                  everything
    python tests/fault/danger.py targets words    some of: targets words files bombs pickles network

Prints a line for each kind with how many were refused, and each that was not; the exit code is 1
where one was not. The cases are data, in ``danger_cases``. Commands of the door are forked from
this process, which has imported nothing heavy; whatever trains, from one that has everything
(``tests/warm.py``).
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import traceback
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
ROOT = Path(os.environ.get("RUNNER_ROOT", TESTS.parent))
sys.path[:0] = [str(TESTS), str(ROOT), str(Path(__file__).parent)]

import yaml
from danger_cases import BOMBS, DOORS, FILES, PLACES, REFERENCES, TARGETS, WORDS
from warm import Warm

from runner.__main__ import main
from runner.config.composition import compose
from runner.run import FORMAT

# limits for a bomb, above the same command with a harmless file
SECONDS = 1.0
MEGABYTES = 200
TINY = ROOT / "runner" / "model" / "tiny"
PRIVATE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass
class Outcome:
    """The outcome of a command: exit code, output, CPU seconds, and memory growth in MB."""

    code: int
    text: str
    seconds: float = 0.0
    megabytes: float = 0.0


Run = Callable[[Sequence[str], Path], Outcome]


def fork(
    words: Sequence[str], cwd: Path, entry: Callable[[list[str]], int] = main, **variables: str
) -> Outcome:
    """Run the command in a fork of this process and a folder of its own.

    ``entry`` is the door or the worker's.
    """
    with tempfile.TemporaryFile() as output:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        child = os.fork()
        if child == 0:
            be_command(words, cwd, entry, output.fileno(), variables)
        _, status, used = os.wait4(child, 0)
        output.seek(0)
        text = output.read().decode(errors="replace")
    grown = max(0, used.ru_maxrss - before) / 1024
    return Outcome(os.waitstatus_to_exitcode(status), text, used.ru_utime + used.ru_stime, grown)


def be_command(
    words: Sequence[str],
    cwd: Path,
    entry: Callable[[list[str]], int],
    output: int,
    variables: dict[str, str],
) -> None:
    code = 1
    try:
        os.dup2(output, 1), os.dup2(output, 2)
        # A test may have replaced them.
        sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115
        os.chdir(cwd)
        os.environ.update(PRIVATE | {"HF_HOME": str(cwd / ".hf")} | variables)
        resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
        resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
        sys.argv = ["runner", *words]
        code = entry(list(words))
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


# --- Targets --------------------------------------------------------------------------------------


def misses_of_targets(
    targets: Sequence[str] = TARGETS, places: Sequence[str] = PLACES
) -> Iterator[str]:
    """Each target that the check accepts among others, and each place that it does not check."""
    from runner.validate.configuration import find_all_faults, find_dangers

    good = bad = compose(["trainer=grpo", "reward=sorted_digits", "optimizer=adamw"]).cfg
    for number, target in enumerate(targets):
        bad = laid(bad, f"callback.x{number}", target)
    places_found = {fault.where for fault in find_all_faults(bad)}
    yield from (
        target
        for number, target in enumerate(targets)
        if f"callback.x{number}._target_" not in places_found
    )
    for place in places:
        bad = laid(good, place, "os.system")
        for faults in (find_all_faults(bad), find_dangers(bad)):
            if f"{place}._target_" not in {fault.where for fault in faults}:
                yield f"os.system at {place}"


def laid(cfg: dict[str, Any], place: str, target: str) -> dict[str, Any]:
    """The configuration with a node of this target at a dotted place."""
    cfg = json.loads(json.dumps(cfg))
    *outer, last = place.split(".")
    node = cfg
    for key in outer:
        node[key] = node.get(key) if isinstance(node.get(key), dict) else {}
        node = node[key]
    node[last] = {"_target_": target}
    return cfg


# --- Words and files ------------------------------------------------------------------------------


def lay_ground(folder: Path) -> Path:
    """A working folder with planted files; returns the mark that running code would leave."""
    mark = folder / "MARK"
    bomb = pickle.dumps(Planted(str(mark)))
    (folder / "pickles").mkdir(parents=True)
    for name in (
        "rows.pkl",
        "train.pkl",
        "rows.pickle",
        "pickles/train.pkl",
        "pickles/rows.pickle",
    ):
        (folder / name).write_bytes(bomb)
    code = f"open({str(mark)!r}, 'w').write('ran')\n"
    for name in ("rows.py", "evil.py"):
        (folder / name).write_text(code + "def run(*args, **kwargs): ...\nclass Config: ...\n")
    (folder / "evil").mkdir()
    (folder / "evil" / "__init__.py").write_text(code)
    _lay_models(folder, bomb, code)
    escape = (
        "{{ ''.__class__.__mro__[1].__subclasses__() }}"
        "{{ cycler.__init__.__globals__.os.system('touch MARK') }}"
    )
    (folder / "escape.jinja").write_text(escape)
    (folder / "endless.jinja").write_text("{% for a in range(10**9) %}{% endfor %}{{ messages }}")
    return mark


def _lay_models(folder: Path, bomb: bytes, code: str) -> None:
    pickled, adapter, coded, reader = (
        folder / name for name in ("pickled", "adapter", "coded", "reader")
    )
    for place in (pickled, coded, reader):
        shutil.copytree(TINY, place)
    (pickled / "model.safetensors").unlink()
    adapter.mkdir()
    settings = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(TINY),
        "r": 4,
    }
    (adapter / "adapter_config.json").write_text(
        json.dumps(settings | {"target_modules": ["q_proj"]})
    )
    for file in (pickled / "pytorch_model.bin", adapter / "adapter_model.bin"):
        write_torch(file, bomb)
    (coded / "evil.py").write_text(
        code + "class Config: ...\nclass Model: ...\nclass Tokenizer: ...\n"
    )
    models = {
        "AutoConfig": "evil.Config",
        "AutoModelForCausalLM": "evil.Model",
        "AutoTokenizer": ["evil.Tokenizer", None],
    }
    edit(coded / "config.json", auto_map=models, model_type="evil")
    edit(coded / "tokenizer_config.json", auto_map=models, tokenizer_class="EvilTokenizer")
    (reader / "tokenizer.json").unlink()
    edit(
        reader / "tokenizer_config.json",
        tokenizer_class="GPT2Tokenizer",
        vocab_file="/etc/passwd",
        merges_file="/etc/group",
    )


class Planted:
    """An object whose pickle makes a file when loaded."""

    def __init__(self, mark: str):
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.mark}",)


def write_torch(path: Path, bomb: bytes) -> None:
    """A file as torch saves one, with the pickle in it."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", bomb)
        archive.writestr("archive/version", "3\n")


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def misses_of_words(
    folder: Path, names: Sequence[str] = tuple(WORDS), run: Run = fork
) -> Iterator[str]:
    """Each dangerous word that is not refused, or leaves its mark."""
    for number, name in enumerate(names):
        work = folder / str(number)
        words = WORDS[name]
        mark = lay_ground(work)
        words = [word.replace("{mark}", str(mark)) for word in words]
        yield from judged(name, run(words, work), mark, is_behind(words))


def is_behind(words: Sequence[str]) -> bool:
    """True if a fault can only be found behind the door, when the run folder is laid and the
    libraries are loaded.
    """
    return any(word.startswith(("dataset=", "model")) for word in words)


def misses_of_files(folder: Path, names: Sequence[str] = tuple(FILES)) -> Iterator[str]:
    """Each config folder of a stranger that is not refused, or leaves its mark."""
    for number, name in enumerate(names):
        work = folder / str(number)
        (files, words) = FILES[name]
        mark = lay_ground(work)
        for path, text in files.items():
            (work / "menu" / path).parent.mkdir(parents=True, exist_ok=True)
            (work / "menu" / path).write_text(text.replace("{mark}", str(mark)))
        secret = {"HF_TOKEN": "no-form-at-all-4711"} if "secret" in name else {}
        yield from judged(name, fork(["--config-dir", "menu", *words], work, **secret), mark)


def judged(name: str, outcome: Outcome, mark: Path, behind: bool = False) -> Iterator[str]:
    """The faults in the end of a dangerous command."""
    remains = [
        path for path in (mark, mark.parent / "outputs", Path("/tmp/elsewhere")) if path.exists()
    ]
    if remains and not (
        behind
        and remains == [mark.parent / "outputs"]
        and not list(remains[0].rglob("*.safetensors"))
    ):
        yield f"{name}: it left {remains[0].name}"
    elif (
        outcome.code not in (2, 4, 5) or "found " not in outcome.text or "Traceback" in outcome.text
    ):
        yield f"{name}: exit code {outcome.code}: {' '.join(outcome.text.split())[-160:]}"


# --- Bombs ----------------------------------------------------------------------------------------


def misses_of_bombs(
    folder: Path, bombs: Sequence[str] = tuple(BOMBS), doors: Sequence[str] = tuple(DOORS)
) -> Iterator[str]:
    """Each bomb that takes long or much memory, or ends without naming its place."""
    frozen = yaml.safe_dump(compose([]).cfg)
    for door in doors:
        plain = explode(folder / door / "plain", door, "", frozen)
        for name in bombs:
            if name in REFERENCES and not door.startswith(("--", "a file")):
                continue  # nobody follows references there
            outcome = explode(folder / door / name, door, BOMBS[name], frozen)
            extra_seconds = outcome.seconds - plain.seconds
            grown = outcome.megabytes - plain.megabytes
            if (
                outcome.code not in ((0, 2) if door == "report" else (2, 4))
                or "Traceback" in outcome.text
            ):
                yield (
                    f"{name} at {door}: exit code {outcome.code}: "
                    f"{' '.join(outcome.text.split())[-120:]}"
                )
            elif extra_seconds > SECONDS or grown > MEGABYTES:
                yield f"{name} at {door}: {extra_seconds:.1f} s and {grown:.0f} MB"
            elif door != "report" and "found " not in outcome.text:
                yield f"{name} at {door}: no named fault"


def explode(work: Path, door: str, bomb: str, frozen: str) -> Outcome:
    place, words = DOORS[door]
    file = work / place
    file.parent.mkdir(parents=True)
    head = {
        "--config-dir": "# @package _global_\n",
        "a file of an experiment": "trainer: sft\n",
        "import": "learning_rate: 1e-5\n",
    }.get(door, frozen)
    file.write_text((f"format: {FORMAT}\n" if place.startswith("outputs/") else "") + head + bomb)
    return fork(words, work)


# --- Pickles --------------------------------------------------------------------------------------

# Places of a pickle in a stranger's run folder, and the commands that may read it.
PICKLES = """
checkpoints/checkpoint-2/optimizer.pt checkpoints/checkpoint-2/scheduler.pt
checkpoints/checkpoint-2/rng_state.pth checkpoints/checkpoint-2/training_args.bin
checkpoints/checkpoint-2/pytorch_model.bin checkpoints/checkpoint-2/scaler.pt
checkpoints/checkpoint-2/adapter_model.bin checkpoints/checkpoint-2/rng_state_0.pth
model/pytorch_model.bin model/training_args.bin model/adapter_model.bin model/optimizer.pt
tensorboard/events.pkl rows.pkl tracker.pkl
""".split()
VERBS = {
    "train": [],  # the same words again
    "predict": ["predict", "{run}", "limit=1", "max_new_tokens=2"],
    "predict a checkpoint": ["predict", "{run}", "checkpoint=2", "limit=1", "max_new_tokens=2"],
    "evaluate": ["evaluate", "{run}", "limit=1", "max_new_tokens=2"],
    "export": ["export", "{run}"],
    "report": ["report", "{run}"],
    "diff": ["diff", "{run}", "{run}"],
    "preview": ["preview", "{run}"],
    "reproduce": ["reproduce", "{run}"],
    "import": ["import", "{run}/config.yaml"],
}


QUICK = [
    "trainer.args.max_steps=2",
    "dataset.limit.train=8",
    "dataset.limit.eval=2",
    "trainer.args.save_steps=1",
]
TRAINED = [*QUICK, "name=x", "trainer.args.save_total_limit=4"]


def misses_of_pickles(
    folder: Path, trained: Path, run: Run, verbs: Sequence[str] = tuple(VERBS)
) -> Iterator[str]:
    """Each verb that runs a pickle planted in the folder of a trained run, sealed as if its owner
    had written it.
    """
    from runner.run.seal import SEAL, seal

    for verb in verbs:
        work = folder / verb.replace(" ", "-")
        target = work / "outputs" / "x" / trained.name
        shutil.copytree(trained, target)
        mark = work / "MARK"
        bomb = pickle.dumps(Planted(str(mark)))
        for name in PICKLES:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            write_torch(target / name, bomb) if name.endswith((".pt", ".pth", ".bin")) else (
                target / name
            ).write_bytes(bomb)
        for sealed in [path.parent for path in target.rglob(SEAL)]:
            seal(sealed)
        words = [word.format(run=target) for word in VERBS[verb]]
        if verb == "train":
            resumable(target)
            words = TRAINED
        outcome = run(words, work)
        if mark.exists():
            yield f"{verb}: a pickle ran"
        elif "Traceback" in outcome.text:
            yield f"{verb}: {' '.join(outcome.text.split())[-160:]}"


def resumable(folder: Path) -> None:
    """Make a finished run look interrupted after its checkpoint."""
    edit(folder / "status.json", state="interrupted")
    shutil.rmtree(folder / "model")


# --- The network ----------------------------------------------------------------------------------

# Runs some commands in one process, and records the requests of each to another machine.
WATCH = """
import json, sys
seen = []
def hook(event, args):
    if event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = args[0]
    elif event in ("socket.connect", "socket.sendto"):
        host = args[1][0] if isinstance(args[1], tuple) else ""
    else:
        return
    if host and str(host) not in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "::"):
        seen.append(f"{event} {host}")
sys.addaudithook(hook)
from runner.__main__ import main
for name, words in json.loads(sys.argv[1]).items():
    del seen[:]
    code = main(words)
    print("\\n>>>", json.dumps([name, code, seen]), flush=True)
"""
JOURNEYS = {
    "sft": ["trainer=sft", *QUICK, "name=sft"],
    "dpo": ["trainer=dpo", *QUICK, "name=dpo"],
    "grpo": ["trainer=grpo", "dataset=toy_sort", *QUICK, "name=grpo"],
    "report": ["report", "outputs/sft"],
    "predict": ["predict", "outputs/sft", "limit=1", "max_new_tokens=2"],
    "export": ["export", "outputs/sft"],
}


def misses_of_network(folder: Path, journeys: Sequence[str] = tuple(JOURNEYS)) -> Iterator[str]:
    """Each command that asked another machine, though the model is here and nothing forbids the
    hub.
    """
    folder.mkdir(parents=True)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HF_", "TRANSFORMERS_"))
    }
    environment |= {"PYTHONPATH": str(ROOT), "HF_HOME": str(folder / "hf"), "OMP_NUM_THREADS": "1"}
    asked = json.dumps({name: JOURNEYS[name] for name in journeys})
    command = [sys.executable, "-c", WATCH, asked]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900
    )
    told = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith(">>> ")]
    for name, code, outcome in told:
        if code:
            yield f"{name}: exit code {code}: {' '.join(done.stderr.split())[-200:]}"
        if outcome:
            yield f"{name}: {len(outcome)} times, first {outcome[0]}"
    if len(told) < len(journeys):
        yield f"only {len(told)} of {len(journeys)} came to an end: {done.stderr[-200:]}"


# --- All of it ------------------------------------------------------------------------------------


def warmly(warm: Warm, **variables: str) -> Run:
    """A function that runs commands from the warm process, with additional variables."""

    def run(words: Sequence[str], cwd: Path) -> Outcome:
        cwd.mkdir(parents=True, exist_ok=True)
        environment = (
            os.environ
            | PRIVATE
            | {"PYTHONPATH": str(ROOT), "HF_HOME": str(cwd / ".hf")}
            | variables
        )
        done = warm.run(list(words), cwd, environment)
        return Outcome(done.returncode, done.stdout + done.stderr)

    return run


def train_one(folder: Path, run: Run) -> Path:
    """A run of two steps with both of its checkpoints."""
    outcome = run(TRAINED, folder)
    assert outcome.code == 0, outcome.text
    return next((folder / "outputs" / "x").glob("*/config.yaml")).parent


def kinds(folder: Path, run: Run) -> dict[str, tuple[int, Callable[[], Iterator[str]]]]:
    """Each kind with the number of its cases, and the function that yields its misses."""
    both = [name for name in BOMBS if name not in REFERENCES]
    bombs = sum(len(BOMBS) if door.startswith(("--", "a file")) else len(both) for door in DOORS)
    return {
        "targets": (len(TARGETS) + 2 * len(PLACES), misses_of_targets),
        "words": (len(WORDS), lambda: misses_of_words(folder / "words", run=run)),
        "files": (len(FILES), lambda: misses_of_files(folder / "files")),
        "bombs": (bombs, lambda: misses_of_bombs(folder / "bombs")),
        "pickles": (
            len(VERBS),
            lambda: misses_of_pickles(folder / "pickles", train_one(folder / "one", run), run),
        ),
        "network": (len(JOURNEYS), lambda: misses_of_network(folder / "network")),
    }


Kinds = dict[str, tuple[int, Callable[[], Iterator[str]]]]


def report(wanted: Sequence[str], kinds_of: Callable[[Path, Warm], Kinds]) -> int:
    """Print the misses of each kind, found by ``kinds_of`` a folder and a warm process.

    1 if there are any.
    """
    failed = 0
    with (
        tempfile.TemporaryDirectory(prefix="fault-") as place,
        contextlib.closing(Warm(Path(place) / "warm")) as warm,
    ):
        os.chdir(place)
        for name, (count, find) in kinds_of(Path(place), warm).items():
            if wanted and name not in wanted:
                continue
            misses = list(find())
            failed += len(misses)
            print(
                f"{name:<10}{count - len({miss.split(':')[0] for miss in misses}):>5} of {count}",
                flush=True,
            )
            for miss in misses:
                print(f"  miss    {miss}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(report(sys.argv[1:], lambda place, warm: kinds(place, warmly(warm))))
