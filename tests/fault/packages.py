"""What the tests do not install, each used for real: trackers, llama.cpp, torchao, lm-eval.

    python tests/fault/packages.py

It installs them into an environment of its own, and runs the tests that need one.
Fails where a test is left out for want of a package, too. The network is needed to install them,
and by nothing after.
"""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = "test,wandb,trackio,mlflow,tensorboard,gguf,fp8,lm_eval"
OTHERS = ["xllamacpp>=2026.10"]  # llama.cpp's server as a library
FILES = [
    "tests/test_tracker.py",
    "tests/test_gguf.py",
    "tests/test_fp8.py",
    "tests/test_evaluate.py",
]


def main() -> int:
    """Install, run, and report what was left out."""
    with TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder, "bin", "python"))
        subprocess.run(
            [python, "-m", "pip", "install", "-q", "-e", f".[{EXTRAS}]", *OTHERS],
            cwd=ROOT,
            check=True,
        )
        words = [python, "-m", "pytest", "-q", "-n", "0", "-rs", "-m", "slow or not slow", *FILES]
        done = subprocess.run(
            words,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
    print(done.stdout)
    left_out = re.findall(r"^SKIPPED.*", done.stdout, re.M)
    print(f"{len(left_out)} left out", *left_out, sep="\n")
    return done.returncode or int(any("not installed" in reason for reason in left_out))


if __name__ == "__main__":
    sys.exit(main())
