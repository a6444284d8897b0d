"""Slurm: the backend, which runs Slurm's commands, a node as Slurm shows it, and the job that holds it for a test."""

from muster.admission.backends.slurm.backend import BACKEND

__all__ = ["BACKEND"]
