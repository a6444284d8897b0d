"""Slurm: the backend by its commands, what it shows of a node, the job that holds a node for a test."""

from muster.admission.backends.slurm.backend import BACKEND

__all__ = ["BACKEND"]
