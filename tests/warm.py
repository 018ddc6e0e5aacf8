"""The public command without its imports: a process that has imported everything forks one for each command line.

Starting Python and the libraries costs 4 s of CPU a command; the tests start hundreds. The child gets the folder, the
environment and the words, calls the door as ``python -m runner`` does, and leaves with its exit code. What needs a
process of its own from the start, such as variables that libraries read when they are imported, is started cold.
"""

import json
import os
import subprocess
import sys
import traceback
from importlib import import_module
from pathlib import Path


class Warm:
    """The process that waits; started at the first command."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.process: subprocess.Popen | None = None
        self.count = 0

    def run(self, words: list[str], cwd: Path, environment: dict[str, str]) -> subprocess.CompletedProcess:
        """What ``subprocess.run`` gives, of the words after ``python -m runner``."""
        if self.process is None:
            own = os.environ | {"HF_HOME": str(self.folder / "hf")}
            command = [sys.executable, __file__]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=own)
        self.count += 1
        out, err = (self.folder / f"{self.count}.{name}" for name in ("out", "err"))
        asked = {"words": words, "cwd": str(cwd), "environment": environment, "out": str(out), "err": str(err)}
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        code = json.loads(self.process.stdout.readline())
        texts = [path.read_text(encoding="utf-8", errors="replace") for path in (out, err)]
        return subprocess.CompletedProcess([sys.executable, "-m", "runner", *words], code, *texts)

    def close(self) -> None:
        if self.process is not None:
            self.process.communicate()


def serve() -> None:
    """Fork for each line of stdin, and tell the exit code."""
    sys.path.insert(0, str(Path(__file__).parent.parent))
    from runner import __main__, config, work
    from runner.sweep import pool

    work.settle()
    import_module("runner.tray")
    for trainer in ("SFTTrainer", "DPOTrainer", "GRPOTrainer"):
        config.locate(f"trl.{trainer}")
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        news, tell = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(news)
            be_command(__main__.main, pool, asked, tell)
        os.close(tell)
        with os.fdopen(news, "rb") as told:
            loaded = told.read()
        _, status = os.waitpid(child, 0)
        pool.learn(loaded)
        code = os.waitstatus_to_exitcode(status)
        print(json.dumps(code), file=answers, flush=True)


def be_command(main, pool, asked, tell) -> None:
    code = 1
    try:
        for name, number in (("out", 1), ("err", 2)):
            os.dup2(os.open(asked[name], os.O_WRONLY | os.O_CREAT), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(asked["cwd"])
        os.environ.clear()
        os.environ.update(asked["environment"])
        sys.argv = ["runner", *asked["words"]]
        sys.path.insert(0, asked["cwd"])
        known = set(sys.modules)
        code = main(asked["words"])
        os.write(tell, pool.loaded_since(known))
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    serve()
