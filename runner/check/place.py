"""Where a key that its target does not take was meant to be."""

from collections.abc import Iterator
from typing import Any

from runner.check.known import FROM_GROUP, TOP, Asked, Node, judges, keys_of
from runner.check.value import likeness, nearest, shown, typed
from runner.errors import Fault
from runner.signature import Signature
from runner.signature.type import shortened

# Names in other libraries, or in earlier versions of these.
FORMERLY = {
    "lr": "learning_rate",
    "epochs": "num_train_epochs",
    "batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "evaluation_strategy": "eval_strategy",
    "warmup_ratio": "warmup_steps",
    "group_by_length": "train_sampling_strategy",  # whose value it became
    "max_seq_length": "max_length",
    "max_new_tokens": "max_completion_length",
    "no_cuda": "use_cpu",
    "kl_coef": "beta",
    "torch_dtype": "dtype",
    "attn_implementation": "attention",
    "model_name_or_path": "path",
    "pretrained_model_name_or_path": "path",
}
ONE_MACHINE, HERE = "one machine: several are not supported yet", "launcher.num_processes=<processes here>"
ALIKE = 0.8  # from this likeness on, a key is taken for a misspelling of its neighbour


def find_unknown(asked: Asked, path: str, node: Node, key: str, signature: Signature) -> Iterator[Fault]:
    """The fault of a key that its target does not take.

    An open target takes any key; there only one that looks like an argument is a fault. Rewards and metrics are open
    to the columns of the rows, and not to keys.
    """
    if path == "launcher" and key == "num_machines":
        yield Fault(f"{path}.{key}", f"{shown(node[key])} machines", ONE_MACHINE, f"leave {path}.{key} out, and {HERE}")
        return
    is_open = signature.is_open and not judges(path, signature)
    own, value = f"{path}.{key}", node[key]
    keys = keys_of(path, signature)
    free = [name for name in keys if path != "trainer" or name not in FROM_GROUP]
    near = [FORMERLY[key]] if FORMERLY.get(key) in free else _near(key, free, is_open)
    if is_open and not near:
        return
    found = f"{signature.name} has no such {'field' if 'Config' in signature.name else 'argument'}"
    is_alike = bool(near) and (near[0] == FORMERLY.get(key) or likeness(key, near[0]) >= ALIKE)
    places = [] if is_alike else asked.places.get(key, [])
    if places:
        yield Fault(own, found, belongs(key, places), typed(places[0], value))
    elif not is_alike and path == "trainer.args" and (owners := _owners(asked, key)):
        who = signature.name.removesuffix("Config")
        expected = f"`{key}` exists for {shortened(owners, 50)}, not for {who}"
        yield Fault(own, found, expected, f"leave {key} out")
    elif near:
        meant = key if key in keys[near[0]].type.choices else value
        yield Fault(own, found, near[0], typed(f"{path}.{near[0]}", meant))
    elif places := near_places(asked, key):
        yield Fault(own, found, places[0], typed(places[0], value))
    else:
        yield Fault(own, found, f"one of {shortened(free)}" if free else "", f"leave {key} out")


def find_unknown_top(asked: Asked, key: str, value: Any) -> Fault:
    """The fault of a key that the top level does not have."""
    found = "no such key at the top level"
    if places := asked.places.get(key):
        return Fault(key, found, belongs(key, places), typed(places[0], value))
    words = list(dict.fromkeys([*TOP, *asked.groups, *asked.menu]))
    if near := nearest(key, words) or near_places(asked, key):
        return Fault(key, found, near[0], typed(near[0], value))
    return Fault(key, found, f"one of {shortened(words)}", f"leave {key} out")


def belongs(key: str, places: list[str]) -> str:
    """Where a key is right, in words."""
    words = ["the top level" if place == key else place for place in places]
    return f"`{key}` belongs at {' or '.join(words[:3])}"


def near_places(asked: Asked, key: str) -> list[str]:
    """The places of the key that looks most like this one, anywhere in the configuration."""
    near = nearest(key, asked.places, 0.75)
    return asked.places[near[0]] if near else []


def _near(key: str, free: list[str], is_open: bool) -> list[str]:
    begun = [name for name in free if len(key) > 2 and name.startswith(key)]
    return nearest(key, free, 0.85 if is_open else 0.6) or (begun if len(begun) == 1 else [])


def _owners(asked: Asked, key: str) -> list[str]:
    return [name for name, other in asked.others.items() if key in other.parameters]
