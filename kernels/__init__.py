"""The kernels' seam: named operations, the backends that offer them, and why one was refused.

The model calls operations (`operations.py`) through a `KernelSet` that `dispatch.resolve` chose once. Nothing here
imports the rest of the project, and importing it needs neither a driver nor Triton: a backend looks for what it needs
when it is asked.
"""

from .dispatch import KernelError, KernelSet, Resolution, resolve
from .operations import Refusal, Target

__all__ = ["KernelError", "KernelSet", "Refusal", "Resolution", "Target", "resolve"]
