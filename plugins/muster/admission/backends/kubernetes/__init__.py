"""Kubernetes: the backend by its API, access to that, the pod that holds a node for a test."""

from muster.admission.backends.kubernetes.backend import BACKEND

__all__ = ["BACKEND"]
