"""Resume: what a run has read, what may change of it, and what it changes of itself.

material        the files behind a configuration, and whether they are still the same
continuation    going on from the checkpoint of another run, and the visible list of what may differ
amendment       what a run has changed of itself, on paper
recovery        amending a run that turned sick or has no memory left, and beginning again
"""
