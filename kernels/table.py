"""`python -m arc.kernels.table`: which backend runs each operation on this machine, and why others do not."""

from __future__ import annotations

import argparse

import torch

from .dispatch import KernelError, KernelSet, resolve
from .operations import Target

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def lines(kernels: KernelSet) -> list[str]:
    """One an operation: its name, its backend, and every backend that was asked before and refused."""
    width = max(len(line.operation) for line in kernels.table())
    return [
        f"{line.operation:{width}}  {line.backend:8}  "
        + "; ".join(f"{backend}: {reason}" for backend, reason in line.refused)
        for line in kernels.table()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m arc.kernels.table", description=__doc__)
    parser.add_argument("--backend", default="auto", help="as kernels.backend")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=_DTYPES, default="bfloat16")
    arguments = parser.parse_args()
    try:
        kernels = resolve(arguments.backend, Target(torch.device(arguments.device), _DTYPES[arguments.dtype]))
    except KernelError as error:
        parser.error(str(error))
    print(f"kernels for {arguments.device} in {arguments.dtype}, kernels.backend = {arguments.backend}")
    print("\n".join(lines(kernels)))


if __name__ == "__main__":
    main()
