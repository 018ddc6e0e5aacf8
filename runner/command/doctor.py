"""Tells on one screen what this machine has for a training."""

import contextlib
import os
import platform
import shutil
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from itertools import zip_longest
from pathlib import Path

from packaging.requirements import Requirement

from runner.command import CommandLine, read_options
from runner.config.machines import ask_driver
from runner.errors import EnvironmentFault
from runner.estimate.device import read_memory
from runner.io.distribution import NAME, read_extras, read_project, read_requirements
from runner.io.files import PACKAGE, display_path, hub_home
from runner.io.hub import OFFLINE, hub_address, hub_answer, is_offline
from runner.io.secrets import hidden
from runner.io.visible import to_visible
from runner.launch.pool import count_cores
from runner.report.number import short
from runner.report.table import Column, format_table
from runner.run.disk import sized
from runner.schema.text import number
from runner.validate.start import status_of

WIDTH = 80
MAX_SECONDS_FOR_HUB = 2.0
MAX_SECONDS_FOR_CACHE = 1.0


def main(line: CommandLine) -> int:
    """Print the screen; 5 where a needed package is missing or of another version."""
    options = read_options(line.overrides, "doctor")
    answers: list[str] = []  # of the hub, which is asked first: the rest is read while it answers, or does not
    asking = threading.Thread(target=lambda: answers.append(ask_hub()), daemon=True)
    asking.start()
    end = time.monotonic() + MAX_SECONDS_FOR_HUB + 0.5  # after which its own request has said why
    needed = [status_of(requirement) for requirement in read_requirements() if "extra ==" not in requirement]
    # The packages in two columns of name, version and range, those with a problem marked.
    cells = []
    for name, version, specifier, problem in needed:
        specifier = ",".join(sorted(specifier.split(","), reverse=True))
        cells.append(f"{'!' if problem else ' '} {name:<13}{short(version, 11):<12}{problem or specifier}")
    half = (len(cells) + 1) // 2
    pairs = zip_longest(cells[:half], cells[half:], fillvalue="")
    print("\n".join([f"{left:<40}{right}".rstrip()[:WIDTH] for left, right in pairs]))
    memory = [f"{sized(size)} {name}" for name, size in read_memory().items()]
    threads = os.environ.get("OMP_NUM_THREADS")
    limit = [f"OMP_NUM_THREADS={threads}"] if threads else []
    home, outputs = hub_home(), Path(options.get("output_root", "outputs")).absolute()
    existing = next(path for path in (outputs, *outputs.parents) if path.exists())
    disk, closed = shutil.disk_usage(existing), "" if os.access(existing, os.W_OK) else ", and you may not write there"
    rows = {
        "python": f"{platform.python_version()} ({sys.executable}), {platform.system()} {platform.machine()}",
        "cpu": ", ".join([f"{count_cores()} cores", *memory, *limit]),
        "gpu": _gpus(),
        "models": describe_cache(Path(os.environ.get("HF_HUB_CACHE") or home / "hub"), "models--*"),
        "datasets": describe_cache(Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets"), "*"),
        "disk": f"{sized(disk.free)} of {sized(disk.total)} free at {display_path(outputs)}/{closed}",
    }
    asking.join(max(0.5, end - time.monotonic()))
    rows["hub"] = answers[0] if answers else f"no answer in {number(MAX_SECONDS_FOR_HUB)} s"
    print("\n".join(f"{title:<10}{short(to_visible(hidden(text)), WIDTH - 10)}" for title, text in rows.items()))
    print("\n".join(["", *extras_table(read_extras())]))
    return EnvironmentFault.code if any(problem for *_, problem in needed) else 0


def missing_of(text: str, extras: Mapping[str, Sequence[str]]) -> list[str]:
    """The packages that a requirement would bring, those of its own extras too; none where all are there.

    >>> missing_of("trl-runner[quant]", {"quant": ["no-such-package>=2", "pyyaml"]})
    ['no-such-package>=2']
    """
    requirement = Requirement(text)
    if requirement.name == NAME:
        inner = [each for extra in sorted(requirement.extras) for each in extras.get(extra, ())]
    elif status_of(text)[-1]:
        return [text]
    else:
        marked = [(each, each.marker) for each in map(Requirement, metadata.requires(requirement.name) or ())]
        with_extra = [{"extra": extra} for extra in requirement.extras]
        extra = [each for each, marker in marked if "extra" in str(marker) and any(map(marker.evaluate, with_extra))]
        inner = [str(each).partition(";")[0].strip() for each in extra]
    return list(dict.fromkeys(lack for each in inner for lack in missing_of(each, extras)))


def extras_table(extras: Mapping[str, Sequence[str]]) -> list[str]:
    """Each extra with what it would bring, and the line that installs one."""
    if not extras:
        return []
    lacking = [", ".join(missing_of(f"{NAME}[{name}]", extras)) for name in extras]
    home = f"-e '{display_path(PACKAGE.parent)}[NAME]'" if read_project() else "what it brings"
    cells = [f"brings {packages}" if packages else "there" for packages in lacking]
    columns = [Column("extra", list(extras), True, True), Column(f"pip install {home}", cells, True, True)]
    return [short(line[2:], WIDTH) for line in format_table(columns, 200)]


def _gpus() -> str:
    """The GPUs as their driver names them; torch is not woken for that."""
    if shutil.which("nvidia-smi"):
        if cards := ask_driver("name,memory.total,memory.used"):
            return f"{len(cards)} x {cards[0]} used" if len(set(cards)) == 1 else "; ".join(cards)
        return "nvidia-smi is there and does not answer"
    return "AMD, by /dev/kfd" if Path("/dev/kfd").exists() else "none; runs use the CPU in float32"


def describe_cache(folder: Path, pattern: str) -> str:
    """The size of a cache, links not followed and of a large one a part, and the number of its folders."""
    folder, home = folder.expanduser(), Path.home()
    place = f"~/{folder.relative_to(home)}" if folder.is_relative_to(home) else str(folder)
    if not folder.is_dir():
        return f"nothing yet in {place}"
    size, end, is_whole = 0, time.monotonic() + MAX_SECONDS_FOR_CACHE, True
    for path, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                size += os.lstat(os.path.join(path, name)).st_size
        if time.monotonic() > end:
            is_whole = False
            break
    count = sum(path.is_dir() for path in folder.glob(pattern))
    return f"{'' if is_whole else 'more than '}{sized(size)}, {count} of them in {place}"


def ask_hub() -> str:
    """Ask the hub for an answer, and look for a token."""
    file = Path(os.environ.get("HF_TOKEN_PATH") or hub_home() / "token")
    token = "a token is set" if os.environ.get("HF_TOKEN") or file.is_file() else "no token"
    if is_offline():
        return f"not asked, {OFFLINE} is set; {token}"
    return f"{hub_address()} {hub_answer(MAX_SECONDS_FOR_HUB)[1]}; {token}"
