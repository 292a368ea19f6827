"""`python -m arc.kernels.table`: which backend runs each operation on this machine, and why others do not."""

from __future__ import annotations

import argparse

import torch

from . import latents
from .dispatch import KernelError, KernelSet, resolve
from .operations import Target

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def lines(kernels: KernelSet) -> list[str]:
    """One an operation: its name, its backend, and every backend that was asked before and refused."""
    table = [(line.operation, line.backend, line.refused) for line in kernels.table()]
    width = max(len(operation) for operation, _, _ in table)
    wide = max(len(backend) for _, backend, _ in table)
    shown: list[str] = []
    for operation, backend, refused in table:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused)
        shown.append(f"{operation:{width}}  {backend:{wide}}  {reasons}".rstrip())
    whole = "in one call" if kernels.decoder is not None else "layer by layer"
    return [*shown, f"{'a step':{width}}  {whole}"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m arc.kernels.table", description=__doc__)
    parser.add_argument("--backend", default="auto", help="as kernels.backend")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=_DTYPES, default="bfloat16")
    parser.add_argument(
        "--weights", choices=("stored", "int8", "int4", "fp8"), default="stored", help="as kernels.weights"
    )
    parser.add_argument("--latents", choices=latents.FORMS, default="stored", help="as cache.latents")
    args = parser.parse_args()
    try:
        target = Target(torch.device(args.device), _DTYPES[args.dtype], args.weights, latents=args.latents)
        kernels = resolve(args.backend, target)
    except KernelError as error:
        parser.error(str(error))
    kept = f"weights {args.weights}, latents {args.latents}"
    print(f"kernels for {args.device} in {args.dtype}, {kept}, kernels.backend = {args.backend}")
    print("\n".join(lines(kernels)))


if __name__ == "__main__":
    main()
