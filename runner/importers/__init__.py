"""Other tools' configurations -> experiments of ours, and what becomes of each of their keys.

    read         a YAML, JSON or shell file -> its keys, and the tool that it is of
    table        what each key of a tool becomes, as data in *.yaml; convert has the conversions that a table may name
    draft        the experiment as it grows, with a note for each key
    follow       a key, followed by its row of the table
    entry        datasets, and tools what else no table can say of a tool
    translate    all of it in order

Nothing is trained or loaded here, and no file is written.
"""
