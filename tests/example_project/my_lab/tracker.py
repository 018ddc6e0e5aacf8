"""A tracker of our own: a callback of transformers that writes each figure into a table."""

from pathlib import Path

from transformers import TrainerCallback


class Ledger(TrainerCallback):
    """Writes step, name and value of each figure; ``folder`` is the run's, given by the runner."""

    def __init__(self, folder: Path, file: str, project: str = "none"):
        self.path = Path(folder, file)
        self.project = project

    def on_log(self, args, state, control, logs=None, **kwargs):
        with self.path.open("a", encoding="utf-8") as table:
            for name, value in logs.items():
                table.write(f"{self.project}\t{state.global_step}\t{name}\t{value}\n")

    def on_train_end(self, args, state, control, **kwargs):
        with self.path.open("a", encoding="utf-8") as table:
            table.write("end\n")
