#!/usr/bin/env python3
"""Checks that bench.py is the same model as hadal's: its loss and gradients against golden traces.

    check.py          needs torch and safetensors
"""

import json
import sys
from pathlib import Path

import bench
import torch
from safetensors.torch import load_file

TESTS = Path(__file__).resolve().parents[2] / "tests"
TRACES = {
    "golden/prenorm": "prenorm",
    "golden/mgr-competitive": "mgr:streams=4",
    "golden/attnres-full": "attnres",
    "golden-ours/mgr-n1-competitive-L2-d32-h1-1x10-relu2-qknorm-tied-eps1e-5-b2t9": "mgr:streams=1",
}
LIMIT = 1e-4


def named(model):
    """The parameters of bench.py by hadal's names; q, k and v are parts of one."""
    residual, sites = model.residual, range(bench.SITES)
    yield "embed.weight", model.embed.weight
    yield "norm.weight", residual.gains[-1]
    for site in sites:
        block, mlp = divmod(site, 2)
        layer, half = model.layers[site], ("mlp" if mlp else "attn")
        yield f"layers.{block}.{half}_norm.weight", residual.gains[site]
        yield f"layers.{block}.{half}.{'down' if mlp else 'o'}.weight", layer.out.weight
        if mlp:
            yield f"layers.{block}.mlp.up.weight", layer.up.weight
        else:
            for i, part in enumerate("qkv"):
                yield f"layers.{block}.attn.{part}.weight", (layer.qkv.weight, i)
            if bench.QK_NORM:
                yield f"layers.{block}.attn.q_norm.weight", layer.q_gain
                yield f"layers.{block}.attn.k_norm.weight", layer.k_gain
    for site, query in enumerate(getattr(residual, "queries", []), 1):
        place = "out" if site == bench.SITES else site
        if isinstance(residual, bench.MultiGate):
            yield f"residual.{place}.pool.weight", query
        else:
            yield f"residual.{place}.query", query
            yield f"residual.{place}.key_norm", residual.key_gains[site - 1]
    if isinstance(residual, bench.MultiGate):
        for gate in range(len(residual.gates)):
            site = gate + residual.n - 1
            yield f"residual.{site}.gate.weight", residual.gates[gate]
            yield f"residual.{site}.gate.bias", residual.biases[gate]


def part(tensor, which):
    rows = bench.HEADS * bench.HEAD
    return tensor[which * rows : (which + 1) * rows]


def worst_error(directory, policy):
    shape = json.loads((directory / "config.json").read_text())
    sizes = (shape[name] for name in ("vocab_size", "d_model", "n_layers", "n_heads"))
    bench.set_shape(*sizes, shape["head_dim"], shape["d_ff"], shape["qk_norm"], shape["norm_eps"])
    trace, weights = (load_file(directory / f"{name}.safetensors") for name in ("trace", "model"))
    inputs, targets = trace["input_ids"].long(), trace["target_ids"].long()
    model = bench.Decoder(bench.policy(policy), inputs.shape[1])
    with torch.no_grad():
        for name, tensor in named(model):
            into = part(*tensor) if isinstance(tensor, tuple) else tensor
            into.copy_(weights.pop(name))
    assert not weights, f"left over: {list(weights)}"
    loss = model(inputs, targets)
    loss.backward()
    errors = [(loss / trace["loss"] - 1).abs().item()]
    gradients = {key[5:]: value for key, value in trace.items() if key.startswith("grad.")}
    assert gradients, "the trace has no gradients"
    # Some vanish by symmetry, where only rounding is left; hadal parity has the same floor.
    floor = max(value.abs().max() for value in gradients.values()) / 100
    for name, tensor in named(model):
        ours = part(tensor[0].grad, tensor[1]) if isinstance(tensor, tuple) else tensor.grad
        theirs = gradients[name]
        errors.append(((ours - theirs).abs().max() / max(theirs.abs().max(), floor)).item())
    return max(errors)


def main():
    failed = False
    for name, policy in TRACES.items():
        error = worst_error(TESTS / name, policy)
        failed |= not error <= LIMIT
        normed = ", qk-norm" if bench.QK_NORM else ""
        print(f"{policy + normed:<23} largest relative error of loss and gradients {error:.1e}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
