"""Keys that nothing takes: the fault of each says where it belongs, or what it is called here.

A key may be misspelt, right at another place, a word of another tool (``config.dialect``), or a
field of another trainer. A suggested word is checked first, as if it had been typed.
"""

from collections.abc import Iterator

from runner.config.dialect import Meaning, find_meanings
from runner.config.menu import read_options
from runner.errors import Fault
from runner.schema import upstream
from runner.schema.did_you_mean import likeness, nearest
from runner.schema.literal import to_text
from runner.schema.read import Parameter, Signature
from runner.schema.text import Node, as_typed, flatten, last_key, to_override
from runner.schema.type import shortened
from runner.validate.context import (
    TOP,
    ValidationContext,
    is_called_later,
    keys_of,
    plain_keys,
)
from runner.validate.values import DEFAULT_REMARK
from runner.validate.values_at_keys import find_argument_faults, find_setting_faults

NAMED_GROUPS = ("reward", "weight", "metric", "callback")  # of parts that each have a name
NOT_AT_THE_TOP = "no such key at the top level"
MIN_LIKENESS = 0.8  # from here on, a key is taken for a misspelling of its neighbour
MIN_LIKENESS_OF_OPEN = 0.85  # of a target that takes any keyword argument
MIN_LIKENESS_OF_CLOSED = 0.6


def find_stray_faults(context: ValidationContext, key: str, value: object) -> Iterator[Fault]:
    """The faults of a key of the top level that is none."""
    names = list(dict.fromkeys([*TOP, *context.groups, *context.menu]))
    similar = nearest(key, names)
    is_alike = bool(similar) and likeness(key, similar[0]) >= MIN_LIKENESS
    is_misspelt_group = is_alike and isinstance(value, dict)
    if not is_misspelt_group:
        # A whole section of another tool is explained key by key, if all of its keys are known.
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
        yield Fault(
            where=key,
            found=NOT_AT_THE_TOP,
            expected=likeliest[0],
            fix=words_to_type(context, key, {likeliest[0]: value}),
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
    kind = "field" if "Config" in signature.name else "argument"
    no_such_key = f"{signature.name} has no such {kind}"
    trainers = _find_trainers(context, key) if path == "trainer" else []
    if trainers:
        yield Fault(
            where=where,
            found=no_such_key,
            expected=f"a trainer that has: {shortened(trainers)}",
            fix=f"trainer={trainers[0]}",
        )
        return
    keys = _keys_to_suggest(path, signature)
    names = list(keys)
    is_open = signature.is_open and not is_called_later(path, signature)
    similar = _find_similar(key, names, is_open)
    is_free = is_open and not similar
    is_alike = bool(similar) and likeness(key, similar[0]) >= MIN_LIKENESS
    inside = _required_start(path, is_free)
    answer = explain(context, where, value, no_such_key, inside, is_placed=is_free or is_alike)
    if answer:
        yield answer
        return
    if is_free:
        return
    owners = ""
    if path == "trainer.args" and not is_alike:
        owners = describe_owners(context, key)
    # The first of these that is known says most: other trainers, a similar key, another place.
    words: Node = {}
    expected = owners
    if not owners and similar:
        # A key may be the value that was meant for its neighbour, as in loss: sigmoid.
        meant = key if key in keys[similar[0]].type.choices else value
        expected = similar[0]
        words = {f"{path}.{similar[0]}": meant}
    elif not owners:
        places = _find_near_places(context, key)
        if places:
            expected = places[0]
            words = {places[0]: value}
        elif names:
            expected = f"one of {shortened(names)}"
    yield Fault(
        where=where,
        found=no_such_key,
        expected=expected,
        fix=words_to_type(context, where, words) if words else f"leave {key} out",
    )


def _keys_to_suggest(path: str, signature: Signature) -> dict[str, Parameter]:
    """The keys that may be typed in a node: not those of a trainer that come from groups."""
    keys = keys_of(path, signature)
    if path == "trainer":
        for name in upstream.FROM_GROUP:
            keys.pop(name, None)
    return keys


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
    context: ValidationContext, path: str, node: Node, message: str = NOT_AT_THE_TOP
) -> list[Fault | None]:
    """The fault of each key below one that nothing takes; None for a key that nobody knows."""
    answers = []
    for name, value in flatten(node).items():
        answers.append(explain(context, f"{path}.{name}", value, message))
    return answers


def explain(
    context: ValidationContext,
    path: str,
    value: object,
    message: str,
    inside: str = "",
    *,
    is_placed: bool = False,
) -> Fault | None:
    """The fault of a key that is known from elsewhere, or is right at another place; else None.

    It tells the words that stand for the key, if this configuration takes each of them and each is
    ``inside`` a group; or else why the key is not needed. A key that ``is_placed`` is not sent to
    another place. ``message`` is what the fault says was found.
    """
    key = last_key(path)
    places = [] if is_placed else context.places.get(key, [])
    for meaning in _list_meanings(context, path, key, value):
        if not meaning.words:
            # A place where the key is right says more than why it is not needed elsewhere.
            if meaning.final or not (places or inside):
                return _needless(context, path, message, meaning)
            continue
        words = context.completed(meaning.words)
        last = list(words)[-1]
        if last in places[:1] and words[last] == value:
            break  # it is the key under its own name, which is simpler to say
        if words.keys() != {path} and _are_taken(context, words, inside):
            return Fault(
                where=path,
                found=message,
                expected=_describe_words(path, value, words, meaning.why),
                fix=words_to_type(context, path, words),
            )
    if not places:
        return None
    names = []
    for place in places[:3]:
        names.append("the top level" if place == key else place)
    return Fault(
        where=path,
        found=message,
        expected=f"`{key}` belongs at {' or '.join(names)}",
        fix=words_to_type(context, path, {places[0]: value}),
    )


def _describe_words(path: str, value: object, words: Node, why: str) -> str:
    """A remark on the words that stand for a key and its value; the last is its new key."""
    last = list(words)[-1]
    if last == path:
        description = "the option that takes it"
    else:
        equivalent = last
        if words[last] != value:
            equivalent = as_typed({last: words[last]})
        description = f"`{last_key(path)}` is {equivalent} here"
    return f"{description}: {why}" if why else description


def _list_meanings(
    context: ValidationContext, path: str, key: str, value: object
) -> Iterator[Meaning]:
    """The meanings of a whole dotted key in other tools, and then those of its last word."""
    for meaning in find_meanings(path, value, context.option):
        if meaning.words != {path: value}:  # another tool may have the same key
            yield meaning
    if key != path:
        yield from find_meanings(key, value, context.option)


def _are_taken(context: ValidationContext, words: Node, inside: str) -> bool:
    for word in words:
        if not context.takes(word, words) or not f"{word}.".startswith(inside):
            return False
    return True


def _needless(context: ValidationContext, path: str, message: str, meaning: Meaning) -> Fault:
    """The fault of a key of another tool for which there is no word here."""
    expected = meaning.why
    if not meaning.final and not meaning.fix:
        expected = describe_owners(context, last_key(path)) or expected
    if not expected:
        expected = "what comes nearest" if meaning.fix else "no use for it here"
    return Fault(
        where=path,
        found=message,
        expected=expected,
        fix=meaning.fix or f"leave {path} out",
    )


def _likeliest(key: str, names: list[str], places: list[str]) -> list[str]:
    """The names that a stray key may mean, or the places whose last word looks more like it."""
    if not names or not places:
        return names or places
    likeness_of_place = likeness(key, last_key(places[0]))
    if likeness_of_place > likeness(key, names[0]):
        return places
    return names


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
    parameter = plain_keys(owner).get(key)
    if parameter:
        return list(find_setting_faults(path, parameter, value, context.allow))
    if path in TOP:
        faults = list(find_setting_faults(path, TOP[path], value, context.allow))
        if faults:
            return faults
        owner = "trainer.args"
        key = _field_from_top(context, path)
    node = context.mapping(owner)
    option = words.get(owner)
    if isinstance(option, str):
        content = read_options(owner).get(option, {})
        node = content.get(owner, content)
    signature = context.signature(node)
    parameter = keys_of(owner, signature).get(key) if signature else None
    if signature is None or parameter is None:
        return []
    argument = f"{owner}.{key}"
    return find_argument_faults(path, argument, value, parameter, signature, context.trainer)


def _field_from_top(context: ValidationContext, key: str) -> str:
    """The field of the trainer's config that takes its value from a top-level key, if any."""
    for name, top_key in upstream.FROM_TOP.items():
        if top_key == key and name in context.args:
            return name
    return ""
