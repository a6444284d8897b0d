"""Kubernetes: the backend, its API client and login, and the pod that holds a node for a test."""

from muster.admission.backends.kubernetes.backend import BACKEND

__all__ = ["BACKEND"]
