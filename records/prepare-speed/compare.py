"""Prepare the same text with hadal and with Python's tokenizers, alternating, and print times and ratios.

    python compare.py HADAL tokenizer.json TEXT.txt [--rounds 3] [--threads 2]

Both read the file, tokenise it with the same tokenizer and number of threads, and write the tokens as u16. Documents
are separated by <|endoftext|>; Python gets them in pieces of about 64 KiB cut at line breaks, as hadal does, because
the library takes far more memory and time on whole books.
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SEPARATOR = "<|endoftext|>"
PIECE = 64 * 1024


def pieces(path):
    """Pieces of documents, cut at line breaks, with a mark where a document ends."""
    with open(path, encoding="utf-8") as file:
        lines, size = [], 0
        for line in file:
            parts = line.split(SEPARATOR)
            for i, part in enumerate(parts):
                if i > 0:
                    yield "".join(lines), True
                    lines, size = [], 0
                lines.append(part)
                size += len(part)
            if size >= PIECE:
                yield "".join(lines), False
                lines, size = [], 0
        yield "".join(lines), True


def python_side(tokenizer_file, text, out):
    import numpy as np
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(tokenizer_file)
    end = tokenizer.token_to_id(SEPARATOR)
    total = 0
    with open(out, "wb") as file:
        batch = []

        def flush():
            nonlocal total
            encoded = tokenizer.encode_batch_fast([piece for piece, _ in batch])
            for encoding, (_, last) in zip(encoded, batch):
                ids = encoding.ids + [end] if last else encoding.ids
                np.asarray(ids, dtype=np.uint16).tofile(file)
                total += len(ids)
            batch.clear()

        for piece in pieces(text):
            batch.append(piece)
            if len(batch) == 256:
                flush()
        flush()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(f"{total} tokens, {peak} MiB")


def timed(command, environment):
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stderr)
    return time.perf_counter() - started, done.stdout.strip().splitlines()


def main():
    if sys.argv[1] == "--python-side":
        return python_side(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("hadal")
    parser.add_argument("tokenizer")
    parser.add_argument("text")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    environment = dict(os.environ, RAYON_NUM_THREADS=str(options.threads), TOKENIZERS_PARALLELISM="true")
    size = Path(options.text).stat().st_size / 1e6
    ratios = []
    for round in range(options.rounds):
        work = Path(tempfile.mkdtemp())
        ours, said = timed(
            ["/usr/bin/env", "bash", "-c",
             'ulimit -v 1048576; exec "$@"', "_", options.hadal, "data", "prepare", options.text, "--tokenizer",
             options.tokenizer, "--threads", str(options.threads), "--out", str(work / "ours")],
            environment,
        )  # fmt: skip
        theirs, their_words = timed(
            [sys.executable, __file__, "--python-side", options.tokenizer, options.text, str(work / "theirs")],
            environment,
        )
        ratios.append(theirs / ours)
        print(f"round {round}: hadal {ours:.1f} s ({size / ours:.1f} MB/s), python {theirs:.1f} s"
              f" ({size / theirs:.1f} MB/s), hadal is {theirs / ours:.2f}x as fast; {said[0]}; python: {their_words[0]}")  # fmt: skip
        shutil.rmtree(work)
    print(f"median ratio {sorted(ratios)[len(ratios) // 2]:.2f}")


main()
