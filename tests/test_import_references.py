"""References of values to other keys in configurations of other tools."""

from runner.importers.references import MAX_LETTERS, fill_references


def test_references_lead_to_values_near_and_far():
    keys = {
        "folder": "out",
        "model": {"path": "${folder}/m", "copy": "${.path}", "above": "${..folder}"},
        "rows": ["${folder}/a", "${nowhere}"],
        "steps": "${oc.select:model.steps,3}",
        "self": "${self}",
    }
    assert fill_references(keys) == {
        "folder": "out",
        "model": {"path": "out/m", "copy": "out/m", "above": "out"},
        "rows": ["out/a", "${nowhere}"],
        "steps": 3,
        "self": "${self}",
    }


def test_references_do_not_grow_without_end():
    keys = {f"key_{level}": f"${{key_{level + 1}}}" * 100 for level in range(20)}
    keys["key_20"] = "x" * MAX_LETTERS
    filled = fill_references(keys)
    assert max(map(len, map(str, filled.values()))) < 1_000_000
