"""The calls of tools and environments of two runs, side by side."""

from collections import Counter
from dataclasses import dataclass
from itertools import zip_longest

from runner.io.files import CALLS, JsonObject
from runner.report.number import short
from runner.run.history import iterate_calls
from runner.run.record import RunRecord
from runner.schema.literal import number, to_text

MAX_LETTERS = 200  # of a call that is shown


@dataclass(frozen=True)
class CallDifference:
    """The first call that is not the same in two runs, or does not have the same answer."""

    step: int
    place: str  # the call in its step, or its episode
    ours: str
    theirs: str


def first_different_call(ours: RunRecord, theirs: RunRecord) -> CallDifference | None:
    """The first place at which the calls of two runs differ; None where they are the same."""
    our_calls = iterate_calls(ours.folder / CALLS)
    their_calls = iterate_calls(theirs.folder / CALLS)
    for our_call, their_call in zip_longest(our_calls, their_calls):
        if our_call != their_call:
            call = our_call or their_call
            place = f"call {call.get('call')}"
            if call.get("episode"):
                place = f"episode {call['episode']}, {place}"
            return CallDifference(
                call["step"], place, _describe_call(our_call), _describe_call(their_call)
            )
    return None


def _describe_call(call: JsonObject | None) -> str:
    """A call with its answer as one short text."""
    if call is None:
        return "no call"
    answer = call.get("answer")
    if "error" in call:
        answer = {"error": call["error"]}
    arguments = to_text(call.get("arguments"))
    text = f"{call['name']}({arguments}) = {to_text(answer)}"
    single_line = text.replace("\n", "\\n")
    return short(single_line, MAX_LETTERS)


def count_calls(run: RunRecord) -> dict[str, str]:
    """The number of calls of each tool and method, with the share of those that failed."""
    counts: Counter[str] = Counter()
    failures: Counter[str] = Counter()
    for call in iterate_calls(run.folder / CALLS):
        counts[call["name"]] += 1
        failures[call["name"]] += "error" in call
    texts = {}
    for name, count in counts.items():
        share = number(100 * failures[name] / count, 2)
        texts[name] = f"{count}, {share} % failed"
    return texts
