"""What ``import`` says of the keys of a file, and which options it chooses, for tests."""

from runner.importers.draft import Draft


def is_of(noted: str, key: str) -> bool:
    """True for a key, and for a part of its value."""
    return noted == key or noted.startswith((f"{key}[", f"{key}: ", f"{key} "))


def notes_of(draft: Draft, key: str) -> str:
    """All that is said of a key and of the parts of its value."""
    lines = []
    for note in draft.notes:
        if is_of(note.key, key):
            lines.append(f"{note.kind}: {note.key} {note.target} {note.why}")
    return "\n".join(lines)


def options_of(content: dict) -> dict:
    """The options that an experiment chooses, by their groups."""
    options = {}
    for choice in content["defaults"][:-1]:
        for group, option in choice.items():
            options[group.removeprefix("override /")] = option
    return options
