"""Other people's configurations -> experiments of ours, and what becomes of each of their keys.

    read       a YAML, JSON or shell file -> its keys, and whose dialect it is
    draft      the experiment as it grows, with a note for each key
    rule       the rules that several dialects share
    axolotl, llama_factory, swift, trl    one dialect each: their keys, our keys, and what differs

Nothing is trained or loaded here, and no file is written.
"""
