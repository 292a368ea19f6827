"""Convert the benchmark's checkpoint to GGUF by llama.cpp's own converter, as a script in transformers' environment.

    python to_gguf.py LLAMA_SOURCE MODEL FILE KIND

The converter knows tokenizers by a hash and refuses any other. Ours is made for the benchmark, and the benchmark sends
token ids, so the name of the nearest known rule of splitting text is given in its place.
"""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    source, model, file, kind = sys.argv[1:]
    sys.path.insert(0, source)
    sys.path.insert(1, f"{source}/gguf-py")
    from conversion.base import TextModel  # pyright: ignore[reportMissingImports]  # of the converter

    TextModel.get_vocab_base_pre = lambda _self, _tokenizer: "gpt-2"
    sys.argv = ["convert_hf_to_gguf.py", model, "--outtype", kind, "--outfile", file]
    runpy.run_path(f"{source}/convert_hf_to_gguf.py", run_name="__main__")


if __name__ == "__main__":
    main()
