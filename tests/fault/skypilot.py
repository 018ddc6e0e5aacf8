"""SkyPilot itself reads the tasks of ``launcher=skypilot``, and has the commands that it calls.

    python tests/fault/skypilot.py ENVIRONMENT

``ENVIRONMENT`` is a venv with the package ``skypilot`` (0.14.1 was tried), which needs none of the
runner's. No cloud is reached, so no job is started: the tasks are parsed by SkyPilot's own
``Task``, each word of our commands is looked up in its help, and its server on this machine is
asked for a queue that is empty.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from runner.__main__ import main
from runner.launch.skypilot import SkyPilot

PARSE = "import sky, sys; print(sky.Task.from_yaml(sys.argv[1]).to_yaml_config()['resources'])"
KEYS = [
    "launcher.store=s3://bucket/runs",
    "launcher.accelerators=H100",
    "launcher.num_processes=8",
    "launcher.use_spot=true",
    "launcher.infra=aws/us-east-1",
    "launcher.cpus=16+",
    "launcher.memory=128+",
    "launcher.disk_size=512",
    "launcher.image_id=docker:org/image",
    "launcher.max_restarts=3",
    "launcher.parameters={disk_tier: best}",
    "launcher.setup=[pip install -e .]",
    "launcher.variables=[HF_TOKEN]",
]


def shown_task() -> tuple[list[str], str]:
    """The words of the command that would submit a run, and its task."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["launcher=skypilot", *KEYS, "--dry-run"]) == 0
    command, _, task = printed.getvalue().partition("\n# sky ")[2].partition("\n")
    return command.split(), task


def check(environment: Path) -> None:
    sky = environment / "bin" / "sky"
    words, task = shown_task()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "task.yaml")
        path.write_text(task)
        python = environment / "bin" / "python"
        parsed = subprocess.run(
            [python, "-c", PARSE, path], capture_output=True, text=True, check=True
        )
        print("task      SkyPilot reads it:", parsed.stdout.strip().splitlines()[-1])
    commands = {
        "launch": [word for word in words if word.startswith("--")],
        "queue": ["--all", "--output"],
        "cancel": ["--yes", "--name"],
    }
    for name, options in commands.items():
        described = subprocess.run(
            [sky, "jobs", name, "--help"], capture_output=True, text=True, check=True
        )
        missing = set(options) - set(re.findall(r"--[a-z-]+", described.stdout))
        assert not missing, f"sky jobs {name} has no {missing}"
        print(f"options   sky jobs {name}: {' '.join(sorted(set(options)))}")
    os.environ["PATH"] = f"{environment / 'bin'}:{os.environ['PATH']}"
    try:
        places = SkyPilot(store="s3://bucket/runs").look()
        assert places == {}, places
        print("queue     the server on this machine has no jobs, and that is read as none")
    finally:
        subprocess.run([sky, "api", "stop"], capture_output=True, check=False)


if __name__ == "__main__":
    check(Path(sys.argv[1]))
