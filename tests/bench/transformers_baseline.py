"""transformers' generate on the same checkpoint and work: the simple baseline. Run as a process of its own.

    python -m tests.bench.transformers_baseline MODEL WORKLOAD ROWS SEED [--threads N]

Prints one JSON object: output tokens a second over the whole time, prefill included. Rows are one static batch, padded
on the left, and run to the longest output; only tokens that were asked for count.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
import warnings
from typing import Any

import torch
import transformers

from . import workloads


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("workload", choices=["uniform", "mixed", "prefill"])
    parser.add_argument("rows", type=int)
    parser.add_argument("seed", type=int)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype=torch.bfloat16).eval()
    vocab = model.config.vocab_size
    if options.workload == "prefill":
        jobs = workloads.prefill(vocab, options.seed)
    else:
        jobs = getattr(workloads, options.workload)(options.rows, vocab, options.seed)
    longest = max(len(job.prompt) for job in jobs)
    padded = [[0] * (longest - len(job.prompt)) + list(job.prompt) for job in jobs]
    mask = [[0] * (longest - len(job.prompt)) + [1] * len(job.prompt) for job in jobs]
    output = max(job.output for job in jobs)
    began = time.perf_counter()
    generate: Any = model.generate  # type: ignore[attr-defined]  # its own types do not fit its own models
    with torch.inference_mode():
        generate(
            torch.tensor(padded), attention_mask=torch.tensor(mask), do_sample=False, max_new_tokens=output,
            min_new_tokens=output, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "rate": sum(job.output for job in jobs) / seconds}))


if __name__ == "__main__":
    main()
