"""The components of a training: ``assembly`` builds all of them in order, each other file a few.

``trained_model`` loads what a training has left. This file is empty, so that who asks a trained
model does not import what trains one.
"""
