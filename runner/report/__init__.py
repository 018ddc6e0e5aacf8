"""Run folders -> what people look at. Reads files only; torch is never imported here.

What is said: of one run in ``facts``, of two in ``compare``, of the runs of a name in ``sweep`` (with ``axis`` and
``objective``), of the tokens of a preview in ``tokens``. How it looks: ``table`` in the terminal and as CSV, ``plot``
and ``number``, ``page`` as HTML, ``card`` beside an exported model, by ``render`` and ``template/``.
"""
