"""Keys: those of the top level and its groups, of each node against its signature, and where a stray one belongs."""

import math
from collections.abc import Iterator

from runner.config.dialect import find_meanings
from runner.config.menu import read_options
from runner.errors import Fault, fault
from runner.io.visible import to_visible
from runner.schema import upstream
from runner.schema.read import Parameter, Signature, choices_compared
from runner.schema.text import (
    Node,
    as_typed,
    flatten,
    last_key,
    likeness,
    nearest,
    scalars,
    short_text,
    to_override,
    to_text,
)
from runner.schema.type import expression, shortened, to_type
from runner.validate.context import ARGS, OWN, PLAIN_GROUPS, SPECIAL, TOP, ValidationContext, is_called_later, keys_of
from runner.validate.values import (
    SETTINGS,
    find_misfits,
    is_plain_number,
    misfit_choice,
    misfit_number,
    misfit_type,
    range_of,
)

# --- The top level ----------------------------------------------------------------------------------
NEEDED_GROUPS = ("trainer", "model", "dataset")
READ_GROUPS = ("tracker", "launcher")  # where the key is there, there must be something in it
NAMED_GROUPS = ("reward", "weight", "metric", "callback")  # of parts that each have a name
MEANT_OTHERWISE = ("resume",)  # keys that take what a dialect's table refuses; for any other none needs to be read
NOT_AT_THE_TOP = "no such key at the top level"
MAX_PATH_BYTES = 3500  # systems allow 4096, and a run's folders and files come on top


def find_top_faults(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each key of the top level that is strange, missing, or holds the wrong thing."""
    for key, value in context.cfg.items():
        if key in PLAIN_GROUPS and isinstance(value, dict):
            kinds = PLAIN_GROUPS[key]
            for name, entry in value.items():
                if name in kinds:
                    yield from _setting(context, f"{key}.{name}", kinds[name], entry)
                else:
                    near = [*nearest(str(name), kinds), *kinds][0]
                    fix = _to_type(context, f"{key}.{name}", {f"{key}.{near}": entry})
                    yield Fault(f"{key}.{name}", "no such key", near, fix)
        elif key in TOP:
            yield from _setting(context, key, TOP[key], value)
        elif key in context.groups:
            yield from _group(context, key, value)
        else:
            yield from _stray(context, str(key), value)
    for group in (*NEEDED_GROUPS, *(group for group in READ_GROUPS if group in context.cfg)):
        if context.cfg.get(group) in (None, {}):
            yield _nothing_chosen(context, group, "nothing chosen")


def _stray(context: ValidationContext, key: str, value: object) -> Iterator[Fault]:
    names = list(dict.fromkeys([*TOP, *context.groups, *context.menu]))
    likely = nearest(key, names)
    is_misspelt = isinstance(value, dict) and bool(likely) and likeness(key, likely[0]) >= MIN_LIKENESS
    if not is_misspelt and value and isinstance(value, dict) and all(below := _answers_in(context, key, value)):
        yield from filter(None, below)
    elif not is_misspelt and (answer := _answer(context, key, value, NOT_AT_THE_TOP)):
        yield answer
    elif likely := _likeliest(key, likely, _near_places(context, key)):
        yield Fault(key, NOT_AT_THE_TOP, likely[0], _to_type(context, key, {likely[0]: value}))
    else:
        yield Fault(key, NOT_AT_THE_TOP, _find_owners(context, key) or f"one of {shortened(names)}", f"leave {key} out")


def _setting(context: ValidationContext, path: str, kind: str, value: object) -> Iterator[Fault]:
    known = to_type(expression(kind), None)
    is_sure = value is None or (known.accepts(value) and path not in MEANT_OTHERWISE)
    if not is_sure and (meaning := next((each for each in find_meanings(path, value) if each.final), None)):
        yield Fault(path, short_text(value), meaning.why, meaning.fix or f"leave {path} out")
    elif not known.accepts(value) or (isinstance(value, dict) and "_target_" in value):
        yield misfit_type(path, value, known)
    elif (misfit := misfit_number(path, value, SETTINGS.get(path))) or (
        path == "tracker.report_to" and (misfit := misfit_choice(path, value, upstream.TRACKERS))
    ):
        yield misfit
    elif path == "name" and isinstance(value, str) and not is_folder_name(value):
        yield Fault(path, short_text(value), "a plain folder name, up to 100 letters", "name=<word>")
    elif path == "output_root" and value == "":
        yield Fault(path, "nothing", "a folder", f"{path}=outputs")
    elif path == "output_root" and isinstance(value, str):
        parts = [part.encode(errors="surrogateescape") for part in value.split("/")]
        size = sum(map(len, parts)) + len(parts) - 1
        if size >= MAX_PATH_BYTES or max(map(len, parts)) > 255 or to_visible(value) != value:
            yield fault("validate.long_path", path=short_text(value), size=size, most=MAX_PATH_BYTES)
    elif path == "allow" and isinstance(value, list) and (strange := sorted(set(value) - set(context.allow))):
        text = to_text(strange)
        yield Fault(path, f"{text} in a file", "allow on the command line only", f"allow={text}")


def is_folder_name(name: str) -> bool:
    """True for a name that is one part of a path on every system, and no hidden one."""
    size = len(name.encode(errors="surrogateescape"))
    is_shown = to_visible(name) == name and not {"/", "\\"} & {*name}
    return 0 < len(name) <= 100 and size <= 255 and name[0] not in ".-" and is_shown


def _group(context: ValidationContext, group: str, node: object) -> Iterator[Fault]:
    parts = {} if node in (None, {}) else {group: node}
    if group in NAMED_GROUPS and isinstance(node, dict):
        parts = {path: part for path, part in context.entries(group).items() if part is not None}
    for path, part in parts.items():
        if to_visible(path) != path:
            yield Fault(path, f"the name {path!r}", "a name that can be read", f"leave {path} out")
        if not isinstance(part, dict) and path == group:
            yield _nothing_chosen(context, group, short_text(part))
        elif not isinstance(part, dict):
            yield Fault(path, short_text(part), "keys with a _target_", f"{path}._target_=<module.name>")
        elif "_target_" not in part:
            found = f"no _target_ beside {shortened(list(map(str, part)), 40)}"
            answers = _answers_in(context, path, part, found)
            yield from filter(None, answers)
            if not all(answers):
                yield Fault(path, found, "what to build from these keys", f"{path}._target_=<module.name>")


def _nothing_chosen(context: ValidationContext, group: str, found: str) -> Fault:
    options = context.menu.get(group, [])
    near = [*nearest(found, options), *context.options(group), "<option>"][0]
    expected = f"one of {shortened(options)}" if options else "keys with a _target_"
    return Fault(group, found, expected, f"{group}={near}")


def find_infinite(context: ValidationContext) -> Iterator[Fault]:
    """A fault for each number that is not finite."""
    for path, value in scalars(context.cfg):
        if isinstance(value, float) and not math.isfinite(value):
            yield Fault(context.origin(path.removesuffix(".0"), value), to_text(value), "a finite number", "=<number>")


# --- Nodes ------------------------------------------------------------------------------------------
# What the train command gives to a part whose signature names it, so that no config needs to.
SERVED = upstream.SERVED | {"trainer": [*upstream.SERVED["trainer"], *upstream.FROM_GROUP]}
NEEDED_KEYS = {"trainer": ("form", "head", "args"), "model": ("tokenizer",)}
TOOLS = tuple(f"trainer.{name}" for name in upstream.FUNCTIONS if name != upstream.ENVIRONMENT_FACTORY)
GIVEN_LATER = {"completions", "messages", "row"}  # to functions that are called with rows and what was made of them
NODE_KEYS = ("trainer.args", "trainer.teacher_model", "model.tokenizer")  # that hold nodes, so that misspelt keys show
# Arguments of a trainer that are models and functions, for which no text, number or mapping can stand.
OBJECTS = {f"trainer.{name}" for name in upstream.SERVED["trainer"] if name not in upstream.FROM_GROUP}
OBJECTS -= {*NODE_KEYS}
# Fields that the runner sets whatever the config says; to set them would be in vain.
SET_BY_RUNNER = (upstream.OUTPUT_DIR, upstream.SAVE_ONLY_MODEL, upstream.DISABLE_TQDM, "resume_from_checkpoint", "seed")


def find_node_faults(context: ValidationContext, path: str, node: Node) -> Iterator[Fault]:
    """A fault for each key that is unknown, in vain, missing or does not fit the target, which is a good one."""
    if (signature := context.signature(node)) is None:
        return
    known = keys_of(path, signature) | SPECIAL
    for key, value in node.items():
        own = f"{path}.{key}"
        if key not in known:
            yield from _unknown(context, path, node, str(key), signature)
        elif own in NODE_KEYS and value is not None and not (isinstance(value, dict) and "_target_" in value):
            fix = f"leave {own} out" if own == "trainer.args" else as_typed({f"{own}.path": value})
            yield Fault(own, short_text(value), "keys", fix)
        elif own in OBJECTS and not all(
            part is None or (isinstance(part, dict) and "_target_" in part)
            for part in (value if isinstance(value, list) else [value])
        ):
            named_keys = value if isinstance(value, dict) else {"path": value}
            made = {"_target_": "runner.model.load.load_model"} | named_keys
            is_model = key.endswith("_model")
            fix = as_typed({f"{own}.{name}": entry for name, entry in made.items()}) if is_model else ""
            text = f"{short_text(value)}, and {signature.name} takes what is built from a _target_"
            yield Fault(own, text, "keys with a _target_", fix or f"leave {own} out")
        elif own == "dataset.map" and isinstance(value, str):
            yield fault("validate.map_as_text", text=short_text(value), target=value, package=value.partition(".")[0])
        elif own == "dataset.limit" and is_plain_number(value):
            text, expected = short_text(value), "a limit of its own for training and held-out rows"
            yield Fault(own, text, expected, f"{own}.train={text}, or {own}.eval={text}")
        elif own == "dataset.split" and isinstance(value, str):
            expected = "a slice of its own for training and held-out rows"
            yield Fault(own, short_text(value), expected, to_override(f"{own}.train", value))
        else:
            found = _find_misfits_of(context, context.origin(own, value), own, value, signature)
            yield from found or _in_vain(context, own, value, known[key].default)
    # A fault for each argument that nobody gives. What is called later may wait for its rows.
    group = path.partition(".")[0]
    inside = "model" if group in ("trainer", "model") else ""
    inside = group if group == "callback" and path.count(".") < 2 else inside
    served = SERVED.get(path if path in SERVED else inside, [])
    later = is_called_later(path, signature) or bool(GIVEN_LATER & set(signature.parameters))
    # What a loss is given, the trainer decides, and what a tool, a model.
    later = later or ((path == "loss" or path.startswith(TOOLS)) and not signature.lineage)
    for name in () if later or node.get("_partial_") is True else signature.required:
        if name not in node and name not in served:
            kind = str(signature.parameters[name].type)
            if group in ("reward", "metric"):
                kind += ", or an argument called completions, by which it is asked to judge"
            yield Fault(f"{path}.{name}", f"missing, and {signature.name} needs it", kind, f"{path}.{name}=<value>")
    for owner in (signature.name, *signature.lineage):
        for name in upstream.NEEDED_FIELDS.get(owner, ()):
            if node.get(name) is None:
                kind = str(signature.parameters[name].type).removesuffix(" or null")
                yield Fault(f"{path}.{name}", f"missing, and {signature.name} needs it", kind, f"{path}.{name}=<value>")
        if owner in upstream.NEEDED_FIELDS:
            break
    for name in NEEDED_KEYS.get(path, ()):
        if node.get(name) is None:
            kind = str(keys_of(path, signature)[name].type) if name in OWN[path] else "keys"
            yield Fault(f"{path}.{name}", "missing, and the runner needs it", kind, f"{path}.{name}=<value>")
    # The args must be the config of this trainer, not of another one.
    config, parameter = context.signature(node.get("args")), signature.parameters.get("args")
    wanted = sorted(name for name in parameter.names if name.endswith("Config")) if parameter else []
    if path == "trainer" and config and wanted and not set(wanted) & set(config.lineage):
        fix = f"trainer.args._target_={signature.target.rpartition('.')[0]}.{wanted[0]}"
        yield Fault("trainer.args._target_", config.name, f"{' or '.join(wanted)}, which {signature.name} takes", fix)


def _in_vain(context: ValidationContext, path: str, value: object, default: object) -> Iterator[Fault]:
    node, _, key = path.rpartition(".")
    if node == "trainer.args" and key in SET_BY_RUNNER and value not in (None, context.cfg.get(key, default)):
        yield from filter(None, [_answer(context, path, value, short_text(value), is_placed=True)])
    group = upstream.FROM_GROUP.get(key) if node == "trainer" and value is not None else None
    if group is not None and group in context.groups:
        options = context.options(group)
        fix = f"{group}={options[0]}" if options else f"{group}._target_=<module.name>"
        yield Fault(path, "a part that the runner serves", f"the group {group}", fix)


def _choices(
    context: ValidationContext, path: str, value: object, parameter: Parameter, signature: Signature
) -> tuple[str, ...]:
    if parameter.name == "report_to":
        return upstream.TRACKERS
    trainer, texts = context.trainer, value if isinstance(value, list) else [value]
    if not trainer or not any(isinstance(text, str) for text in texts) or not path.startswith(ARGS):
        return ()
    found = choices_compared(trainer.target, parameter.name)
    if not found or parameter.type.choices or (isinstance(parameter.default, str) and parameter.default not in found):
        return ()
    return tuple(dict.fromkeys([*found, *choices_compared(signature.target, parameter.name, 1)]))


# --- Stray keys -------------------------------------------------------------------------------------
MIN_LIKENESS = 0.8  # from here on, a key is taken for a misspelling of its neighbour


def _unknown(context: ValidationContext, path: str, node: Node, key: str, signature: Signature) -> Iterator[Fault]:
    """The fault of a key that its target does not take; an open one takes all but what looks like an argument."""
    own, value = f"{path}.{key}", node.get(key)
    if path in NAMED_GROUPS and isinstance(value, dict) and "_target_" in value:
        yield fault("validate.one_or_several", group=path, key=key, target=node["_target_"])
        return
    is_open = signature.is_open and not is_called_later(path, signature)
    keys = keys_of(path, signature)
    free = [name for name in keys if path != "trainer" or name not in upstream.FROM_GROUP]
    near = nearest(key, free, 0.85 if is_open else 0.6)
    if not near and len(begun := [name for name in free if len(key) > 2 and name.startswith(key)]) == 1:
        near = begun
    found = f"{signature.name} has no such {'field' if 'Config' in signature.name else 'argument'}"
    is_free, is_alike = is_open and not near, bool(near) and likeness(key, near[0]) >= MIN_LIKENESS
    inside = f"{path}." if is_free else "" if path.startswith("trainer") else f"{path.partition('.')[0]}."
    others = read_options("trainer") if path == "trainer" and key not in upstream.FROM_GROUP else {}
    signatures = {name: context.signature(each["trainer"]) for name, each in others.items()}
    able = sorted((name for name, other in signatures.items() if other and key in other.parameters), key=len)
    if able:
        yield Fault(own, found, f"a trainer that has: {shortened(able)}", f"trainer={able[0]}")
    elif answer := _answer(context, own, value, found, inside, is_placed=is_free or is_alike):
        yield answer
    elif is_free:
        return
    elif not is_alike and path == "trainer.args" and (owners := _find_owners(context, key)):
        yield Fault(own, found, owners, f"leave {key} out")
    elif near:
        meant = key if key in keys[near[0]].type.choices else value
        yield Fault(own, found, near[0], _to_type(context, own, {f"{path}.{near[0]}": meant}))
    elif places := _near_places(context, key):
        yield Fault(own, found, places[0], _to_type(context, own, {places[0]: value}))
    else:
        yield Fault(own, found, f"one of {shortened(free)}" if free else "", f"leave {key} out")


def _find_owners(context: ValidationContext, key: str) -> str:
    owners, trainer = context.owners(key), context.trainer
    who = trainer.name.removesuffix("Trainer") if trainer else "this trainer"
    return f"`{key}` exists for {shortened(owners, 50)}, not for {who}" if owners else ""


def _answers_in(context: ValidationContext, path: str, node: Node, found: str = NOT_AT_THE_TOP) -> list[Fault | None]:
    """The fault of each key below one that nothing takes, None for one that nobody knows."""
    return [_answer(context, f"{path}.{name}", entry, found) for name, entry in flatten(node).items()]


def _answer(
    context: ValidationContext, path: str, value: object, found: str, inside: str = "", *, is_placed: bool = False
) -> Fault | None:
    """The fault of a key that is known from elsewhere, or is right at another place; None for any other.

    It says the words that stand for it, of which this configuration takes each, of a group ``inside`` only its own; or
    else why it is not needed. One that ``is_placed`` is not sent to another place.
    """
    key = last_key(path)
    places = [] if is_placed else context.places.get(key, [])
    for meaning in (each for name in dict.fromkeys((path, key)) for each in find_meanings(name, value, context.option)):
        words = context.completed(meaning.words)
        last = list(words)[-1] if words else ""
        if last in places[:1] and words[last] == value:
            break  # under its own name, which is simpler to say
        are_taken = all(context.takes(word, words) and f"{word}.".startswith(inside) for word in words)
        if words and words.keys() != {path} and are_taken:
            ours = last if words[last] == value else as_typed({last: words[last]})
            expected = "the option that takes it" if last == path else f"`{key}` is {ours} here"
            expected += f": {meaning.why}" if meaning.why else ""
            return Fault(path, found, expected, _to_type(context, path, words))
        if not meaning.words and (meaning.final or not (places or inside)):
            owners = "" if meaning.final or meaning.fix else _find_owners(context, key)
            expected = owners or meaning.why or ("what comes nearest" if meaning.fix else "no need of it here")
            return Fault(path, found, expected, meaning.fix or f"leave {path} out")
    names = ["the top level" if place == key else place for place in places[:3]]
    expected = f"`{key}` belongs at {' or '.join(names)}"
    return Fault(path, found, expected, _to_type(context, path, {places[0]: value})) if names else None


def _to_type(context: ValidationContext, where: str, words: Node) -> str:
    """The words to type in place of the key ``where``; for a value that would be refused, what its refusal says."""
    texts: list[str] = []
    refused = reason = ""
    for path, value in flatten(words).items():
        text = to_override(path, value)
        if faults := _find_faults_at(context, path, value, words):
            text = faults[0].fix.removesuffix("  (the default)")
            refused, reason = path, faults[0].expected
        is_carried = bool(reason) and text.endswith(f"={to_text(value)}")  # to a third key
        if not text.startswith("leave ") and not is_carried:
            texts.append(text)
    if not texts:
        return f"leave {where} out" + (f"  ({refused} is {reason})" if reason else "")
    return " ".join(texts) + (f"  ({reason})" if reason else "")


def _find_faults_at(context: ValidationContext, path: str, value: object, words: Node) -> list[Fault]:
    """The faults that a value would have at another key, beside these words, of which some choose an option."""
    owner, _, key = path.rpartition(".")
    if owner in PLAIN_GROUPS:
        return list(_setting(context, path, PLAIN_GROUPS[owner][key], value))
    if path in TOP:
        if faults := list(_setting(context, path, TOP[path], value)):
            return faults
        fields = [name for name, top in upstream.FROM_TOP.items() if top == path and name in context.args]
        owner, key = "trainer.args", [*fields, ""][0]
    node = context.mapping(owner)
    if isinstance(option := words.get(owner), str):
        content = read_options(owner).get(option, {})
        node = content.get(owner, content)
    signature = context.signature(node)
    if signature is None or key not in keys_of(owner, signature):
        return []
    return _find_misfits_of(context, path, f"{owner}.{key}", value, signature)


def _find_misfits_of(
    context: ValidationContext, where: str, path: str, value: object, signature: Signature
) -> list[Fault]:
    """The faults of a value at a key that its target takes; ``where`` is the key to name."""
    owner, _, key = path.rpartition(".")
    parameter = keys_of(owner, signature).get(key) or SPECIAL[key]
    choices = _choices(context, path, value, parameter, signature)
    numbers = range_of(where, key, signature, context.trainer)
    return find_misfits(where, value, parameter, numbers, choices)


def _likeliest(key: str, names: list[str], places: list[str]) -> list[str]:
    """The names that a stray key may mean, or the places where they look more like it."""
    if not names or not places:
        return names or places
    return places if likeness(key, last_key(places[0])) > likeness(key, names[0]) else names


def _near_places(context: ValidationContext, key: str) -> list[str]:
    near = nearest(key, context.places, MIN_LIKENESS)
    return context.places[near[0]] if near else []
