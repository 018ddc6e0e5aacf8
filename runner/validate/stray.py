"""Keys that nothing takes: the fault of each says where it belongs, or what it is called here.

A key may be misspelt, right at another place, a word of another tool (``config.dialect``), or a
field of another trainer. A suggested word is checked first, as if it had been typed.
"""

from collections.abc import Iterator

from runner.config.dialect import Meaning, find_meanings
from runner.config.menu import read_options
from runner.errors import Fault
from runner.io.visible import to_visible
from runner.schema import upstream
from runner.schema.choices import choices_compared
from runner.schema.did_you_mean import likeness, nearest
from runner.schema.literal import to_text
from runner.schema.read import Parameter, Signature
from runner.schema.text import Node, as_typed, flatten, last_key, short_text, to_override
from runner.schema.type import shortened
from runner.tracker.library import TRACKERS
from runner.validate.context import (
    ARGS,
    PLAIN_GROUPS,
    TOP,
    ValidationContext,
    is_called_later,
    keys_of,
)
from runner.validate.values import (
    DEFAULT_REMARK,
    find_misfits,
    misfit_choice,
    misfit_number,
    misfit_type,
    range_of,
)

NAMED_GROUPS = ("reward", "weight", "metric", "callback")  # of parts that each have a name
NOT_AT_THE_TOP = "no such key at the top level"
# Keys whose value may be what a dialect's table refuses.
MEANT_OTHERWISE = ("resume",)
MIN_LIKENESS = 0.8  # from here on, a key is taken for a misspelling of its neighbour
MIN_LIKENESS_OF_OPEN = 0.85  # of a target that takes any keyword argument
MIN_LIKENESS_OF_CLOSED = 0.6
MAX_PATH_BYTES = 3500  # systems allow 4096, and a run's folders and files come on top
MAX_NAME_BYTES = 255
MAX_NAME_LETTERS = 100


# --- The value of one key -------------------------------------------------------------------------
def find_setting_faults(
    context: ValidationContext, path: str, key: Parameter, value: object
) -> Iterator[Fault]:
    """The fault of the value of a key that the runner itself reads."""
    is_accepted = key.type.accepts(value)
    misfit = None
    if value is not None and (not is_accepted or path in MEANT_OTHERWISE):
        misfit = _meant_otherwise(path, value)
    if misfit is None and (not is_accepted or (isinstance(value, dict) and "_target_" in value)):
        misfit = misfit_type(path, value, key.type)
    if misfit is None:
        misfit = misfit_number(path, value, key.range)
    if misfit is None and path == "tracker.report_to":
        misfit = misfit_choice(path, value, TRACKERS)
    if misfit:
        yield misfit
    else:
        yield from _find_unusable(context, path, value)


def _meant_otherwise(path: str, value: object) -> Fault | None:
    """The fault of a value that means in another tool what cannot be had at this key; else None."""
    for meaning in find_meanings(path, value):
        if meaning.final:
            return Fault(
                where=path,
                found=short_text(value),
                expected=meaning.why,
                fix=meaning.fix or f"leave {path} out",
            )
    return None


def _find_unusable(context: ValidationContext, path: str, value: object) -> Iterator[Fault]:
    """The fault of a value that fits the type of its key, and that no run can have."""
    if path == "name" and isinstance(value, str) and not is_folder_name(value):
        expected = f"a plain folder name, up to {MAX_NAME_LETTERS} characters"
        yield Fault(
            where=path,
            found=short_text(value),
            expected=expected,
            fix="name=<word>",
        )
    elif path == "output_root" and isinstance(value, str):
        yield from _find_root_faults(value)
    elif path == "allow" and isinstance(value, list):
        strange = sorted(set(value) - set(context.allow))
        if strange:
            text = to_text(strange)
            found = f"{text} in a file"
            yield Fault(
                where=path,
                found=found,
                expected="allow on the command line only",
                fix=f"allow={text}",
            )


def _find_root_faults(root: str) -> Iterator[Fault]:
    """The fault of a folder for runs that no system could make, or nobody could read."""
    if not root:
        yield Fault(
            where="output_root",
            found="nothing",
            expected="a folder",
            fix="output_root=outputs",
        )
        return
    names = [name.encode(errors="surrogateescape") for name in root.split("/")]
    size = len(root.encode(errors="surrogateescape"))
    longest = max(map(len, names))
    if size >= MAX_PATH_BYTES or longest > MAX_NAME_BYTES or to_visible(root) != root:
        yield Fault(
            where="output_root",
            found=f"{short_text(root)}: a path of {size} bytes",
            expected=f"at most {MAX_PATH_BYTES}, {MAX_NAME_BYTES} in each folder's name, all of "
            "them visible",
            fix="=outputs",
        )


def is_folder_name(name: str) -> bool:
    """True for a name that is one part of a path on every system, and not a hidden one."""
    size = len(name.encode(errors="surrogateescape"))
    if not 0 < len(name) <= MAX_NAME_LETTERS or size > MAX_NAME_BYTES or name[0] in ".-":
        return False
    return to_visible(name) == name and "/" not in name and "\\" not in name


def find_argument_faults(
    context: ValidationContext,
    where: str,
    path: str,
    value: object,
    parameter: Parameter,
    signature: Signature,
) -> list[Fault]:
    """The faults of a value at a key that is a parameter of a target.

    ``where`` is the key to name.
    """
    choices = _list_choices(context, path, value, parameter, signature)
    numbers = parameter.range or range_of(where, last_key(path), signature, context.trainer)
    return find_misfits(where, value, parameter, numbers, choices)


def _list_choices(
    context: ValidationContext, path: str, value: object, parameter: Parameter, signature: Signature
) -> tuple[str, ...]:
    """The texts that the code of a trainer compares a field of its config with; none for others."""
    if parameter.name == "report_to":
        return TRACKERS
    values = value if isinstance(value, list) else [value]
    has_text = any(isinstance(text, str) for text in values)
    if context.trainer is None or not has_text or not path.startswith(ARGS):
        return ()
    compared = choices_compared(context.trainer.target, parameter.name)
    if not compared or parameter.type.choices:
        return ()
    if isinstance(parameter.default, str) and parameter.default not in compared:
        return ()
    of_config = choices_compared(signature.target, parameter.name, 1)
    return tuple(dict.fromkeys([*compared, *of_config]))


# --- A key that nothing takes ---------------------------------------------------------------------
def find_stray_faults(context: ValidationContext, key: str, value: object) -> Iterator[Fault]:
    """The faults of a key of the top level that is none."""
    names = list(dict.fromkeys([*TOP, *context.groups, *context.menu]))
    similar = nearest(key, names)
    is_group = isinstance(value, dict)
    is_misspelt_group = is_group and bool(similar) and likeness(key, similar[0]) >= MIN_LIKENESS
    if not is_misspelt_group:
        answers = explain_below(context, key, value) if isinstance(value, dict) else []
        if answers and None not in answers:
            yield from filter(None, answers)
            return
        answer = explain(context, key, value, NOT_AT_THE_TOP)
        if answer:
            yield answer
            return
    likeliest = _likeliest(key, similar, _find_near_places(context, key))
    if likeliest:
        fix = words_to_type(context, key, {likeliest[0]: value})
        yield Fault(
            where=key,
            found=NOT_AT_THE_TOP,
            expected=likeliest[0],
            fix=fix,
        )
    else:
        expected = describe_owners(context, key) or f"one of {shortened(names)}"
        yield Fault(
            where=key,
            found=NOT_AT_THE_TOP,
            expected=expected,
            fix=f"leave {key} out",
        )


def find_unknown_faults(
    context: ValidationContext, path: str, node: Node, key: str, signature: Signature
) -> Iterator[Fault]:
    """The fault of a key that the target of a node does not take.

    Of a target that takes any keyword argument, only a key that looks like an argument is a fault.
    """
    where = f"{path}.{key}"
    value = node.get(key)
    if path in NAMED_GROUPS and isinstance(value, dict) and "_target_" in value:
        yield _one_or_several(path, key, node["_target_"])
        return
    is_open = signature.is_open and not is_called_later(path, signature)
    keys = keys_of(path, signature)
    names = list(keys)
    if path == "trainer":  # its other arguments come from groups
        names = [name for name in keys if name not in upstream.FROM_GROUP]
    similar = _find_similar(key, names, is_open)
    is_free = is_open and not similar
    is_alike = bool(similar) and likeness(key, similar[0]) >= MIN_LIKENESS
    kind = "field" if "Config" in signature.name else "argument"
    found = f"{signature.name} has no such {kind}"
    trainers = _find_trainers(context, key) if path == "trainer" else []
    if trainers:
        expected = f"a trainer that has: {shortened(trainers)}"
        yield Fault(
            where=where,
            found=found,
            expected=expected,
            fix=f"trainer={trainers[0]}",
        )
        return
    inside = _required_start(path, is_free)
    answer = explain(context, where, value, found, inside, is_placed=is_free or is_alike)
    if answer:
        yield answer
        return
    if is_free:
        return
    owners = ""
    if path == "trainer.args" and not is_alike:
        owners = describe_owners(context, key)
    places = [] if owners or similar else _find_near_places(context, key)
    if owners:
        yield Fault(
            where=where,
            found=found,
            expected=owners,
            fix=f"leave {key} out",
        )
    elif similar:
        # A key may be the value that was meant for its neighbour, as in loss: sigmoid.
        meant = key if key in keys[similar[0]].type.choices else value
        fix = words_to_type(context, where, {f"{path}.{similar[0]}": meant})
        yield Fault(
            where=where,
            found=found,
            expected=similar[0],
            fix=fix,
        )
    elif places:
        yield Fault(
            where=where,
            found=found,
            expected=places[0],
            fix=words_to_type(context, where, {places[0]: value}),
        )
    else:
        expected = f"one of {shortened(names)}" if names else ""
        yield Fault(
            where=where,
            found=found,
            expected=expected,
            fix=f"leave {key} out",
        )


def _required_start(path: str, is_free: bool) -> str:
    """The start of all keys that one of another tool may stand for in a node; empty for any key.

    A target that is ``is_free`` takes the key anyway.
    """
    if is_free:
        return f"{path}."
    group = path.partition(".")[0]
    return "" if group == "trainer" else f"{group}."


def _one_or_several(group: str, key: str, target: object) -> Fault:
    return Fault(
        where=f"{group}.{key}",
        found=f"a {group} in addition to {group}._target_",
        expected=f"one {group}, or several with names",
        fix=f"{group}.mine._target_={target} in place of {group}._target_",
    )


def _find_similar(key: str, names: list[str], is_open: bool) -> list[str]:
    """The names that a key looks like, or the only one that begins with it."""
    similar = nearest(key, names, MIN_LIKENESS_OF_OPEN if is_open else MIN_LIKENESS_OF_CLOSED)
    if similar or len(key) <= 2:
        return similar
    begun = [name for name in names if name.startswith(key)]
    return begun if len(begun) == 1 else []


def _find_trainers(context: ValidationContext, key: str) -> list[str]:
    """The trainers of the menu whose constructor takes a key, the shortest name first."""
    trainers = []
    if key not in upstream.FROM_GROUP:
        for name, option in read_options("trainer").items():
            signature = context.signature(option["trainer"])
            if signature and key in signature.parameters:
                trainers.append(name)
    return sorted(trainers, key=len)


def describe_owners(context: ValidationContext, key: str) -> str:
    """A remark on the trainers whose config has a field; empty where none has it."""
    owners = context.owners(key)
    if not owners:
        return ""
    trainer = context.trainer
    current = trainer.name.removesuffix("Trainer") if trainer else "this trainer"
    return f"`{key}` exists for {shortened(owners, 50)}, not for {current}"


def explain_below(
    context: ValidationContext, path: str, node: Node, found: str = NOT_AT_THE_TOP
) -> list[Fault | None]:
    """The fault of each key below one that nothing takes; None for a key that nobody knows."""
    answers = []
    for name, value in flatten(node).items():
        answers.append(explain(context, f"{path}.{name}", value, found))
    return answers


def explain(
    context: ValidationContext,
    path: str,
    value: object,
    found: str,
    inside: str = "",
    *,
    is_placed: bool = False,
) -> Fault | None:
    """The fault of a key that is known from elsewhere, or is right at another place; else None.

    It tells the words that stand for the key, if this configuration takes each of them and each is
    ``inside`` a group; or else why the key is not needed. A key that ``is_placed`` is not sent to
    another place.
    """
    key = last_key(path)
    places = [] if is_placed else context.places.get(key, [])
    for meaning in _list_meanings(context, path, key, value):
        words = context.completed(meaning.words)
        last = list(words)[-1] if words else ""
        if last in places[:1] and words[last] == value:
            break  # it is the key under its own name, which is simpler to say
        if words and words.keys() != {path} and _are_taken(context, words, inside):
            expected = "the option that takes it"
            if last != path:
                equivalent = last if words[last] == value else as_typed({last: words[last]})
                expected = f"`{key}` is {equivalent} here"
            if meaning.why:
                expected += f": {meaning.why}"
            return Fault(
                where=path,
                found=found,
                expected=expected,
                fix=words_to_type(context, path, words),
            )
        if not meaning.words and (meaning.final or not (places or inside)):
            return _needless(context, path, found, meaning)
    if not places:
        return None
    names = []
    for place in places[:3]:
        names.append("the top level" if place == key else place)
    expected = f"`{key}` belongs at {' or '.join(names)}"
    return Fault(
        where=path,
        found=found,
        expected=expected,
        fix=words_to_type(context, path, {places[0]: value}),
    )


def _list_meanings(
    context: ValidationContext, path: str, key: str, value: object
) -> Iterator[Meaning]:
    """The meanings of a whole dotted key in other tools, and then those of its last word."""
    for name in dict.fromkeys((path, key)):
        yield from find_meanings(name, value, context.option)


def _are_taken(context: ValidationContext, words: Node, inside: str) -> bool:
    for word in words:
        if not context.takes(word, words) or not f"{word}.".startswith(inside):
            return False
    return True


def _needless(context: ValidationContext, path: str, found: str, meaning: Meaning) -> Fault:
    """The fault of a key of another tool for which there is no word here."""
    expected = meaning.why
    if not meaning.final and not meaning.fix:
        expected = describe_owners(context, last_key(path)) or expected
    if not expected:
        expected = "what comes nearest" if meaning.fix else "no use for it here"
    return Fault(
        where=path,
        found=found,
        expected=expected,
        fix=meaning.fix or f"leave {path} out",
    )


def _likeliest(key: str, names: list[str], places: list[str]) -> list[str]:
    """The names that a stray key may mean, or the places whose last word looks more like it."""
    if not names or not places:
        return names or places
    is_place_likelier = likeness(key, last_key(places[0])) > likeness(key, names[0])
    return places if is_place_likelier else names


def _find_near_places(context: ValidationContext, key: str) -> list[str]:
    """The places of the key that looks most like this one."""
    similar = nearest(key, context.places, MIN_LIKENESS)
    return context.places[similar[0]] if similar else []


# --- Words to type --------------------------------------------------------------------------------
def words_to_type(context: ValidationContext, where: str, words: Node) -> str:
    """The words to type in place of the key ``where``.

    A value that its new key would refuse is replaced by the fix of that refusal, with the reason.
    """
    texts: list[str] = []
    refused = ""  # the key that would refuse its value, and why
    reason = ""
    for path, value in flatten(words).items():
        text = to_override(path, value)
        faults = _find_faults_at(context, path, value, words)
        if faults:
            text = faults[0].fix.removesuffix(DEFAULT_REMARK)
            refused = path
            reason = faults[0].expected
        # The refused value would only be carried to a third key.
        is_carried = bool(reason) and text.endswith(f"={to_text(value)}")
        if not text.startswith("leave ") and not is_carried:
            texts.append(text)
    if texts:
        fix = " ".join(texts)
        return f"{fix}  ({reason})" if reason else fix
    off = f"leave {where} out"
    return f"{off}  ({refused} is {reason})" if reason else off


def _find_faults_at(
    context: ValidationContext, path: str, value: object, words: Node
) -> list[Fault]:
    """The faults that a value would have at another key, with the options among the words."""
    owner, _, key = path.rpartition(".")
    if owner in PLAIN_GROUPS:
        return list(find_setting_faults(context, path, PLAIN_GROUPS[owner][key], value))
    if path in TOP:
        faults = list(find_setting_faults(context, path, TOP[path], value))
        if faults:
            return faults
        owner = "trainer.args"
        key = ""
        for name, top_key in upstream.FROM_TOP.items():
            if top_key == path and name in context.args:
                key = name
                break
    node = context.mapping(owner)
    option = words.get(owner)
    if isinstance(option, str):
        content = read_options(owner).get(option, {})
        node = content.get(owner, content)
    signature = context.signature(node)
    parameter = keys_of(owner, signature).get(key) if signature else None
    if signature is None or parameter is None:
        return []
    return find_argument_faults(context, path, f"{owner}.{key}", value, parameter, signature)
