"""Columns of the rows, as far as they are known, that a setting, a trainer or a reward needs."""

from collections.abc import Iterator, Set

from runner.dataset.dataset_check import DatasetCheck
from runner.errors import Fault
from runner.schema.read import read_signature
from runner.schema.text import Config, Node, nodes
from runner.validate.context import JUDGED

# Arguments that every trainer of rewards gives to them beside the columns of the rows.
GIVEN_TO_REWARDS = {*JUDGED, "prompts", "trainer_state", "log_extra", "log_metric", "environments"}


def find_column_faults(cfg: Config, rows: DatasetCheck) -> Iterator[Fault]:
    """A fault for each column that something cannot do without, and that the rows do not have."""
    columns = rows.columns
    if not columns:
        return
    trainer = cfg["trainer"]
    preparation = trainer["args"].get("dataset_kwargs")
    is_prepared = not isinstance(preparation, dict) or not preparation.get("skip_prepare_dataset")
    if not is_prepared and "input_ids" not in columns:
        yield Fault(
            where="trainer.args.dataset_kwargs",
            found=f"rows that nothing tokenises: {_listed(columns)}",
            expected="rows with input_ids and labels",
            fix="=null",
        )
    if trainer["head"] != "score" and "chosen_ids" in columns:
        yield Fault(
            where="dataset",
            found="pairs of tokens, but this trainer tokenises rows itself",
            expected="text or conversations",
            fix="trainer=reward, which takes them",
        )
    if trainer["form"] != "prompt":
        return
    reference = trainer.get("reference_column")
    if reference and reference not in columns and "reference" not in columns:
        yield Fault(
            where="dataset",
            found=f"the rows have neither answers nor a column {reference}",
            expected="what the trainer's own teacher sees in addition to the prompt",
            fix="another dataset",
        )
    yield from _find_faults_of_episodes(cfg.get("environment"), columns)
    for path, node in nodes({"reward": cfg.get("reward")}):
        # A function that a reward is given is called by that reward.
        if node.get("_partial_"):
            continue
        yield from _find_faults_of_reward(path, node, columns)


def _find_faults_of_episodes(environment: Node | None, columns: Set[str]) -> Iterator[Fault]:
    """A fault for each column by which an episode begins, and that the rows do not have."""
    target = str((environment or {}).get("_target_"))
    signature = read_signature(f"{target}.reset")
    required = set(signature.required) if signature else set()
    for name in sorted(required - columns):
        yield Fault(
            where="environment",
            found=f"{target}.reset takes {name}, but the rows have no such column",
            expected=f"some of {_listed(columns)}",
            fix=f"a column {name} in the data, or dataset=<another>",
        )


def _find_faults_of_reward(path: str, node: Node, columns: Set[str]) -> Iterator[Fault]:
    """A fault for each column that a reward asks for in vain."""
    signature = read_signature(node["_target_"])
    if signature is None or not GIVEN_TO_REWARDS & set(signature.parameters):
        return
    listed = _listed(columns)
    required = set(signature.required)
    for name in sorted(required - set(node) - GIVEN_TO_REWARDS - columns):
        yield Fault(
            where=path,
            found=f"it takes {name}, but the rows have no such column",
            expected=f"some of {listed}",
            fix=f"a column {name} in the data, or {path}.{name}=<value>",
        )
    parameter = signature.parameters.get("column")
    column = node.get("column", parameter.default if parameter else None)
    if not str(node["_target_"]).startswith("runner.reward.") or not column:
        return
    if column not in columns:
        usable = columns - {"prompt"}
        likeliest = "<column>"
        if len(usable) == 1:
            likeliest = next(iter(usable))
        yield Fault(
            where=f"{path}.column",
            found=f"the rows have no column {column}",
            expected=f"one of {listed}",
            fix=f"={likeliest}",
        )


def _listed(columns: Set[str]) -> str:
    return ", ".join(sorted(columns))
