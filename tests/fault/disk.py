"""A full disk never costs the last good checkpoint.

Once there is space, the run ends with the same bits.

    python tests/fault/disk.py                      26 sizes, 12 instants and every write of a save
    python tests/fault/disk.py --count 4            a few of each, and of the controls

sizes      after the start a file leaves as much of a small disk as 1.0 to 3.2 checkpoints take
instants   the disk is full from the moment on at which a run opens its log, its record, its files,
its model ... writes     the k-th write of a save fails, for every k and each of the system's calls
that write (needs strace) control    TRL's own trainer on the same small disk, resumed by the same
command once there is space

The disk is a tmpfs in a mount namespace of the command's own, which needs root or user namespaces.
Each time the exit code must be 5, the message must name place, need and what is free, every sealed
checkpoint must be whole and no torn one left; then the same command must finish as the undisturbed
run did. The exit code is 1 where one of ours misses, or where the control survives all.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from instant import TOUCHES, _path
from kill import TRAINERS, WORDS, Place, run_files, unbroken
from warm import Warm

from runner.io.files import read_json
from runner.run import Run
from runner.run.seal import damage_of, sealed_checkpoints

TESTS = Path(__file__).resolve().parents[1]
SFT = (*WORDS, *TRAINERS["sft"])
BLOCK = 4096
DISK = 96 << 20  # bytes of the small disk; a whole run takes a quarter of it
SIZES = [1.0 + 2.2 * number / 25 for number in range(26)]
RECORD = r"open .*metrics\.jsonl$"
INSTANTS = {
    "config.yaml": (r"\.config\.yaml\.", 1),
    "the first status": (r"\.status\.json\.", 2),
    "the manifest": (r"\.manifest\.json\.", 2),
    "the log": (r"open .*log\.txt", 1),
    "a line of the record": (RECORD, 9),
    "a status": (r"\.status\.json\.", 6),
    "a checkpoint's folder": (r"os\.mkdir .*checkpoint-6$", 1),
    "a seal": (r"\.seal\.json\.", 2),
    "the model's folder": (r"os\.mkdir .*\.model\.new$", 1),
    "the model's seal": (r"\.model\.new/\.seal\.json\.", 1),
    "a picture": (r"open .*plots/", 1),
    "the last status": (r"\.status\.json\.", 18),
}
CALLS = ("write", "writev", "fsync", "ftruncate")
CLONE_NEWNS = 0x20000
CLONE_NEWUSER = 0x10000000
MS_PRIVATE = 1 << 18
MS_REC = 1 << 14


# --- Inside the command's process -----------------------------------------------------------------


def on_a_small_disk(words: list[str]) -> int:
    """Run a command on a small disk that fills up, and again with free space.

    Both are recorded in ``facts.json``.

    The first word says at which instant how many bytes are left. What it leaves is copied to
    ``result``.
    """
    asked = json.loads(words[0])
    words = words[1:]
    outputs = Path("outputs").absolute()
    outputs.mkdir()
    mount(outputs, DISK)
    facts = {"first": forked(words, asked, outputs)}
    runs = [Run(path.parent) for path in outputs.glob("run/*/config.yaml")]
    facts["torn"] = [
        str(path) for path in outputs.glob("*/**/checkpoint-*") if path.is_dir() and is_torn(path)
    ]
    sealed = []
    for run in runs:
        sealed += sealed_checkpoints(run.checkpoints)
    facts["sealed"] = [path.name for path in sealed]
    facts["damaged"] = [path.name for path in sealed if damage_of(path)]
    facts["state"] = runs[0].status()["state"] if runs else "none"
    (outputs / "ballast").unlink(missing_ok=True)
    facts["second"] = forked(words, None, outputs)
    shutil.copytree(outputs, "result")
    Path("facts.json").write_text(json.dumps(facts))
    return 0


def is_torn(path: Path) -> bool:
    """True if a save was cut off and its remains are still there."""
    return not (path / "seal.json").exists()


def forked(words: list[str], asked: dict | None, outputs: Path) -> dict:
    """The exit code and output of a command in a child of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        for name, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(f"told.{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        code = 1
        with contextlib.suppress(SystemExit):
            if asked:
                fill_at(asked, outputs)
            code = door()(words)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"code": code, "text": Path("told.err").read_text(errors="replace")}


def door() -> Callable[[list[str]], int]:
    """The command itself, or the control."""
    if os.environ.get("CONTROL"):
        from plain import main
    else:
        from runner.__main__ import main
    return main


def mount(folder: Path, size: int) -> None:
    """Put a small disk over a folder, seen by this process and its children only."""
    libc = ctypes.CDLL(None, use_errno=True)
    user = os.getuid(), os.getgid()
    if libc.unshare(CLONE_NEWNS) and libc.unshare(CLONE_NEWNS | CLONE_NEWUSER) == 0:
        for name, line in (
            ("setgroups", "deny"),
            ("uid_map", f"0 {user[0]} 1"),
            ("gid_map", f"0 {user[1]} 1"),
        ):
            Path(f"/proc/self/{name}").write_text(line)
    libc.mount(b"none", b"/", None, MS_PRIVATE | MS_REC, None)
    if libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, f"size={size}".encode()):
        raise OSError(ctypes.get_errno(), "no tmpfs may be mounted here")


def can_mount() -> bool:
    """True if a small disk can be mounted on this machine."""
    code = "import disk, sys, pathlib; disk.mount(pathlib.Path(sys.argv[1]), 1 << 20)"
    with tempfile.TemporaryDirectory() as folder:
        variables = os.environ | {"PYTHONPATH": f"{Path(__file__).parent}:{TESTS}:{TESTS.parent}"}
        return (
            subprocess.run(
                [sys.executable, "-c", code, folder], env=variables, capture_output=True
            ).returncode
            == 0
        )


def fill_at(asked: dict, outputs: Path) -> None:
    """Leave so many bytes free from the moment at which a file is touched for the n-th time."""
    writes = 0
    done = False

    def hook(event: str, arguments: tuple) -> None:
        nonlocal writes, done
        if event not in TOUCHES or done:
            return
        path = _path(event, arguments)
        if (
            path
            and path.startswith(str(outputs))
            and re.search(asked["pattern"], f"{event} {path}")
        ):
            writes += 1
            if writes == asked["count"]:
                done = True
                fill(outputs / "ballast", asked["free"])

    sys.addaudithook(hook)


def fill(path: Path, free: int) -> None:
    place = os.statvfs(path.parent)
    size = place.f_bavail * place.f_frsize - free // BLOCK * BLOCK
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(BLOCK, size))


def fails_at_a_write(words: list[str]) -> int:
    """Run a command in which the k-th call of a kind fails inside the second save, as on a full
    disk.
    """
    from runner.__main__ import main

    call, number = words[0].split(":")
    told = f"inject={call}:error=ENOSPC:when={number}"
    tracer: list[subprocess.Popen] = []

    def hook(event: str, arguments: tuple) -> None:
        if event == "os.mkdir" and str(arguments[0]).endswith("checkpoint-4") and not tracer:
            tracer.append(None)
            command = ["strace", "-qq", "-f", "-o", "injected", "-e", f"trace={call}", "-e", told]
            tracer[0] = subprocess.Popen(
                [*command, "-p", str(os.getpid())], stderr=subprocess.DEVNULL
            )
            while "TracerPid:\t0\n" in Path("/proc/self/status").read_text():
                time.sleep(0.005)
        elif event == "os.rename" and str(arguments[1]).endswith("checkpoint-4/seal.json"):
            tracer[0].terminate()
            tracer[0].wait()

    sys.addaudithook(hook)
    return main(words[1:])


# --- Outside --------------------------------------------------------------------------------------


class Whole:
    """The undisturbed run, with the size of its checkpoints."""

    def __init__(self, root: Path, warm: Warm):
        self.root = root
        self.warm = warm
        self.count = 0
        place = Place(root / "whole", root, warm)
        unbroken(place, SFT)
        self.wanted = run_files(place.run)
        files = sealed_checkpoints(place.run.checkpoints)[-1].iterdir()
        self.checkpoint = sum(-(-path.stat().st_size // BLOCK) * BLOCK for path in files)

    def place(self, door: str) -> Place:
        self.count += 1
        return Place(self.root / f"place-{self.count}", self.root, self.warm, door)

    def filled(self, pattern: str, count: int, free: int) -> tuple[bool, str]:
        """Run on a small disk; return whether it was too small, and the broken promises."""
        place = self.place("disk:on_a_small_disk")
        asked = json.dumps({"pattern": pattern, "count": count, "free": free})
        done = place.start((asked, *SFT)).wait()
        if done.returncode:
            return False, done.stderr[-500:]
        facts = read_json(place.folder / "facts.json")
        shutil.rmtree(place.folder / "outputs")
        (place.folder / "result").rename(place.folder / "outputs")
        bad = "" if facts["first"]["code"] == 0 else misses(facts)
        # A run that starts over from the first step does not measure its start model again.
        anew = not facts["sealed"] and {"trainer_state.json"}
        bad = bad or self.differs(place, facts["second"], anew or set())
        return facts["first"]["code"] != 0, bad

    def injected(self, call: str, number: int) -> tuple[bool, str]:
        """The same for the k-th call of a kind in a save."""
        place = self.place("disk:fails_at_a_write")
        done = place.start((f"{call}:{number}", *SFT)).wait()
        if "INJECTED" not in (place.folder / "injected").read_text(errors="replace"):
            shutil.rmtree(place.folder)
            return False, ""
        torn = [str(path) for path in place.run.checkpoints.glob("checkpoint-*") if is_torn(path)]
        damaged = [
            path.name for path in sealed_checkpoints(place.run.checkpoints) if damage_of(path)
        ]
        facts = {
            "first": {"code": done.returncode, "text": done.stderr},
            "torn": torn,
            "damaged": damaged,
        }
        # a write to the terminal may fail
        bad = misses(facts) if done.returncode else ""
        place.door = "runner.__main__:main"
        again = place.start(SFT).wait()
        return True, bad or self.differs(place, {"code": again.returncode, "text": again.stderr})

    def differs(self, place: Place, second: dict, left_out: set[str] = frozenset()) -> str:
        if second["code"]:
            return f"the second time: exit code {second['code']}: {second['text'][-400:]}"
        files = run_files(place.run)
        names = sorted(key for key in self.wanted | files if self.wanted.get(key) != files.get(key))
        names = [name for name in names if name not in left_out]
        shutil.rmtree(place.folder)
        return f"differs in {', '.join(names)}" if names else ""

    def control(self, free: int) -> str:
        """The end of the plain trainer on the same small disk.

        Finished, or how it ended once there was space.
        """
        place = self.place("disk:on_a_small_disk")
        asked = json.dumps({"pattern": r"os\.mkdir .*checkpoint-2$", "count": 1, "free": free})
        os.environ["CONTROL"] = "1"
        try:
            done = place.start((asked,)).wait()
        finally:
            del os.environ["CONTROL"]
        facts = read_json(place.folder / "facts.json") or {
            "first": {"code": 1},
            "second": {"code": done.returncode},
        }
        shutil.rmtree(place.folder)
        if facts["first"]["code"] == 0:
            return "had room"
        return "lost: a person must clear up" if facts["second"]["code"] else "went on by itself"


def misses(facts: dict) -> str:
    """The promises that a run on a full disk has broken."""
    text = facts["first"]["text"]
    wrong = [f"exit code {facts['first']['code']}"] if facts["first"]["code"] != 5 else []
    wrong += [f"not said: {word}" for word in ("full", "free", "type ") if word not in text]
    wrong += ["no size with a unit"] if not re.search(r"\d (bytes|kB|MB|GB) free", text) else []
    wrong += ["a traceback"] if "Traceback" in text else []
    wrong += [f"left {', '.join(facts['torn'])}"] if facts["torn"] else []
    wrong += [f"damaged {', '.join(facts['damaged'])}"] if facts["damaged"] else []
    return f"{'; '.join(wrong)}: {text[-600:]}" if wrong else ""


def told_of(name: str, cases: dict[str, tuple[bool, str]]) -> int:
    """Print the outcomes of some cases, and return the number of misses."""
    bad = {case: text for case, (_, text) in cases.items() if text}
    hit = sum(hit for hit, _ in cases.values())
    print(
        f"{name:<9} {hit:>4} of {len(cases):>4} met a full disk, "
        f"{len(cases) - len(bad):>4} as promised",
        flush=True,
    )
    print("".join(f"          {case}: {text}\n" for case, text in bad.items()), end="")
    return len(bad)


def every_write(full_run: Whole, most: int) -> dict[str, tuple[bool, str]]:
    """Each k of each call, until the save has no more of them."""
    outcomes = {}
    for call in CALLS:
        for number in range(1, most + 1):
            hit, bad = full_run.injected(call, number)
            if not hit and not bad:
                break
            outcomes[f"{call} {number}"] = (hit, bad)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=1000, help="most cases of each kind")
    asked = parser.parse_args()
    bad = 0
    if not can_mount():
        print("no tmpfs may be mounted here: run as root, or allow user namespaces")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        warm = Warm(Path(folder) / "warm")
        full_run = Whole(Path(folder), warm)
        sizes = SIZES[:: max(1, len(SIZES) // asked.count)][: asked.count]
        bad += told_of(
            "sizes",
            {f"{n:.2f}": full_run.filled(RECORD, 1, int(n * full_run.checkpoint)) for n in sizes},
        )
        instants = dict(list(INSTANTS.items())[: asked.count])
        bad += told_of(
            "instants", {name: full_run.filled(*instant, 0) for name, instant in instants.items()}
        )
        if shutil.which("strace"):
            bad += told_of("writes", every_write(full_run, asked.count))
        plain = [
            full_run.control(int(n * full_run.checkpoint))
            for n in sizes[:: 1 if asked.count < 26 else 3]
        ]
        lost = sum(end.startswith("lost") for end in plain)
        print(
            f"control   {len(plain)} sizes: "
            f"{', '.join(f'{plain.count(end)} {end}' for end in dict.fromkeys(plain))}"
        )
        warm.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{used.ru_utime + used.ru_stime:.0f} CPU seconds")
    return 1 if bad or not lost else 0


if __name__ == "__main__":
    sys.exit(main())
