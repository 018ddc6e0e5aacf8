"""The words that each trainer of the menu needs beside its name, on rows of the shipped tasks."""

from runner.config.menu import read_options

TRAINERS = {name: option["trainer"] for name, option in read_options("trainer").items()}
ON_CPU = sorted(
    name for name, node in TRAINERS.items() if not node.get("needs_gpu") and "server" not in name
)
TINY = "runner://model/tiny"
SERVER = "http://127.0.0.1:9"  # no server listens there
THREE = ("dataset.form=triple", "dataset.columns={chosen: chosen, reference: chosen}")


def needed(trainer: str, teacher: str = TINY) -> tuple[str, ...]:
    """The words that one trainer needs: a teacher's model or server, or a third answer."""
    node = TRAINERS[trainer]
    words = [f"trainer.teacher_model.path={teacher}"] * ("teacher_model" in node)
    words += [
        f"trainer.args.{name}={SERVER}" for name, value in node["args"].items() if value == "???"
    ]
    # otherwise some steps learn nothing
    words += ["trainer.args.success_reward_threshold=0.5"] * (trainer == "sdpo")
    return (*words, *(THREE if node["form"] == "triple" else ()))
