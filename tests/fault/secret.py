"""No secret is in any byte that is written, however it is given and wherever one looks.

    python tests/fault/secret.py                everything
    python tests/fault/secret.py refused lived  some of it

The parts are: harmless lines refused lived trackers controls.

Ways are data, in ``secret_cases``. A way is either refused, with four beats that do not repeat the
secret, or the run goes its way, through a report, an export, predictions and evaluations, and every
file is looked through: as it is, in an address and in base64, inside of zip members, pickles and
gzip. Prints a line for each kind; the exit code is 1 where a secret was found. The controls show
that the same search finds one after a plain Trainer and a plain Hydra.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import http.server
import io
import json
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

from danger import QUICK, Outcome, Run, fork, report, warmly
from secret_cases import ENVIRONMENT, FOREIGN, HARMLESS, LINES, REFUSED, SECRETS
from warm import Warm

from runner.config.composition import compose
from runner.validate.configuration import find_all_faults

MENU = HERE.parent.parent / "conf" / "tracker"
TRACKERS = sorted(path.stem for path in MENU.glob("*.yaml") if path.stem != "none")
# Secrets in a user's own files stay there, and in their compiled copies.
OWN = ("notes.py", "chatty.py", "__pycache__", ".git")
# A user's part that prints secrets in every possible way.
CHATTY = """
import logging, os, sys, warnings
from transformers import TrainerCallback

class Chatty(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        warnings.warn(f"the token is {os.environ['MY_TOKEN']}, is it not?")
        key = os.environ["OPENAI_API_KEY"]
        logging.getLogger("chatty").warning("Authorization: Bearer %s", key)
        logging.getLogger("chatty").error("could not reach %s", os.environ["DATABASE_URL"])

class Loud(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        print("all there is:", dict(os.environ), flush=True)
        print("found: FOREIGN")
        for line in os.environ["DEPLOY_KEY"].splitlines():
            print("  ", line, file=sys.stderr)
        os.system("env")
        os.write(1, os.environ["MAIL_PASSWORD"].encode()[:9])
        os.write(1, os.environ["MAIL_PASSWORD"].encode()[9:] + b"\\n")

class Broken(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        print("my token", os.environ["MY_TOKEN"], flush=True)
        raise RuntimeError(f"401 for {os.environ['MY_TOKEN']} of {os.environ['HF_TOKEN']}")
""".replace("FOREIGN", FOREIGN)


# --- The search -----------------------------------------------------------------------------------


def spellings(secret: str) -> set[bytes]:
    """A secret as it is, in an address, in source and JSON, and in base64 at any offset."""
    forms = {
        text.encode()
        for text in (secret, quote(secret, safe=""), repr(secret)[1:-1], json.dumps(secret)[1:-1])
    }
    for shift in range(3):
        letters = base64.b64encode(b"x" * shift + secret.encode()).rstrip(b"=")
        forms.add(letters[(0, 2, 3)[shift] : -1])
    return forms


SPELT = {name: spellings(secret) for name, secret in SECRETS.items()}


def search(data: bytes, depth: int = 0) -> set[str]:
    """The names of the secrets in some bytes, packed or not."""
    names = set()
    for name, spelt in SPELT.items():
        if any(spelling in data for spelling in spelt):
            names.add(name)

    if depth < 3 and data[:2] == b"PK":
        with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(io.BytesIO(data)) as archive:
            for name in archive.namelist():
                names |= search(archive.read(name), depth + 1)
    if depth < 3 and data[:2] == b"\x1f\x8b":
        with contextlib.suppress(OSError, EOFError):
            names |= search(gzip.decompress(data), depth + 1)
    return names


def hits(folder: Path, text: str = "") -> Iterator[str]:
    """Each file below a folder with a secret in its content or name, and the terminal if it shows
    one.
    """
    for name in sorted(search(text.encode())):
        yield f"{name} on the terminal"
    for place, _, files in os.walk(folder):
        for file in files:
            path = Path(place, file)
            if path.is_file() and not path.is_symlink():
                for name in sorted(
                    search(path.read_bytes()) | search(str(path.relative_to(folder)).encode())
                ):
                    yield f"{name} in {path.relative_to(folder)}"


def hits_of_others(folder: Path, text: str) -> Iterator[str]:
    """The hits outside the files that :func:`lay_ground` has written."""
    for hit in hits(folder, text):
        if hit.rpartition(" in ")[2].split("/")[0] not in OWN:
            yield hit


# --- What is none, and what is refused ------------------------------------------------------------


def misses_of_harmless() -> Iterator[str]:
    """Each harmless word that is taken for a secret."""
    for words in HARMLESS:
        try:
            faults = find_all_faults(compose(words).cfg)
        except Exception as error:  # told as what it is
            yield f"{words}: {error}"
            continue
        yield from (f"{words}: {fault.found}" for fault in faults if "looks like" in fault.found)


def misses_of_lines() -> Iterator[str]:
    """Each line of a diff that keeps its secret, or loses a harmless text."""
    from runner.io.secrets import hidden_source

    for line, expected in LINES:
        told = hidden_source(line)
        if (told == line) != expected or (not expected and search(told.encode())):
            yield f"{line[:40]}: {told}"


def misses_of_refused(
    folder: Path, run: Run, ways: Sequence[str] = tuple(REFUSED)
) -> Iterator[str]:
    """Each way that is not refused with a fix, or after which a secret is found.

    One folder for each.
    """
    for number, way in enumerate(ways):
        words, text = REFUSED[way]
        work = folder / f"{number}"
        (work / "own" / "experiment").mkdir(parents=True)
        file = work / "own" / "experiment" / "x.yaml"
        file.write_text(f"# @package _global_\n{text}\n") if text else None
        outcome = run([*words, *(["--config-dir", "own"] if text else [])], work)
        file.unlink(missing_ok=True)
        beats = (
            ("found ",) if way == "a word that Hydra refuses" else ("found ", "expected ", "type ")
        )
        if (
            outcome.code != 2
            or not all(beat in outcome.text for beat in beats)
            or "Traceback" in outcome.text
        ):
            yield f"{way}: exit code {outcome.code}: {' '.join(outcome.text.split())[-120:]}"
        yield from (f"{way}: {hit}" for hit in hits(work, outcome.text))


# --- A life with secrets all around ---------------------------------------------------------------


@contextlib.contextmanager
def indiscreet() -> Iterator[str]:
    """The address of a server whose refusal repeats the login."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(401, f"no entry with {self.headers['Authorization']}")
            self.end_headers()

        def log_message(self, *args: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def lives(address: str) -> dict[str, tuple[list[str], int]]:
    """The commands of a life, in their order, each with its exit code."""
    mine = ["allow=[chatty]", "callback.x._target_=chatty.Chatty"]
    run = "outputs/life"
    remote = ["trainer=grpo", "dataset=toy_sort", "reward=remote", f"reward.remote.url={address}"]
    return {
        "train": ([*QUICK, *mine, "name=life", "tracker=tensorboard"], 0),
        "report": (["report", run], 0),
        "report of all": (["report"], 0),
        "export": (["export", run], 0),
        "predict": (["predict", run, "limit=1", "max_new_tokens=2"], 0),
        "evaluate": (["evaluate", run, "limit=1", "max_new_tokens=2"], 0),
        "preview": (["preview", "html=true", "name=seen"], 0),
        "why": (["why", "trainer.args.hub_token", "trainer.args.hub_token=${oc.env:MY_TOKEN}"], 0),
        "a failure": (
            [
                *QUICK,
                "allow=[chatty]",
                "callback.x._target_=chatty.Broken",
                "name=broken",
                "--debug",
            ],
            2,
        ),
        "a failed sweep": (
            [
                "-m",
                "seed=0,1",
                *QUICK,
                "allow=[chatty]",
                "callback.x._target_=chatty.Broken",
                "name=two",
            ],
            2,
        ),
        "a sweep that talks": (
            [
                "-m",
                "seed=0,1",
                *QUICK,
                "allow=[chatty]",
                "callback.x._target_=chatty.Loud",
                "name=loud",
            ],
            0,
        ),
        "a refused reward": (
            [*QUICK, *remote, "reward.remote.token_variable=LOGIN", "name=remote"],
            2,
        ),
    }


def lay_ground(folder: Path) -> None:
    """A repository with an uncommitted secret, and a user's own part."""
    folder.mkdir(parents=True)
    (folder / "chatty.py").write_text(CHATTY)
    (folder / "notes.py").write_text("one = 1\n")
    git = ["git", "-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], cwd=folder, check=True, capture_output=True)
    (folder / "notes.py").write_text(
        f'one = 1\npassword = "{SECRETS["PASSWORD"]}"\nKEY = "{SECRETS["GITHUB"]}"\n'
    )


def misses_of_lived(folder: Path, run: Run, stations: Sequence[str] | None = None) -> Iterator[str]:
    """Each command of a life that ends wrongly, and each secret that is found after it."""
    lay_ground(folder)
    with indiscreet() as address:
        for name, (words, code) in lives(address).items():
            if stations is not None and name not in stations:
                continue
            outcome = run(words, folder)
            if outcome.code != code:
                yield f"{name}: exit code {outcome.code}: {' '.join(outcome.text.split())[-200:]}"
            # A user's part may print anything on the terminal.
            text = "\n".join(
                line for line in outcome.text.splitlines() if not line.startswith("my token")
            )
            yield from (f"{name}: {hit}" for hit in hits_of_others(folder, text))
            rate = len(list(folder.rglob("*")))
        assert rate > 20, "nothing was written"


def misses_of_trackers(folder: Path, run: Run) -> Iterator[str]:
    """Each installed tracker that writes a secret."""
    from importlib.util import find_spec

    for name in TRACKERS:
        if find_spec(name) is None:
            print(f"  not installed: {name}")
            continue
        work = folder / name
        lay_ground(work)
        words = [
            *QUICK,
            f"tracker={name}",
            "allow=[chatty]",
            "callback.x._target_=chatty.Chatty",
            "name=tracked",
        ]
        outcome = run(words, work)
        if outcome.code:
            yield f"{name}: exit code {outcome.code}: {outcome.text[-200:]}"
        yield from (f"{name}: {hit}" for hit in hits_of_others(work, outcome.text))


# --- Controls -------------------------------------------------------------------------------------

HYDRA = """
import sys
from pathlib import Path
import hydra
Path("conf").mkdir()
Path("conf/c.yaml").write_text("hub_token: null\\n")
sys.argv = ["app", "hub_token=" + sys.argv[1]]
main = hydra.main(version_base="1.3", config_path=str(Path("conf").absolute()), config_name="c")
main(lambda cfg: None)()
"""


def controls(folder: Path) -> dict[str, list[str]]:
    """The secrets found after a plain Trainer's save, plain Hydra, and in our own archives."""
    import torch
    from transformers import TrainingArguments

    trainer = folder / "trainer"
    hydra = folder / "hydra"
    packed = folder / "packed"
    for place in (trainer, hydra, packed):
        place.mkdir(parents=True)
    args = TrainingArguments(
        output_dir=str(trainer), hub_token=SECRETS["HUB"], use_cpu=True, report_to="none"
    )
    torch.save(args, trainer / "training_args.bin")
    subprocess.run(
        [sys.executable, "-c", HYDRA, SECRETS["HUB"]], cwd=hydra, check=True, capture_output=True
    )
    with zipfile.ZipFile(packed / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "b.gz", gzip.compress(b"user:" + base64.b64encode(b"me:" + SECRETS["PLAIN"].encode()))
        )
    return {place.name: list(hits(place)) for place in (trainer, hydra, packed)}


# --- All of it ------------------------------------------------------------------------------------


def kinds(folder: Path, warm: Warm) -> dict[str, tuple[int, Callable[[], Iterator[str]]]]:
    """Each kind with the number of its cases, and the function that yields its misses."""
    run_with_secrets = warmly(warm, **ENVIRONMENT, LOGIN=SECRETS["PLAIN"])

    def missing_controls() -> Iterator[str]:
        yield from (
            f"nothing is found after {name}"
            for name, names in controls(folder / "c").items()
            if not names
        )

    return {
        "harmless": (len(HARMLESS), misses_of_harmless),
        "lines": (len(LINES), misses_of_lines),
        "refused": (len(REFUSED), lambda: misses_of_refused(folder / "refused", light)),
        "lived": (len(lives("")), lambda: misses_of_lived(folder / "lived", run_with_secrets)),
        "trackers": (
            len(TRACKERS),
            lambda: misses_of_trackers(folder / "trackers", run_with_secrets),
        ),
        "controls": (3, missing_controls),
    }


def light(words: Sequence[str], cwd: Path) -> Outcome:
    """The command with secrets all around it, which is refused at the door."""
    return fork(words, cwd, **ENVIRONMENT)


if __name__ == "__main__":
    sys.exit(report(sys.argv[1:], kinds))
