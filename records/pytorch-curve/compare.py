"""Trains the same prenorm model in plain PyTorch and compares its losses with those of a hadal run.

    compare.py RUN [--csv FILE] [--change KEY=VALUE]... [--double]

Same initial weights, data order, optimiser and schedule; nothing of hadal is called. Ends with
status 1 if the losses of any step differ by more than 1e-3.
"""

import argparse
import functools
import json
import math
import platform
import struct
import sys
import tomllib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

LIMIT = 1e-3
WORD = (1 << 64) - 1


class Text:
    """The tokens of a prepared directory, cut into windows; the last token is only a target."""

    def __init__(self, directory, length):
        manifest = json.loads(Path(directory, "manifest.json").read_text())
        shards = [self.shard(Path(directory, entry["file"])) for entry in manifest["shards"]]
        self.tokens, self.length = np.concatenate(shards), length
        self.windows = (len(self.tokens) - 1) // length

    @staticmethod
    def shard(path):
        raw = path.read_bytes()
        magic, version, width, count = struct.unpack_from("<8sIIQ", raw)
        assert (magic, version) == (b"HADALTOK", 1), path
        return np.frombuffer(raw, f"<u{width}", count, 32)

    def number(self, sequence, seed):
        """Which window a sequence of the run is."""
        epoch, position = divmod(sequence, self.windows)
        return shuffled(position, self.windows, seed, epoch)

    def batch(self, numbers):
        rows = [self.tokens[n * self.length : (n + 1) * self.length + 1] for n in numbers]
        rows = torch.from_numpy(np.stack(rows).astype(np.int64))
        return rows[:, :-1], rows[:, 1:]


def splitmix(value):
    z = (value + 0x9E3779B97F4A7C15) & WORD
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def shuffled(index, count, seed, epoch):
    """Four Feistel rounds on an even number of bits, repeated until the result is below count."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    mask = (1 << half) - 1
    key = splitmix(seed ^ splitmix(epoch + 1))
    while True:
        left, right = index >> half, index & mask
        for turn in range(4):
            left, right = right, left ^ (splitmix(right ^ ((key + (turn << 56)) & WORD)) & mask)
        index = (left << half) | right
        if index < count:
            return index


def rotate(x, theta):
    """RoPE: dimension j turns with dimension j + head_dim / 2."""
    half = x.shape[-1] // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), frequency)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def attention(x, w, block, shape):
    batch, time, _ = x.shape

    def heads(name):
        y = x @ w[f"{block}.attn.{name}.weight"].T
        return y.view(batch, time, shape["n_heads"], shape["head_dim"]).transpose(1, 2)

    q, k = (rotate(heads(name), shape["rope_theta"]) for name in "qk")
    scores = q @ k.transpose(-1, -2) / math.sqrt(shape["head_dim"])
    future = torch.ones(time, time, dtype=torch.bool).triu(1)
    mixed = scores.masked_fill(future, -math.inf).softmax(-1) @ heads("v")
    return mixed.transpose(1, 2).flatten(2) @ w[f"{block}.attn.o.weight"].T


def loss_of(w, shape, inputs, targets):
    def norm(x, name):
        return F.rms_norm(x, x.shape[-1:], w[f"{name}.weight"], shape["norm_eps"])

    x = F.embedding(inputs, w["embed.weight"])
    for i in range(shape["n_layers"]):
        block = f"layers.{i}"
        x = x + attention(norm(x, f"{block}.attn_norm"), w, block, shape)
        wide = norm(x, f"{block}.mlp_norm") @ w[f"{block}.mlp.up.weight"].T
        x = x + F.relu(wide).square() @ w[f"{block}.mlp.down.weight"].T
    logits = norm(x, "norm") @ w["embed.weight"].T
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised by five steps of Polar Express (spec, section 6)."""

    POLAR_EXPRESS = (
        (8.28721201814563, -23.595886519098837, 17.300387312530933),
        (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
        (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
        (3.3184196573706015, -2.488488024314874, 0.51004894012372),
        (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    )

    @classmethod
    def orthogonal(cls, u):
        x = u if u.shape[0] <= u.shape[1] else u.T
        x = x / (1.01 * x.norm() + 1e-7)
        for a, b, c in cls.POLAR_EXPRESS:
            a, b, c = a / 1.01, b / 1.01**3, c / 1.01**5
            gram = x @ x.T
            x = a * x + b * (gram @ x) + c * (gram @ (gram @ x))
        return x if u.shape[0] <= u.shape[1] else x.T

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for w in group["params"]:
                mean = self.state[w].setdefault("mean", torch.zeros_like(w))
                mean.lerp_(w.grad, 1 - group["momentum"])
                update = self.orthogonal(w.grad.lerp(mean, group["momentum"]))
                rows, columns = w.shape
                w.mul_(1 - group["lr"] * group["weight_decay"])
                w.sub_(group["lr"] * math.sqrt(max(1, rows / columns)) * update)


def optimisers(w, settings):
    adamw, muon, hidden = settings["adamw"], settings["muon"], []
    matrices = {name: tensor for name, tensor in w.items() if tensor.dim() == 2}
    if settings["hidden"] == "muon":
        hidden = [matrices.pop(name) for name in list(matrices) if name.startswith("layers.")]
    vectors = {"params": [tensor for tensor in w.values() if tensor.dim() < 2], "weight_decay": 0.0}
    result = [torch.optim.AdamW([vectors, {"params": list(matrices.values())}], **adamw)]
    if hidden:
        expected = {"steps": 5, "coefficients": "polar_express", "scale": "jordan"}
        assert muon | expected == muon, f"only {expected} is written here"
        result.append(Muon(hidden, muon))
    return result


def rate_at(step, steps, warmup_steps, final_share):
    """Factor on every rate; the step counts from 0."""
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    done = (step - warmup_steps) / max(1, steps - warmup_steps)
    return final_share + (1 - final_share) * 0.5 * (1 + math.cos(math.pi * done))


def train(w, config, shape):
    """Losses and gradient norms of all steps; `w` ends up trained."""
    text = Text(config["data"]["train"], config["train"]["seq_len"])
    size, steps = config["train"]["batch"], config["train"]["steps"]
    assert config["train"]["accumulate"] == 1
    rate = functools.partial(rate_at, steps=steps, **config["schedule"])
    movers = optimisers(w, config["optimizer"])
    schedules = [torch.optim.lr_scheduler.LambdaLR(mover, rate) for mover in movers]
    curve = []
    for step in range(steps):
        sequences = range(step * size, (step + 1) * size)
        loss = loss_of(w, shape, *text.batch([text.number(s, config["seed"]) for s in sequences]))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(w.values(), config["optimizer"]["clip"] or math.inf)
        for mover, schedule in zip(movers, schedules):
            mover.step()
            mover.zero_grad()
            schedule.step()
        curve.append((loss.item(), norm.item()))
    return curve


def weights(run, step, dtype):
    """The parameters of a checkpoint, without what the optimiser remembers."""
    named = load_file(run / "checkpoints" / f"step-{step:09}" / "state.safetensors").items()
    return {name[2:]: t.to(dtype).requires_grad_() for name, t in named if name.startswith("w.")}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of a finished prenorm run")
    parser.add_argument("--csv", type=Path, help="write the losses here")
    note = "another setting for PyTorch alone, to see that the comparison notices"
    parser.add_argument("--change", action="append", default=[], metavar="KEY=VALUE", help=note)
    parser.add_argument("--double", action="store_true", help="PyTorch in f64")
    args = parser.parse_args()
    torch.set_num_threads(1)

    config = tomllib.loads((args.run / "config.toml").read_text())
    for change in args.change:
        key, value = change.split("=", 1)
        *path, last = key.split(".")
        functools.reduce(dict.__getitem__, path, config)[last] = json.loads(value)
    shape = json.loads((args.run / "model" / "config.json").read_text())
    expected = {"residual": {"kind": "prenorm"}, "mlp": "relu2", "qk_norm": False,
                "tie_embeddings": True, "depth_kv": "none", "n_kv_heads": shape["n_heads"]}
    assert shape | expected == shape, f"only {expected} is written here"
    lines = [json.loads(line) for line in (args.run / "metrics.jsonl").open()]
    ours = [(line["loss"], line["gradient_norm"]) for line in lines if line["kind"] == "train"]
    held_out = [line["loss"] for line in lines if line["kind"] == "eval"][-1]

    w = weights(args.run, 0, torch.float64 if args.double else torch.float32)
    pairs = enumerate(zip(ours, train(w, config, shape), strict=True), 1)
    table = [(step, a[0], b[0], abs(a[0] - b[0]), a[1], b[1]) for step, (a, b) in pairs]
    head = ["step", "hadal_loss", "pytorch_loss", "difference", "hadal_norm", "pytorch_norm"]
    print("{:>4} {:>12} {:>12} {:>11} {:>12} {:>12}".format(*head))
    for row in table:
        print("{:>4} {:>12.6f} {:>12.6f} {:>11.1e} {:>12.6f} {:>12.6f}".format(*row))
    if args.csv:
        lines = [head] + [[f"{value:.9g}" for value in row] for row in table]
        args.csv.write_text("".join(",".join(line) + "\n" for line in lines))

    final = weights(args.run, len(ours), torch.float64)
    apart = {name: ((final[name] - w[name]).norm() / final[name].norm()).item() for name in final}
    worst = max(apart, key=apart.get)
    text = Text(config["data"]["validation"], config["train"]["seq_len"])
    windows = range(config["train"]["batch"] * config["eval"]["batches"])
    there = loss_of(w, shape, *text.batch(windows)).detach()
    norms = max(abs(row[4] / row[5] - 1) for row in table)
    largest = max((row[3] for row in table), key=lambda value: (math.isnan(value), value))
    print(f"python {platform.python_version()}, torch {torch.__version__}, {there.dtype}")
    print(f"held-out loss {held_out:.6f} and {there:.6f}, difference {abs(held_out - there):.1e}")
    print(f"largest relative difference of gradient norms {norms:.1e}")
    print(f"largest relative difference of final weights {apart[worst]:.1e} ({worst})")
    print(f"largest difference of losses {largest:.1e}, allowed {LIMIT}")
    return not largest <= LIMIT


if __name__ == "__main__":
    sys.exit(main())
