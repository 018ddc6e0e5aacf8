"""Several runs of one command: what there is to do (``plan``), in which processes (``pool``), and how far it is.

There is no sweep engine and no database: a run knows by its folder whether it is finished, so doing the same command
again does what is left. What a run is, and how it trains, is not here.
"""
