#!/usr/bin/env python3
"""Times training steps of the benchmark's model in PyTorch: the other side of `hadal bench`.

    bench.py [--compile] [--residual prenorm|mgr:streams=N|attnres] [--width N] [--layers N] [--json]

The same model, sizes, optimiser and kind of data as `hadal bench`, f32 on the CPU (or bf16 products by
torch.autocast). Only torch is needed. With `--worker` it speaks the same lines as `hadal bench --worker`: a first one with its parameters, then
a JSON answer to every line `step`, then a last one to `end`.
"""

import argparse
import contextlib
import json
import math
import statistics
import sys
import time

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    sys.exit(
        "error: there is no torch for this python; install it with one of\n"
        "  pip install torch --index-url https://download.pytorch.org/whl/cpu\n"
        "  pip install torch"
    )

THETA, STD = 10_000.0, 0.02
WARM_UP = 3


def set_shape(vocabulary, width, blocks, heads, head=None, hidden=None, qk_norm=False, eps=1e-6):
    """The model that the classes below build."""
    global VOCABULARY, WIDTH, BLOCKS, HEADS, HEAD, HIDDEN, QK_NORM, EPS, SITES
    VOCABULARY, WIDTH, BLOCKS, HEADS = vocabulary, width, blocks, heads
    HEAD, HIDDEN, QK_NORM, EPS = head or width // heads, hidden or 4 * width, qk_norm, eps
    SITES = 2 * blocks


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * HEADS * HEAD, bias=False)
        self.out = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        if QK_NORM:
            self.q_gain, self.k_gain = (nn.Parameter(torch.ones(HEAD)) for _ in range(2))

    def forward(self, x, cos, sin):
        batch, time_, _ = x.shape
        qkv = self.qkv(x).view(batch, time_, 3, HEADS, HEAD)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        if QK_NORM:
            q = F.rms_norm(q, (HEAD,), self.q_gain.to(q.dtype), EPS)
            k = F.rms_norm(k, (HEAD,), self.k_gain.to(k.dtype), EPS)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, time_, HEADS * HEAD))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.out = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x, cos, sin):
        return self.out(F.relu(self.up(x)).square())


def rotate(x, cos, sin):
    """RoPE: dimension j turns with dimension j + head_dim / 2."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)


class Residual(nn.Module):
    """What all policies have: a gain for each sub-layer's input and one for the head's."""

    def __init__(self):
        super().__init__()
        self.gains = nn.ParameterList(torch.ones(WIDTH) for _ in range(SITES + 1))

    def norm(self, x, site):
        return F.rms_norm(x, (WIDTH,), self.gains[site], EPS)


class PreNorm(Residual):
    """x' = x + F_l(norm(x))."""

    def forward(self, x, layers):
        for site, layer in enumerate(layers):
            x = x + layer(self.norm(x, site))
        return self.norm(x, SITES)


def inverse_rms(x):
    return torch.rsqrt(x.square().mean(-1) + EPS)


def pool(scores, sources):
    """The mean of the sources [..., n, d], weighed by the softmax of their scores [..., n]."""
    return (scores.softmax(-1).unsqueeze(-2) @ sources).squeeze(-2)


class MultiGate(Residual):
    """n streams, competitive gates, pooled reads (crates/residual/src/mgr.rs)."""

    def __init__(self, streams):
        super().__init__()
        self.n = streams
        gated = SITES - (streams - 1)
        start = math.log(math.sqrt(gated / 21) * (math.exp(3) + 1) - streams)
        # Reader l of 1..SITES-1, then the head's.
        self.queries = nn.ParameterList(torch.zeros(WIDTH) for _ in range(SITES))
        self.gates = nn.ParameterList(torch.zeros(WIDTH) for _ in range(gated))
        bias = torch.zeros(streams + 1)
        bias[0] = start
        self.biases = nn.ParameterList(bias.clone() for _ in range(gated))

    def scores(self, streams, *queries):
        """One product for all queries: a list of [B, T, n]."""
        queries = torch.stack(queries, dim=1) * WIDTH**-0.5
        return ((streams @ queries) * inverse_rms(streams).unsqueeze(-1)).unbind(-1)

    def forward(self, x, layers):
        filling = [x]
        for site in range(self.n - 1):
            h = x
            if site > 0:
                streams = torch.stack(filling, dim=2)
                h = pool(self.scores(streams, self.queries[site - 1])[0], streams)
            filling.append(layers[site](self.norm(h, site)))
        streams = torch.stack(filling, dim=2)
        for site in range(self.n - 1, SITES):
            gate = site - (self.n - 1)
            if site > 0:
                read, u = self.scores(streams, self.queries[site - 1], self.gates[gate])
                h = pool(read, streams)
            else:
                (u,), h = self.scores(streams, self.gates[gate]), x
            y = layers[site](self.norm(h, site))
            forget, bias = self.biases[gate].split([1, self.n])
            logits = torch.cat([forget.expand(*u.shape[:-1], 1), u + bias], dim=-1)
            beta = logits.softmax(-1)[..., 1:]
            streams = torch.lerp(streams, y.unsqueeze(2), beta.unsqueeze(-1))
        (read,) = self.scores(streams, self.queries[SITES - 1])
        return self.norm(pool(read, streams), SITES)


class AttentionResiduals(Residual):
    """Every sub-layer attends over all earlier outputs (crates/residual/src/attnres.rs, full)."""

    def __init__(self):
        super().__init__()
        self.queries = nn.ParameterList(torch.zeros(WIDTH) for _ in range(SITES))
        self.key_gains = nn.ParameterList(torch.ones(WIDTH) for _ in range(SITES))

    def forward(self, x, layers):
        sources, inverses = [x], [inverse_rms(x)]
        y = layers[0](self.norm(x, 0))
        for site in range(1, SITES + 1):
            sources.append(y)
            inverses.append(inverse_rms(y))
            query = self.queries[site - 1] * self.key_gains[site - 1]
            stacked = torch.stack(sources, dim=2)
            h = pool(stacked @ query * torch.stack(inverses, dim=2), stacked)
            h = self.norm(h, site)
            if site == SITES:
                return h
            y = layers[site](h)


def policy(text):
    kind, _, settings = text.partition(":")
    settings = dict(setting.split("=", 1) for setting in settings.split(",") if setting)
    if kind == "prenorm" and not settings:
        return PreNorm()
    if kind == "attnres" and settings.get("blocks", "0") == "0":
        return AttentionResiduals()
    if kind == "mgr" and settings.get("gate", "competitive") == "competitive":
        return MultiGate(int(settings.get("streams", 4)))
    sys.exit(f"error: {text} is not written here; there are prenorm, mgr:streams=N and attnres")


class Decoder(nn.Module):
    def __init__(self, residual, seq, autocast=None):
        super().__init__()
        self.autocast = autocast
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(kind() for _ in range(BLOCKS) for kind in (Attention, Mlp))
        self.residual = residual
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=STD)
        for layer in self.layers:
            nn.init.normal_(layer.out.weight, std=STD / math.sqrt(SITES))
        half = HEAD // 2
        frequency = THETA ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.outer(torch.arange(seq, dtype=torch.float64), frequency)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(self, inputs, targets):
        def bound(layer):
            def run(x):
                with self.products():
                    y = layer(x, self.cos, self.sin)
                return y.to(x.dtype)

            return run

        hidden = self.residual(self.embed(inputs), [bound(layer) for layer in self.layers])
        with self.products():
            logits = F.linear(hidden, self.embed.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())

    def products(self):
        """Sub-layers and head may compute in bf16; streams and loss stay in f32, as hadal's do."""
        if self.autocast:
            return torch.autocast("cpu", dtype=torch.bfloat16)
        return contextlib.nullcontext()


def adamw(model):
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [
        {"params": matrices, "weight_decay": 0.1},
        {"params": vectors, "weight_decay": 0.0},
    ]
    settings = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8}
    try:
        return torch.optim.AdamW(groups, **settings, fused=True)
    except RuntimeError:  # before torch 2.4
        return torch.optim.AdamW(groups, **settings, foreach=True)


class Training:
    def __init__(self, args):
        torch.manual_seed(0)
        self.args = args
        self.model = Decoder(policy(args.residual), args.seq, args.autocast)
        self.optimizer = adamw(self.model)
        self.loss = torch.compile(self.model) if args.compile else self.model

    def step(self):
        tokens = torch.randint(VOCABULARY, (self.args.batch, self.args.seq + 1))
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        started = time.perf_counter()
        loss = self.loss(inputs, targets)
        value = loss.item()
        forward = time.perf_counter()
        loss.backward()
        backward = time.perf_counter()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        done = time.perf_counter()
        return {
            "step_ms": 1e3 * (done - started),
            "forward_ms": 1e3 * (forward - started),
            "backward_ms": 1e3 * (backward - forward),
            "optimizer_ms": 1e3 * (done - backward),
            "loss": value,
        }

    def parameters(self):
        return sum(p.numel() for p in self.model.parameters())


def peak_rss_mb():
    """The most memory of this process in MiB, as hadal reads it; None where there is no /proc."""
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))
    except OSError:
        return None


def about():
    return {"torch": torch.__version__, "simd": torch.backends.cpu.get_cpu_capability()}


def serve(training):
    """The protocol of crates/compare/src/bench/protocol.rs."""

    def say(answer):
        print(json.dumps(answer), flush=True)

    say({"parameters": training.parameters(), **about()})
    for line in sys.stdin:
        if line.strip() != "step":
            break
        say(training.step())
    say({"peak_rss_mb": peak_rss_mb()})


def report(args, training):
    for _ in range(WARM_UP):
        training.step()
    times = [training.step() for _ in range(args.steps)]

    def median(key):
        return statistics.median(step[key] for step in times)

    best = min(step["step_ms"] for step in times)
    tokens = args.batch * args.seq
    return {
        "kind": args.residual,
        "framework": "torch-compile" if args.compile else "torch-eager",
        "step_ms_median": median("step_ms"),
        "step_ms_best": best,
        "tokens_per_second": 1e3 * tokens / median("step_ms"),
        "best_tokens_per_second": 1e3 * tokens / best,
        "peak_rss_mb": peak_rss_mb(),
        "forward_ms": median("forward_ms"),
        "backward_ms": median("backward_ms"),
        "optimizer_ms": median("optimizer_ms"),
        "parameters": training.parameters(),
        "batch": args.batch,
        "seq": args.seq,
        "threads": args.threads,
        "steps": args.steps,
        **about(),
    }


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("it must be at least 1")
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--compile", action="store_true", help="through torch.compile")
    parser.add_argument("--residual", default="prenorm", help="prenorm, mgr:streams=N or attnres")
    parser.add_argument("--batch", type=positive, default=8, help="sequences of a step")
    parser.add_argument("--seq", type=positive, default=256, help="tokens of a sequence")
    parser.add_argument("--width", type=positive, default=256, help="of the residual stream")
    parser.add_argument("--layers", type=positive, default=8, help="blocks")
    parser.add_argument("--heads", type=positive, default=4)
    parser.add_argument("--vocab", type=positive, default=512, help="size of the vocabulary")
    parser.add_argument("--qk-norm", action="store_true", help="norms of queries and keys")
    parser.add_argument("--autocast", choices=["bf16"], help="products in bf16")
    parser.add_argument("--steps", type=positive, default=12, help="steps that count")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    parser.add_argument("--worker", action="store_true", help="make steps for another process")
    args = parser.parse_args()
    if args.width % (2 * args.heads):
        parser.error(f"--width {args.width} is not {args.heads} heads of an even width")
    torch.set_num_threads(args.threads)
    set_shape(args.vocab, args.width, args.layers, args.heads, qk_norm=args.qk_norm)
    training = Training(args)
    if args.worker:
        return serve(training)
    result = report(args, training)
    if args.json:
        print(json.dumps(result))
    else:
        for key, value in result.items():
            print(f"{key:<23}{value:.1f}" if isinstance(value, float) else f"{key:<23}{value}")


if __name__ == "__main__":
    main()
