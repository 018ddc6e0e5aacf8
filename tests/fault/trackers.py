"""Every tracker of transformers with its real package, offline, in a run of three steps.

    python tests/fault/trackers.py [NAME ...] [--packages FOLDER]

The packages are in FOLDER, or installed. A tracker whose package is not there is reported as such,
and is no failure unless it was named. For each it looks for a finished run, for files of the
tracker, and for a secret in any byte that was written.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
SECRET = "k3y" + "0a1b2c3d" * 5
FEW = (
    "trainer.args.max_steps=3",
    "trainer.args.logging_steps=1",
    "metric=none",
    "dataset.limit.train=64",
    "dataset.limit.eval=8",
    "name=x",
)
# The words beside tracker=NAME, and where its files must be; none of services that are elsewhere.
CASES = {
    "wandb": ((), "outputs/x/*/wandb/offline-run-*/*.wandb"),
    "swanlab": ((), "outputs/x/*/swanlab/run-*/*.swanlab"),
    "comet_ml": ((), "outputs/x/*/comet/*.zip"),
    "clearml": ((), "outputs/x/*/clearml/offline/*.zip"),
    "mlflow": ((), "outputs/mlflow.db"),
    "trackio": ((), "outputs/trackio/runner.db"),
    "tensorboard": ((), "outputs/x/*/tensorboard/events*"),
    "dvclive": ((), "outputs/x/*/dvclive/metrics.json"),
    "codecarbon": ((), "outputs/x/*/checkpoints/emissions.csv"),
    "azure_ml": ((), ""),
    "neptune": (("tracker.mode=disabled",), ""),
    "[wandb,tensorboard,mlflow]": ((), "outputs/x/*/wandb/offline-run-*/*.wandb"),
}
# These train in a job of theirs only: what must be told anywhere else, before the start.
REFUSED = {
    "dagshub": "MLFLOW_TRACKING_URI",
    "flyte": "FLYTE_INTERNAL_EXECUTION_ID",
    "kubeflow": "KUBEFLOW_TRAINER_SERVER_URL",
}
KEYS = ("WANDB", "SWANLAB", "COMET", "NEPTUNE")


def main() -> int:
    """Try each, and return 1 where one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--packages", default="")
    options = parser.parse_args()
    failed = 0
    for name in options.names or (*CASES, *REFUSED):
        with TemporaryDirectory() as folder:
            outcome = try_tracker(name, Path(folder), options.packages)
        is_absent = outcome == "not installed" and not options.names
        failed += bool(outcome) and not is_absent
        print(f"{name:30} {outcome or 'ok'}", flush=True)
    return int(bool(failed))


def try_tracker(name: str, folder: Path, packages: str) -> str:
    """What went wrong with a tracker; empty where all is well."""
    further, files = CASES.get(name, ((), ""))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), packages])),
        "HOME": str(folder),
        "OMP_NUM_THREADS": "1",
    }
    if name != "neptune":
        environment |= {f"{key}_API_KEY": SECRET for key in KEYS}
    words = [sys.executable, "-m", "runner", f"tracker={name}", *further, *FEW]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    told = done.stdout + done.stderr
    if "which is not installed" in told:
        return "not installed"
    if name in REFUSED:
        is_told = done.returncode == 5 and REFUSED[name] in told
        return "" if is_told else f"exit code {done.returncode}: {told[-500:]}"
    if done.returncode:
        return f"exit code {done.returncode}: {told[-800:]}"
    if files and not list(folder.glob(files)):
        return f"no {files}"
    written = [path for path in folder.rglob("*") if path.is_file()]
    leaks = [path for path in written if SECRET.encode() in path.read_bytes()]
    if leaks or SECRET in told:
        return f"the secret is in {leaks or 'what is printed'}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
