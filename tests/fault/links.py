"""In a stranger's run folder no verb writes, empties, deletes or shows anything elsewhere.

Nor does any hang, whatever lies in the place of a file or folder.

    python tests/fault/links.py                       every place, kind and verb; an hour
    python tests/fault/links.py --every 17            each 17th case
    python tests/fault/links.py --verbs report train  of these verbs

Prints each miss, and how many cases there were; the exit code is 1 where one missed something.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import product
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS), str(TESTS.parent), str(Path(__file__).parent)]

from danger import QUICK, ROOT, TRAINED, VERBS, resumable
from warm import Warm

SECONDS = 300  # in which every command ends, refused or not
SECRET = "precious-4711"
MORE_VERBS = {
    "train": TRAINED,
    "resume": TRAINED,
    "report of the name": ["report", "outputs/x"],
    "list": ["report"],
}
MORE_VERBS |= {"sweep": ["-m", *QUICK, "name=x", "seed=0,1"], "rehearse": ["rehearse", *TRAINED]}
MORE_VERBS |= {"preview a page": ["preview", "{run}", "html=true"]}
ALL_VERBS = VERBS | MORE_VERBS
# Files that exist only for a moment, or come from an earlier version.
FOR_A_MOMENT = (
    ".lock",
    ".model.new",
    ".model.removed",
    "checkpoints/.checkpoint-1.removed",
    "checkpoints/checkpoint-3",
)


def leave_link(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "precious.txt")


def leave_link_to_folder(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere)


def leave_link_to_nothing(path: Path, elsewhere: Path) -> None:
    path.symlink_to(elsewhere / "new")


def leave_second_name(path: Path, elsewhere: Path) -> None:
    os.link(elsewhere / "precious.txt", path)


def leave_pipe(path: Path, elsewhere: Path) -> None:
    os.mkfifo(path)


def leave_socket(path: Path, elsewhere: Path) -> None:
    before = os.getcwd()
    os.chdir(path.parent)  # an address has 100 letters
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made:
        made.bind(path.name)
    os.chdir(before)


def leave_device(path: Path, elsewhere: Path) -> None:
    """One that never ends; only root can make one."""
    os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))


def leave_folder(path: Path, elsewhere: Path) -> None:
    (path / "inner").mkdir(parents=True)


KINDS: dict[str, Callable[[Path, Path], None]] = {
    function.__name__.removeprefix("leave_"): function
    for function in (
        *(leave_link, leave_link_to_folder, leave_link_to_nothing, leave_second_name),
        *(leave_pipe, leave_socket, leave_folder, *([leave_device] if os.geteuid() == 0 else [])),
    )
}


def run(warm: Warm, words: Sequence[str], cwd: Path) -> tuple[int | None, str]:
    """The exit code of a command, None if it had to be killed, and its output."""
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(ROOT),
        "HF_HOME": str(cwd.parent / ".hf"),
    }
    started = warm.start(list(words), cwd, environment, session=True)
    deadline = time.monotonic() + SECONDS
    while not started.ended():
        if time.monotonic() > deadline:
            os.killpg(started.pid, signal.SIGKILL)
            started.wait()
            return None, ""
        time.sleep(0.01)
    done = started.wait()
    return done.returncode, done.stdout + done.stderr


def make_run(warm: Warm, folder: Path, verbs: Iterable[str] = tuple(VERBS)) -> Path:
    """A trained run with every file that these verbs add to it."""
    folder.mkdir(parents=True)
    code, text = run(warm, TRAINED, folder)
    assert code == 0, text
    target = next((folder / "outputs" / "x").glob("*/config.yaml")).parent
    for verb in verbs:
        words = VERBS[verb]
        if words and verb not in ("reproduce", "import"):
            run(warm, [word.format(run=target) for word in words], folder)
    run(warm, ["report", "outputs/x"], folder)
    return target


def places_of(target: Path) -> list[str]:
    """Every file and folder of a run and of its name, by their paths from the folder of the run."""
    inside = [str(path.relative_to(target)) for path in sorted(target.rglob("*"))]
    beside = [f"../{path.name}" for path in sorted(target.parent.iterdir()) if path != target]
    return list(dict.fromkeys([*inside, *beside, *FOR_A_MOMENT]))


def look(folder: Path) -> dict[str, tuple[object, ...]]:
    """The content of a folder by path."""
    paths = sorted(folder.rglob("*"))
    return {
        str(path): (path.stat().st_mtime_ns, path.is_file() and path.read_bytes()) for path in paths
    }


def miss_of(warm: Warm, trained: Path, work: Path, verb: str, place: str, kind: str) -> str:
    """The fault that occurs when something of this kind lies in a place; empty if none."""
    elsewhere = work / "elsewhere"
    target = work / "here" / "outputs" / "x" / trained.name
    elsewhere.mkdir(parents=True)
    (elsewhere / "precious.txt").write_text(f"{SECRET}\n")
    shutil.copytree(trained.parent, target.parent)
    if verb == "resume":
        resumable(target)
    path = target / place
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    KINDS[kind](path, elsewhere)
    before = look(elsewhere)
    code, text = run(warm, [word.format(run=target) for word in ALL_VERBS[verb]], work / "here")
    if look(elsewhere) != before:
        return "changed what is elsewhere"
    if code is None:
        return f"did not end in {SECONDS} s"
    if code not in (0, 2, 3, 4, 5) or "Traceback" in text:
        return f"exit code {code}: {' '.join(text.split())[-160:]}"
    written = [
        path
        for path in work.rglob("*")
        if path.is_file() and not path.is_symlink() and path.stat().st_nlink < 2
    ]
    shown = [
        path.name
        for path in written
        if path.parent != elsewhere and SECRET.encode() in path.read_bytes()
    ]
    # a file of this run as any other, as ``cp -al`` makes them: a copy may hold the same
    if kind == "second_name":
        shown = []
    return (
        f"showed what is elsewhere{f', in {shown[0]}' if shown else ''}"
        if SECRET in text or shown
        else ""
    )


def find_misses(
    folder: Path,
    warm: Warm,
    verbs: Sequence[str] = tuple(ALL_VERBS),
    every: int = 1,
    first: int = 0,
) -> Iterator[str]:
    """The misses of each case."""
    trained = make_run(warm, folder / "trained")
    cases = [case for case in product(verbs, places_of(trained), KINDS)][first::every]
    for verb, place, kind in cases:
        work = folder / "work"
        miss = miss_of(warm, trained, work, verb, place, kind)
        shutil.rmtree(work)
        yield f"{verb}: {place}: {kind.replace('_', ' ')}: {miss}" if miss else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--verbs", nargs="+", default=list(ALL_VERBS), help=", ".join(ALL_VERBS))
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    misses = []
    count = 0
    with (
        tempfile.TemporaryDirectory(prefix="fault-") as place,
        contextlib.closing(Warm(Path(place) / "warm")) as warm,
    ):
        for miss in find_misses(Path(place), warm, options.verbs, options.every, options.first):
            count += 1
            if miss:
                misses.append(miss)
                print(f"miss    {miss}", flush=True)
            if count % 500 == 0:
                print(f"{count} cases so far, {len(misses)} missed", flush=True)
    print(
        f"{count - len(misses)} of {count} cases: "
        "nothing elsewhere was written, emptied, deleted or shown"
    )
    return 1 if misses else 0


if __name__ == "__main__":
    sys.exit(main())
