"""Environments of reasoning-gym, verifiers and OpenEnv with their real packages, by the command.

    python tests/fault/environments.py [FOLDER] [KIND ...] [--python KIND=PYTHON] [--only CASE ...]

Each kind is trained by GRPO and by PPO, killed and resumed to the same bits, swept, evaluated on
other tasks, and made to raise, to hang, to give NaN and to die; then come wrong words. No process
and no port may be left, no token of an environment may be trained on, no secret may be in a file,
and a training must go on without any network. The packages are installed into virtual environments
in FOLDER beside the libraries of this Python, one for each kind, because verifiers and openenv-core
ask for different versions of mcp; ``--python`` names one that is there.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = ROOT / "tests"
SERVER = TESTS / "openenv_servers" / "guess_server.py"
PACKAGES = {
    "reasoning_gym": ["reasoning-gym>=0.1.25,<0.2"],
    "verifiers": ["verifiers>=0.4,<0.5"],
    # gradio, which it asks for, is only for its pages.
    "openenv": ["fastmcp>=3", "fastapi", "uvicorn", "websockets", "requests", "openai", "httpx"],
}
SECRET = "sk-ant-api03-" + "Zq7" * 20
TINY = ("model=tiny", "environment.size=64", "environment.held_out=8", "dataset.limit.eval=4")
STEPS = ("trainer.args.max_steps=6", "trainer.args.save_steps=2", "trainer.args.logging_steps=1")
SAMPLED = {
    "grpo": ("trainer.args.num_generations=4", "trainer.args.max_completion_length=24"),
    "ppo": (),
}
TRAINED = (*TINY, *STEPS, "batch=16", "learning_rate=1e-3")
LETTERS = 400  # of an output that is shown


@dataclass
class Kind:
    """An environment, the Python that has its package, and other words for the same."""

    words: tuple[str, ...]
    other: tuple[str, ...]  # other tasks, for evaluate
    python: str = ""
    moods: tuple[str, ...] = ()
    spoilt: tuple[str, ...] = ()  # with a mood in the place of MOOD, half of the episodes fail


def kinds(pythons):
    guess = f"{pythons.get('openenv')} {SERVER} --port PORT"
    openenv = ("environment=openenv", f"environment.command={guess}", "environment.max_turns=4")
    verifiers = ("environment=verifiers", "allow=[guess_tasks,sorted_tasks,failing_tasks]")
    gym = ("environment=reasoning_gym", "environment.system=null", "environment.tag=null")
    # The tiny model answers some of these sums.
    sums = "{chain_sum: {min_terms: 1, max_terms: 2, min_digits: 1, max_digits: 1}}"
    return {
        "reasoning_gym": Kind(
            (*gym, f"environment.tasks={sums}"), (*gym, "environment.tasks=[gcd]")
        ),
        "verifiers": Kind(
            (*verifiers, "environment.id=guess_tasks", "environment.max_turns=3"),
            (*verifiers, "environment.id=sorted_tasks"),
            moods=("raises", "hangs", "blocks", "no_number", "dies"),
            spoilt=(
                *verifiers,
                "environment.id=failing_tasks",
                "environment.config={taskset: {mood: MOOD}}",
            ),
        ),
        "openenv": Kind(
            openenv,
            (*openenv, "environment.reward=last"),
            # openenv-core sends null for NaN, which is no reward.
            moods=("raises", "hangs", "dies"),
            spoilt=(*openenv, "environment.resets=[{mood: ''}, {mood: MOOD}]"),
        ),
    }


@dataclass
class Ended:
    """A command that has ended."""

    code: int
    output: str
    left: list[str]  # processes of its own


def start(kind, *words, name="run", network=True):
    """A command in the working folder, whose processes carry a mark."""
    mark = uuid.uuid4().hex
    command = [kind.python, "-m", "runner", *([f"name={name}"] if name else []), *words]
    if not network:
        command = ["unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "sh", *command]
    places = [ROOT, TESTS / "verifiers_environments"]
    process = subprocess.Popen(
        command,
        env=os.environ
        | {
            "MARK_OF_TEST": mark,
            "PYTHONPATH": os.pathsep.join(map(str, places)),
            "OPENAI_API_KEY": SECRET,
            "PRIME_API_KEY": SECRET,
            "OMP_NUM_THREADS": "1",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return process, mark


def run(kind, *words, **how):
    process, mark = start(kind, *words, **how)
    output, _ = process.communicate(timeout=600)
    return Ended(process.returncode, output, marked(mark, wait=3.0))


def marked(mark, wait):
    """The processes that carry a mark, once they have had some seconds to end."""
    deadline = time.monotonic() + wait
    while True:
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if mark.encode() in (place / "environ").read_bytes():
                    found.append((place / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        found = [command for command in found if command]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def finished(ended, code=0, *texts):
    """The faults of a command, as texts."""
    faults = []
    if ended.code != code:
        faults.append(f"exit code {ended.code}, not {code}: {ended.output[-LETTERS:]}")
    faults += [
        f"does not say {text!r}: {ended.output[-LETTERS:]}"
        for text in texts
        if text not in ended.output
    ]
    faults += [f"left running: {command[:100]}" for command in ended.left]
    if "Traceback" in ended.output:
        faults.append(f"a traceback: {ended.output[-LETTERS:]}")
    return faults


def folder_of(name):
    (folder,) = [path.parent for path in Path("outputs", name).glob("*/status.json")]
    return folder


def weights(name):
    return (folder_of(name) / "model" / "model.safetensors").read_bytes()


def figures(name):
    """What was logged, but for clocks."""
    lines = (folder_of(name) / "metrics.jsonl").read_text().splitlines()
    clocks = ("time", "seconds", "per_second", "eps", "memory")
    rows = []
    for line in lines:
        row = json.loads(line)
        rows.append({key: row[key] for key in row if not any(word in key for word in clocks)})
    return rows


# --- The cases ------------------------------------------------------------------------------------
def case_trained(kind, trainer):
    return finished(run(kind, f"trainer={trainer}", *TRAINED, *SAMPLED[trainer], *kind.words))


def case_shipped(kind, trainer):
    """A few steps of the experiment that ships."""
    name = kind.words[0].removeprefix("environment=")
    words = (f"experiment={name}_{trainer}", "trainer.args.max_steps=2", "dataset.limit.eval=2")
    return finished(run(kind, *words))


def case_killed(kind, trainer):
    """Killed after a checkpoint, the same command goes on to the same bits."""
    words = (f"trainer={trainer}", *TRAINED, *SAMPLED[trainer], *kind.words)
    faults = finished(run(kind, *words, name="whole"))
    process, mark = start(kind, *words, name="killed")
    deadline = time.monotonic() + 300
    while not list(Path("outputs/killed").glob("*/checkpoints/checkpoint-4/.sealed*")):
        has_folder = list(Path("outputs/killed").glob("*/checkpoints/checkpoint-4"))
        if process.poll() is not None or time.monotonic() > deadline or has_folder:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    faults += [f"left running after a kill: {command[:100]}" for command in marked(mark, 10.0)]
    faults += finished(run(kind, *words, name="killed"))
    if not faults and weights("whole") != weights("killed"):
        faults.append("other weights after a kill")
    if not faults:
        faults += _differences(figures("whole"), figures("killed"))
    return faults


def _differences(whole, killed):
    """The first figure that a kill has changed, as a fault."""
    if len(whole) != len(killed):
        return [f"{len(killed)} logged lines after a kill, not {len(whole)}"]
    for row, other in zip(whole, killed, strict=True):
        for key in {**row, **other}:
            if row.get(key) != other.get(key):
                place = f"{key} of step {row.get('step')}"
                return [f"after a kill {place} is {other.get(key)}, not {row.get(key)}"]
    return []


def case_swept(kind):
    words = ("-m", "trainer=grpo", *TRAINED, *SAMPLED["grpo"], *kind.words, "seed=1,2")
    faults = finished(run(kind, *words, name="sweep"))
    runs = len(list(Path("outputs/sweep").glob("*/model")))
    return faults + ([] if runs == 2 else [f"{runs} runs of 2"])


def case_evaluated(kind):
    faults = case_trained(kind, "grpo")
    ended = run(kind, "evaluate", str(folder_of("run")), *kind.other, "limit=4", name="")
    return faults + finished(ended)


def case_failing(kind, mood):
    """An environment that fails stops the run, or is skipped."""
    spoilt = [word.replace("MOOD", mood) for word in kind.spoilt]
    words = ("trainer=grpo", *TRAINED, *SAMPLED["grpo"], *spoilt, "environment.timeout=3")
    faults = []
    stopped = run(kind, *words, name=f"{mood}-stop")
    if stopped.code not in (1, 2, 3):
        faults.append(f"{mood}: exit code {stopped.code}: {stopped.output[-LETTERS:]}")
    if mood != "dies" or kind.words[0] == "environment=openenv":
        faults += [f"{mood}: does not name its row" for _ in range("row" not in stopped.output)]
    faults += [f"{mood}: left running: {command[:100]}" for command in stopped.left]
    if mood in ("raises", "hangs", "no_number"):
        skipped = run(kind, *words, "environment.on_error=skip", name=f"{mood}-skip")
        faults += [f"{mood}, skipped: {fault}" for fault in finished(skipped)]
    return faults


def case_without_network(kind):
    words = ("trainer=grpo", *TRAINED, *SAMPLED["grpo"], *kind.words)
    return finished(run(kind, *words, network=False))


def case_secret(kind):
    """No key of the surroundings is in what a run has written."""
    faults = case_trained(kind, "ppo")
    for path in Path("outputs").rglob("*"):
        if path.is_file() and SECRET.encode() in path.read_bytes():
            faults.append(f"a secret in {path}")
    return faults


def case_masked(kind):
    """Token by token, what is trained on is what the model has sampled."""
    script = Path(__file__).with_name("environment_masks.py")
    places = os.pathsep.join(map(str, [ROOT, TESTS, TESTS / "verifiers_environments"]))
    done = subprocess.run(
        [kind.python, str(script), *kind.words],
        env=os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    return [] if done.returncode == 0 else [(done.stdout + done.stderr)[-LETTERS:]]


def case_wrong_words(kind):
    name = kind.words[0]
    plain = Kind(kind.words, (), python=sys.executable)
    faults = []
    if kind.python != sys.executable:
        ended = run(plain, "trainer=grpo", *TINY, *kind.words)
        if ended.code != 5 or "pip install" not in ended.output:
            faults.append(f"no package: {ended.code} {ended.output[-LETTERS:]}")
    wrong = {
        "environment=verifiers": [(2, ("environment.id=guess_task",), "not installed")],
        "environment=reasoning_gym": [(2, ("environment.tasks=[chain_sums]",), "chain_sum")],
        "environment=openenv": [
            (5, ("environment.url=http://127.0.0.1:1",), "nothing answers"),
            (5, ("environment.command=no-such-program PORT",), "no program"),
            (5, ("environment.command=false PORT",), "exit code 1"),
        ],
    }
    for code, words, text in wrong[name]:
        faults += finished(run(kind, "trainer=grpo", *TINY, name, *words), code, text)
    return faults


def cases_of(kind):
    """The cases of a kind: their names with what tries them."""
    yield "grpo", lambda: case_trained(kind, "grpo")
    yield "ppo", lambda: case_trained(kind, "ppo")
    yield "ships-grpo", lambda: case_shipped(kind, "grpo")
    yield "ships-ppo", lambda: case_shipped(kind, "ppo")
    yield "kill-grpo", lambda: case_killed(kind, "grpo")
    yield "kill-ppo", lambda: case_killed(kind, "ppo")
    yield "sweep", lambda: case_swept(kind)
    yield "evaluate", lambda: case_evaluated(kind)
    for mood in kind.moods:
        yield mood, lambda mood=mood: case_failing(kind, mood)
    yield "secret", lambda: case_secret(kind)
    yield "no-network", lambda: case_without_network(kind)
    yield "masks", lambda: case_masked(kind)
    yield "words", lambda: case_wrong_words(kind)


# --- Its Pythons ----------------------------------------------------------------------------------
def make_python(name, folder):
    """A Python with the package of a kind, beside the libraries of this one."""
    place = folder / name
    python = place / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
        (site,) = place.glob("lib/*/site-packages")
        (site / "ours.pth").write_text(sysconfig.get_path("purelib"))
        install = [str(python), "-m", "pip", "install", "--quiet"]
        if name == "openenv":
            subprocess.run([*install, "--no-deps", "openenv-core>=0.3,<0.4"], check=True)
        subprocess.run([*install, *PACKAGES[name]], check=True)
    return str(python)


def main():
    """The number of cases that did not do as promised."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path(tempfile.gettempdir()))
    parser.add_argument("kinds", nargs="*", choices=[[], *PACKAGES])
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--only", nargs="+")
    words = parser.parse_args()
    pythons = dict(python.split("=", 1) for python in words.python)
    for name in words.kinds or PACKAGES:
        pythons.setdefault(name, "")
        pythons[name] = pythons[name] or make_python(name, words.folder)
    misses = 0
    for name, kind in kinds(pythons).items():
        if name not in (words.kinds or PACKAGES):
            continue
        kind.python = pythons[name]
        for case, call in cases_of(kind):
            if words.only and case not in words.only:
                continue
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                began = time.monotonic()
                faults = call()
                os.chdir(ROOT)
            misses += bool(faults)
            seconds = time.monotonic() - began
            print(
                f"{name:<15}{case:<12}{seconds:>5.0f} s  {'; '.join(faults) or 'as promised'}",
                flush=True,
            )
    return misses


if __name__ == "__main__":
    sys.exit(min(main(), 99))
