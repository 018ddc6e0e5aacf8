"""Run folders -> what people look at. Reads files only; torch is never imported here.

What a report says: ``facts`` and ``verdict`` are about one run, ``compare`` about two, ``sweep``
about the runs of a name (with ``selection``, ``axis``, ``score`` and ``ranking``), ``tokens`` about
a preview.

How it looks: ``table`` is for the terminal and for other programs, ``run_page`` and ``sweep_page``
are HTML in the frame of ``page``, ``card`` lies beside an exported model. ``plot_run`` and
``plot_sweep`` choose the curves, which ``drawing`` makes into pictures and ``charts`` into data for
the script of a page. ``render`` fills in ``template/``.
"""
