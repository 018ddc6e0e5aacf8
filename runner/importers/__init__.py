"""Other tools' configurations -> experiments of ours, and what becomes of each of their keys.

    read         a YAML, JSON or shell file -> its keys, and the dialect that it is in
    table        what each key of a dialect becomes, as data in *.yaml, and the conversions that a table may name
    draft        the experiment as it grows: each key, followed by its row, with a note
    readers      all of it in order; datasets, and the little else that no table can say of a dialect

Nothing is trained or loaded here, and no file is written.
"""
