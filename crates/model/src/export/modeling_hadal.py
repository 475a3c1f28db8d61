"""A model of hadal for transformers: every residual policy, in plain PyTorch.

`hadal export --format hf` writes this file beside models that no architecture of transformers computes:

    AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)

A sub-layer (attention or MLP) is a bare function. A policy goes from the embedding to what the head reads: it decides
what each sub-layer reads and what becomes of its output. Each is one class, with its parameters. Sub-layers are numbered l = 0 .. 2 n_layers - 1:
attention of block i is 2i, its MLP 2i + 1. Parameters have the names of hadal's checkpoints. The stream is float32
whatever the type of the weights. Written for reading: it runs anywhere, but it is not fast.
"""

import itertools
import math

import torch
import torch.nn.functional as F
from torch import nn
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast


class HadalConfig(PretrainedConfig):
    """`hadal` is the config of the checkpoint; the rest is what transformers asks every model for."""

    model_type = "hadal"

    def __init__(self, hadal=None, **kwargs):
        super().__init__(**kwargs)
        self.hadal = hadal or {}
        self.vocab_size = self.hadal.get("vocab_size", 0)
        self.hidden_size = self.hadal.get("d_model", 0)
        self.num_hidden_layers = self.hadal.get("n_layers", 0)
        self.num_attention_heads = self.hadal.get("n_heads", 0)
        self.num_key_value_heads = self.hadal.get("n_kv_heads", 0)
        self.max_position_embeddings = self.hadal.get("max_seq_len", 0)


# ---------------------------------------------------------------- parameters


def shapes(cfg):
    """Every parameter by name."""
    d, blocks, ff, vocabulary = cfg["d_model"], cfg["n_layers"], cfg["d_ff"], cfg["vocab_size"]
    q, kv = cfg["n_heads"] * cfg["head_dim"], cfg["n_kv_heads"] * cfg["head_dim"]
    policy = policy_of(cfg["residual"])
    found = {"embed.weight": (vocabulary, d)}
    if not cfg["tie_embeddings"]:
        found["head.weight"] = (vocabulary, d)
    if policy.final_norm:
        found["norm.weight"] = (d,)
    biased = {"qkv": "qkv", "all": "qkvo"}.get(cfg.get("attention_bias"), "")
    for i in range(blocks):
        attention = {"q": (q, d), "k": (kv, d), "v": (kv, d), "o": (d, q)}
        mlp = {"up": (ff, d), "down": (d, ff)} | ({"gate": (ff, d)} if cfg["mlp"] == "swiglu" else {})
        for part, shape in attention.items():
            found[f"layers.{i}.attn.{part}.weight"] = shape
            if part in biased:
                found[f"layers.{i}.attn.{part}.bias"] = shape[:1]
        for part, shape in mlp.items():
            found[f"layers.{i}.mlp.{part}.weight"] = shape
            if cfg.get("mlp_bias"):
                found[f"layers.{i}.mlp.{part}.bias"] = shape[:1]
        if cfg["qk_norm"]:
            found |= {f"layers.{i}.attn.{part}_norm.weight": (cfg["head_dim"],) for part in "qk"}
        if cfg.get("value_residual") == "learned" and i:
            found[f"layers.{i}.attn.value_mix"] = (2,)
        if cfg["depth_kv"] == "attention+mlp" and i + 1 < blocks:
            found |= {f"layers.{i}.mlp.depth_{part}.weight": (kv, d) for part in "kv"}
        if policy.block_norms:
            found |= {f"layers.{i}.{half}_norm.weight": (d,) for half in ("attn", "mlp")}
    own = policy.shapes(settings_of(cfg), d, blocks)
    return found | {f"residual.{name}": shape for name, shape in own.items()}


def declare(module, name, shape):
    *path, last = name.split(".")
    for part in path:
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module._modules[part]
    module.register_parameter(last, nn.Parameter(torch.empty(shape)))


# ---------------------------------------------------------------- positions


def frequencies(cfg, length):
    """Angles per position of each pair of dimensions, and what queries and keys are multiplied by."""
    h, theta, scaling = cfg["head_dim"], cfg["rope_theta"], cfg.get("rope_scaling") or {"kind": "none"}
    pairs = torch.arange(h // 2, dtype=torch.float64)
    plain = theta ** (-2 * pairs / h)
    kind, factor = scaling["kind"], scaling.get("factor")
    original = scaling.get("original_max_seq_len")
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "dynamic":
        stretch = factor * max(length, original) / original - (factor - 1)
        return (theta * stretch ** (h / (h - 2))) ** (-2 * pairs / h), 1.0
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = ((original * plain / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        return plain * (kept + (1 - kept) / factor), 1.0
    if kind == "yarn":
        # The dimension that turns so often within the original length.
        place = lambda turns: h * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
        low, high = place(scaling["beta_fast"]), place(scaling["beta_slow"])
        if scaling["truncate"]:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, h - 1)
        divided = ((pairs - low) / (high - low if high != low else 0.001)).clamp(0, 1)
        return plain * (divided / factor + 1 - divided), scaling["attention_factor"]
    if kind == "divided":
        return plain / torch.tensor(scaling["divisors"], dtype=torch.float64), 1.0
    return plain, 1.0


# ---------------------------------------------------------------- sub-layers


class Pass:
    """One forward pass: the parameters, the positions, the cache, the depth slots left so far, and the first values."""

    def __init__(self, model, positions, ago, shown, cache):
        self.cfg, self.cache = model.config.hadal, cache
        self.ago, self.shown = ago, shown
        self.parameters = dict(model.named_parameters())
        self.settings, self.eps = settings_of(self.cfg), self.cfg["norm_eps"]
        self.blocks, self.subs = range(self.cfg["n_layers"]), range(2 * self.cfg["n_layers"])
        self.slots, self.first_values = [], None
        each, factor = frequencies(self.cfg, int(positions.max()) + 1)
        # In f64: a late position times a fast frequency has no digits to lose. [B, 1, T, h/2]
        angles = (positions.cpu().double()[..., None] * each)[:, None]
        self.cos, self.sin = ((factor * f(angles)).float().to(positions.device) for f in (torch.cos, torch.sin))

    def get(self, name):
        return self.parameters[name].float()

    def of(self, l, name):
        """A parameter of the policy."""
        return self.get(f"residual.{l}.{name}")

    def rms(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps)

    def depth(self, l):
        """The number, from 1, that the block of sub-layer l had before others were cut out."""
        return self.settings["depths"][l // 2] + 1

    def norm(self, l, x):
        return self.rms(x) * self.get(f"layers.{l // 2}.{'mlp' if l % 2 else 'attn'}_norm.weight")

    def linear(self, name, x):
        weight, bias = self.parameters[f"{name}.weight"], self.parameters.get(f"{name}.bias")
        return F.linear(x.to(weight.dtype), weight, bias).float()

    def heads(self, name, x):
        """[B, T, d] -> [B, heads, T, head_dim]"""
        return self.linear(name, x).unflatten(-1, (-1, self.cfg["head_dim"])).transpose(1, 2)

    def turn(self, norm, x):
        """Normalises heads, if the model does, and turns dimension j together with j + head_dim/2."""
        if self.cfg["qk_norm"]:
            x = self.rms(x) * self.get(f"{norm}.weight")
        a, b = x.chunk(2, -1)
        return torch.cat([a * self.cos - b * self.sin, b * self.cos + a * self.sin], -1)

    def sub(self, l, x, exists=None):
        """Sub-layer l on exactly x. Tokens for which `exists` [B, T, 1] is false leave no keys to others."""
        return self.mlp(l // 2, x) if l % 2 else self.attention(l // 2, x, exists)

    def apart(self, l, query, key, value):
        """An attention that makes queries, keys and values of inputs of their own, each with a norm."""
        keys, values = (self.rms(x) * self.of(l, f"{part}_norm") for part, x in (("k", key), ("v", value)))
        return self.attention(l // 2, self.norm(l, query), None, (keys, values))

    def branch(self, l, h, exists=None):
        """A sub-layer that normalises what it reads."""
        return self.sub(l, self.norm(l, h), exists)

    def sees(self, i, kept):
        """Which of the keys that are kept [B or 1, S] block i sees, [B or 1, 1, T, S]. A token always sees itself."""
        window, allowed = self.cfg.get("sliding_window"), self.ago >= 0
        if window and i in (window.get("blocks") or self.blocks):
            allowed = allowed & (self.ago < window["size"])
        return (allowed & (kept[:, None] | (self.ago == 0)))[:, None]

    def mix_values(self, i, v):
        """Values of a later block are mixed with those of the first, if the model does that. A cache keeps the mixed ones."""
        how = self.cfg.get("value_residual", "none")
        if how == "none":
            return v
        if i == 0:
            self.first_values = v
            return v
        a, b = self.get(f"layers.{i}.attn.value_mix") if how == "learned" else (0.5, 0.5)
        return a * self.first_values + b * v

    def attention(self, i, x, exists, apart=None):
        """`apart` are inputs of keys and values, where they are not x."""
        name, inputs = f"layers.{i}.attn", (x, *(apart or (x, x)))
        q, k, v = (self.heads(f"{name}.{part}", given) for part, given in zip("qkv", inputs))
        q, k, v = self.turn(f"{name}.q_norm", q), self.turn(f"{name}.k_norm", k), self.mix_values(i, v)
        slot, kept = (k, v), self.shown
        if exists is not None:
            # Whether a key exists is kept as one more number of it, so that a cache keeps it too.
            k = torch.cat([k, exists[:, None].expand(*k.shape[:3], 1).to(k.dtype)], -1)
        if self.cache is not None:
            k, v = self.cache.update(k, v, i)
        if exists is not None:
            k, kept = k[..., :-1], kept & (k[:, 0, :, -1] > 0.5)
        group = self.cfg["n_heads"] // self.cfg["n_kv_heads"]
        share = lambda y: y.repeat_interleave(group, 1)
        scores = (q @ share(k).transpose(-1, -2)).masked_fill(~self.sees(i, kept), -torch.inf)
        depth = [(q * share(key)).sum(-1, keepdim=True) for key, _ in self.slots]
        weights = torch.softmax(torch.cat([scores, *depth], -1) / math.sqrt(q.shape[-1]), -1)
        here, *below = weights.split([scores.shape[-1], *[1] * len(depth)], -1)
        y = here @ share(v) + sum(weight * share(value) for weight, (_, value) in zip(below, self.slots))
        if self.cfg["depth_kv"] != "none":
            self.slots.append(slot)
        return self.linear(f"{name}.o", y.transpose(1, 2).flatten(2))

    def mlp(self, i, x):
        name = f"layers.{i}.mlp"
        if f"{name}.depth_k.weight" in self.parameters:
            key = self.turn(f"layers.{i}.attn.k_norm", self.heads(f"{name}.depth_k", x))
            self.slots.append((key, self.heads(f"{name}.depth_v", x)))
        up = self.linear(f"{name}.up", x)
        gated = self.cfg["mlp"] == "swiglu"
        return self.linear(f"{name}.down", F.silu(self.linear(f"{name}.gate", x)) * up if gated else F.relu(up) ** 2)

    def judge(self, l, gate):
        """Who runs sub-layer l by its gate [B, T, 1], whose keys exist, and what is taken off the gate."""
        tau = self.settings.get("skip_threshold")
        if tau is None:
            return torch.ones_like(gate, dtype=torch.bool), None, 0.0
        if isinstance(tau, dict):
            tau = tau["mlp" if l % 2 else "attention"]
        elif isinstance(tau, list):
            tau = tau[l]
        runs = ~(gate.abs() < tau)
        dropped = self.settings.get("skip_kv") == "drop"
        return runs, runs if dropped else None, self.settings.get("skip_shrink", 0.0) * tau


# ---------------------------------------------------------------- policies: embedding -> what the head reads

POLICIES = {}


def settings_of(cfg):
    """The policy's settings, and the numbers that blocks had before others were cut out: some policies compute with them."""
    removed = cfg.get("removed_blocks", [])
    depths = [i for i in range(cfg["n_layers"] + len(removed)) if i not in removed]
    return cfg["residual"] | {"depths": depths, "full_depth": cfg["n_layers"] + len(removed)}


def policy_of(settings):
    """The policy that a config's "residual" means. Older files spell Mixture-of-Depths as a prenorm with a capacity."""
    kind = settings["kind"]
    return POLICIES["mod" if kind == "prenorm" and settings.get("capacity") is not None else kind]


class Policy:
    """One kind. A subclass registers itself under `kind`, its name in configs."""

    kind = None
    # Whether the model has a norm before the head, and norms in its blocks.
    final_norm, block_norms = True, True

    def __init_subclass__(cls):
        POLICIES[cls.kind] = cls()

    def shapes(self, settings, d, blocks):
        """Parameters by name, without "residual." in front."""
        return {}

    def forward(self, run, x):
        """From the embedding to what the final norm reads, or the head if there is none."""
        raise NotImplementedError


def every(places, shapes):
    """The same parameters at each of these places."""
    return {f"{place}.{name}": shape for place in places for name, shape in shapes.items()}


class PreNorm(Policy):
    kind = "prenorm"

    def forward(self, run, x):
        for l in run.subs:
            x = x + run.settings.get("multiplier", 1.0) * run.branch(l, x)
        return x


class MixtureOfDepths(Policy):
    kind = "mod"

    def routed(self, settings, i):
        return (settings["depths"][i] + 1) % settings.get("every", 2) == 0

    def shapes(self, settings, d, blocks):
        hidden = {"predictor.hidden.weight": (32, d), "predictor.hidden.bias": (32,)}
        out = {"predictor.out.weight": (32,), "predictor.out.bias": (1,)}
        places = [i for i in range(blocks) if self.routed(settings, i)]
        return every(places, {"router.weight": (d,)} | hidden | out)

    def forward(self, run, x):
        for i in run.blocks:
            if not self.routed(run.settings, i):
                x = x + run.branch(2 * i, x)
                x = x + run.branch(2 * i + 1, x)
                continue
            weight = (x @ run.of(i, "router.weight"))[..., None]
            hidden = F.relu(run.linear(f"residual.{i}.predictor.hidden", run.rms(x)))
            runs = (hidden @ run.of(i, "predictor.out.weight"))[..., None] + run.of(i, "predictor.out.bias") > 0
            a = torch.where(runs, run.branch(2 * i, x, runs), 0)
            x = torch.where(runs, x + weight * (a + run.branch(2 * i + 1, x + a)), x)
        return x


class LayerNormScaling(Policy):
    kind = "lns"

    def forward(self, run, x):
        for l in run.subs:
            x = x + run.sub(l, run.norm(l, x) / math.sqrt(run.depth(l)))
        return x


class PostNorm(Policy):
    kind = "postnorm"
    final_norm = False

    def carry(self, run):
        """What the stream is multiplied by before the write is added."""
        return 1.0

    def forward(self, run, x):
        for l in run.subs:
            x = run.norm(l, self.carry(run) * x + run.sub(l, x))
        return x


class DeepNorm(PostNorm):
    kind = "deepnorm"

    def carry(self, run):
        return (2 * run.settings["full_depth"]) ** 0.25


class MixLn(Policy):
    kind = "mixln"

    def forward(self, run, x):
        post = math.floor(run.settings["post_fraction"] * run.settings["full_depth"])
        for l in run.subs:
            x = run.norm(l, x + run.sub(l, x)) if run.depth(l) <= post else x + run.branch(l, x)
        return x


class OutNorm(Policy):
    kind = "outnorm"

    def forward(self, run, x):
        for l in run.subs:
            x = x + run.norm(l, run.sub(l, x))
        return x


class Sandwich(Policy):
    kind = "sandwich"

    def shapes(self, settings, d, blocks):
        gated = settings.get("gate_temperature") is not None
        own = every(range(2 * blocks), {"gate": (d,)} if gated else {"post_norm": (d,)})
        if settings.get("block_scale"):
            own |= {f"block.{i}.scale": (1,) for i in range(1, blocks + 1)}
        return own | ({"embed_norm": (d,)} if settings.get("embed_norm") else {})

    def add(self, run, l, x, y):
        """The stream and the normalised write, each with its weight."""
        temperature = run.settings.get("gate_temperature")
        if temperature is not None:
            gate = torch.sigmoid(run.of(l, "gate") / temperature)
            return (1 - gate.square()).clamp_min(1e-3).sqrt() * x + gate * y
        y = y * run.of(l, "post_norm")
        if not run.settings.get("scaled"):
            return x + y
        parts = 2 * run.depth(l) + l % 2
        return (math.sqrt(parts - 1) * x + y) / math.sqrt(parts)

    def forward(self, run, x):
        if run.settings.get("embed_norm"):
            x = run.rms(x) * run.get("residual.embed_norm")
        for l in run.subs:
            x = self.add(run, l, x, run.rms(run.branch(l, x)))
            if l % 2 and run.settings.get("block_scale"):
                x = x * run.of(f"block.{l // 2 + 1}", "scale")
        return x


class Keel(Policy):
    kind = "keel"
    final_norm = False

    def shapes(self, settings, d, blocks):
        # The first attention of the whole model has none.
        places = [l for l in range(2 * blocks) if settings["depths"][l // 2] or l % 2]
        return every(places, {"post_norm": (d,)})

    def forward(self, run, x):
        alpha = run.settings.get("alpha") or 2 * run.settings["full_depth"]
        for l in run.subs:
            first = run.depth(l) == 1
            x = (1 if first else alpha) * x + run.branch(l, x)
            if l % 2 or not first:
                x = run.rms(x) * run.of(l, "post_norm")
        return x


class Lambdas(Policy):
    kind = "lambdas"

    def shapes(self, settings, d, blocks):
        own = every([f"block.{i}" for i in range(1, blocks + 1)], {"resid": (1,), "x0": (1,)})
        return own | ({"out.backout": (1,)} if settings.get("backout") else {})

    def forward(self, run, x):
        start = middle = x = run.rms(x)
        for i in run.blocks:
            x = run.of(f"block.{i + 1}", "resid") * x + run.of(f"block.{i + 1}", "x0") * start
            for l in (2 * i, 2 * i + 1):
                x = x + run.branch(l, x)
            if run.settings["depths"][i] <= run.settings["full_depth"] // 2:
                middle = x
        return x - run.of("out", "backout") * middle if run.settings.get("backout") else x


class Highway(Policy):
    kind = "highway"

    def shapes(self, settings, d, blocks):
        vector = settings["gate"] == "vector"
        gate = {"gate.weight": (d, d) if vector else (d,), "gate.bias": (d if vector else 1,)}
        return every(range(2 * blocks), gate)

    def forward(self, run, x):
        for l in run.subs:
            weight, bias, seen = run.of(l, "gate.weight"), run.of(l, "gate.bias"), run.rms(x)
            score = seen @ weight.T if weight.dim() == 2 else (seen @ weight)[..., None] / math.sqrt(x.shape[-1])
            x = torch.lerp(x, run.branch(l, x), torch.sigmoid(score + bias).expand_as(x))
        return x


class DenseFormer(Policy):
    kind = "denseformer"

    def shapes(self, settings, d, blocks):
        return {f"block.{i}.weights": (i + 1,) for i in range(1, blocks + 1)}

    def forward(self, run, x):
        outputs = [x]
        for i in run.blocks:
            for l in (2 * i, 2 * i + 1):
                x = x + run.branch(l, x)
            outputs.append(x)
            x = torch.einsum("j,jbtd->btd", run.of(f"block.{i + 1}", "weights"), torch.stack(outputs))
        return x


class Mudd(Policy):
    kind = "mudd"

    def shapes(self, settings, d, blocks):
        found, norms = {}, settings.get("norms", False)
        if norms:
            found["block.0.source_norm"] = (d,)
        for i in range(1, blocks + 1):
            ways = 1 if i == blocks else settings["ways"]
            m = ways * (i + 1)
            own = {"weights": (ways, i + 1), "down": (m, d), "up": (m, m)}
            if norms:
                own |= dict.fromkeys(("source_norm", "weight_norm", "out_norm"), (d,))
            found |= every([f"block.{i}"], own)
        apart = range(2, 2 * blocks, 2) if settings["ways"] == 4 else []
        return found | every(apart, {"k_norm": (d,), "v_norm": (d,)})

    def forward(self, run, x):
        norms, apart = run.settings.get("norms", False), None
        source = lambda i, x: run.rms(x) * run.of(f"block.{i}", "source_norm") if norms else x
        sources = [source(0, x)]
        for i in run.blocks:
            x = x + (run.apart(2 * i, *apart) if apart else run.branch(2 * i, x))
            x = x + run.branch(2 * i + 1, x)
            sources.append(source(i + 1, x))
            end = lambda name: run.of(f"block.{i + 1}", name)
            seen = run.rms(x) * end("weight_norm") if norms else run.rms(x)
            weights = F.gelu(seen @ end("down").T) @ end("up").T
            weights = weights.unflatten(-1, (-1, i + 2)) + end("weights")
            *apart, last = torch.einsum("btwj,jbtd->wbtd", weights, torch.stack(sources))
            if norms:
                apart, last = [x + way for way in apart], x + end("out_norm") * run.rms(last)
            x = last
        return x


class SiameseNorm(Policy):
    kind = "siamese"

    def shapes(self, settings, d, blocks):
        return every([*range(2 * blocks), "out"], {"post_norm": (d,), "pre_norm": (d,)})

    def forward(self, run, x):
        post = lambda l, v: run.rms(v) * run.of(l, "post_norm")
        pre = lambda l, v: run.rms(v) * run.of(l, "pre_norm")
        y = x
        for l in run.subs:
            x = post(l, x)
            z = run.branch(l, x + pre(l, y))
            x, y = x + z / math.sqrt(2 * run.depth(l)), y + z
        return post("out", x) + pre("out", y)


def streams_of(run, x):
    """The same vector in every stream, [B, T, n, d], or the vector times a scale of each."""
    if run.settings.get("stream_scale"):
        return x[..., None, :] * run.get("residual.stream_scale")
    return x[..., None, :].expand(*x.shape[:-1], run.settings["streams"], x.shape[-1])


def stream_scales(settings, d):
    return {"stream_scale": (settings["streams"], d)} if settings.get("stream_scale") else {}


class HyperConnections(Policy):
    kind = "hc"

    def shapes(self, settings, d, blocks):
        n = settings["streams"]
        parts = {"pre": (n,), "res": (n, n), "post": (n,)}
        if settings["dynamic"]:
            parts |= {"norm": (d,), "pre_weight": (d,), "res_weight": (d, n), "post_weight": (d,)}
            parts |= {"mix_scale": (1,), "post_scale": (1,)}
        if settings.get("identity"):
            parts = {part: shape for part, shape in parts.items() if not part.startswith("res")}
        return every(range(2 * blocks), parts) | stream_scales(settings, d)

    def forward(self, run, x):
        streams, mixes = streams_of(run, x), not run.settings.get("identity")
        for l in run.subs:
            pre, post = run.of(l, "pre"), run.of(l, "post")
            res = run.of(l, "res") if mixes else None
            if run.settings["dynamic"]:
                seen = run.rms(streams) * run.of(l, "norm")
                mix, out = run.of(l, "mix_scale"), run.of(l, "post_scale")
                pre = pre + mix * torch.tanh(seen @ run.of(l, "pre_weight"))
                if mixes:
                    res = res + mix * torch.tanh(seen @ run.of(l, "res_weight"))
                post = post + out * torch.tanh(seen @ run.of(l, "post_weight"))
            write = run.branch(l, (pre[..., None] * streams).sum(-2))
            mixed = res.transpose(-1, -2) @ streams if mixes else streams
            streams = mixed + post[..., None] * write[..., None, :]
        return streams.sum(-2)


class ManifoldHyperConnections(Policy):
    kind = "mhc"

    def mixing_scores(self, n):
        """How many scores say how the streams are mixed."""
        return n * n

    def mixing(self, run, scores, n):
        """Sinkhorn's iterations: columns and rows sum to one in turn, but for an epsilon."""
        epsilon = run.settings.get("epsilon", 0.0)
        mix = torch.softmax(scores.unflatten(-1, (n, n)), -2) + epsilon
        for turn in range(1, 2 * run.settings["sinkhorn_iters"]):
            mix = mix / (mix.sum(-1 if turn % 2 else -2, keepdim=True) + epsilon)
        return mix

    def shapes(self, settings, d, blocks):
        n = settings["streams"]

        def maps(sizes):
            return {
                f"{part}_{name}": shape
                for part, m in sizes.items()
                for name, shape in {"weight": (n * d, m), "bias": (m,), "scale": (1,)}.items()
            }

        mixed = {} if settings.get("identity") else {"res": self.mixing_scores(n)}
        out = every(["out"], maps({"pre": n})) if settings.get("readout") == "gated" else {}
        each = every(range(2 * blocks), maps({"pre": n, "post": n} | mixed))
        return each | out | stream_scales(settings, d)

    def forward(self, run, x):
        settings, streams = run.settings, streams_of(run, x)
        n, epsilon, single = settings["streams"], settings.get("epsilon", 0.0), settings.get("single_pass")
        multiplier, post_epsilon = settings.get("post_multiplier", 2.0), settings.get("post_epsilon", 0.0)

        def score(l, part):
            weight, bias, scale = (run.of(l, f"{part}_{name}") for name in ("weight", "bias", "scale"))
            return scale * (run.rms(streams.flatten(-2)) @ weight) + bias

        def read(weights):
            return (weights[..., None] * streams).sum(-2)

        # In a single pass a sub-layer reads with the weights that the one before it found.
        handed_on = torch.eye(n, device=x.device)[0]
        for l in run.subs:
            pre = torch.sigmoid(score(l, "pre")) + epsilon
            post = multiplier * torch.sigmoid(score(l, "post")) + post_epsilon
            mixed = streams if settings.get("identity") else self.mixing(run, score(l, "res"), n) @ streams
            write = run.branch(l, read(handed_on if single else pre))
            streams, handed_on = mixed + post[..., None] * write[..., None, :], pre
        if single:
            return read(handed_on)
        if settings.get("readout") == "gated":
            return read(torch.sigmoid(score("out", "pre")) + epsilon)
        return streams.mean(-2) if settings.get("readout") == "mean" else streams.sum(-2)


class ManifoldLite(ManifoldHyperConnections):
    kind = "mhc_lite"

    def mixing_scores(self, n):
        return math.factorial(n)

    def mixing(self, run, scores, n):
        """A mean of all permutations."""
        permutations = torch.tensor(list(itertools.permutations(range(n))), device=scores.device)
        return torch.einsum("btk,kij->btij", torch.softmax(scores, -1), F.one_hot(permutations).float())


def pool(run, query, sources):
    """The sources [B, T, n, d], weighted by how well each fits the query."""
    return (torch.softmax(run.rms(sources) @ query, -1)[..., None] * sources).sum(-2)


class AttentionResiduals(Policy):
    kind = "attnres"

    def size(self, settings, subs):
        """Sub-layers to a block."""
        blocks = settings.get("blocks", 0)
        return settings.get("block_size", 0) or (math.ceil(subs / blocks) if blocks else 1)

    def shapes(self, settings, d, blocks):
        delta, found = settings.get("delta", False), {}
        first = self.size(settings, 2 * blocks) if delta else 1
        for l in [*range(first, 2 * blocks), *([] if delta else ["out"])]:
            apart = settings.get("ways", 1) > 1 and l != "out" and l % 2 == 0
            own = {"query": (3, d) if apart else (d,)}
            own |= {} if settings.get("normed") else {"key_norm": (d,)}
            found |= every([l], own | ({"k_norm": (d,), "v_norm": (d,)} if apart else {}))
        return found | (every(range(1, 2 * blocks), {"gate": (1,)}) if settings.get("gated") else {})

    def pools(self, run, l, sources):
        """What reader l pools of the sources: once, or for query, key and value."""
        S, heads = torch.stack(sources, -2), run.settings.get("heads", 1)
        queries, keys = run.of(l, "query"), run.rms(S)
        if run.settings.get("normed"):
            queries, S = queries / math.sqrt(S.shape[-1]), keys
        else:
            queries = queries * run.of(l, "key_norm")
        grouped = lambda x: x.unflatten(-1, (heads, -1))
        for query in queries.view(-1, S.shape[-1]):
            weights = torch.softmax(grouped(keys * query).sum(-1), -2)
            yield (weights[..., None] * grouped(S)).sum(-3).flatten(-2)

    def forward(self, run, x):
        size, delta = self.size(run.settings, len(run.subs)), run.settings.get("delta", False)
        closed, open_sum, stream = [x], None, x
        for l in run.subs:
            if l % size == 0 and open_sum is not None:
                closed, open_sum = [*closed, open_sum], None
            sources = closed if delta or open_sum is None else [*closed, open_sum]
            h = [x]
            if delta and l:
                pooled = next(self.pools(run, l, sources)) if l >= size else x
                h = [stream + (run.of(l, "gate") if run.settings.get("gated") else 1.0) * pooled]
            elif l:
                h = list(self.pools(run, l, sources))
            write = run.apart(l, *h) if len(h) > 1 else run.branch(l, *h)
            open_sum, stream = write if open_sum is None else open_sum + write, stream + write
        return stream if delta else next(self.pools(run, "out", [*closed, open_sum]))


class MultiGate(Policy):
    kind = "mgr"

    def shapes(self, settings, d, blocks):
        n, competitive = settings["streams"], settings["gate"] == "competitive"
        pools = every([*range(1, 2 * blocks), "out"], {"pool.weight": (d,)})
        return pools | every(range(n - 1, 2 * blocks), {"gate.weight": (d,), "gate.bias": (n + competitive,)})

    def forward(self, run, x):
        n, scale = run.settings["streams"], 1 / math.sqrt(x.shape[-1])
        streams = x[..., None, :]
        for l in run.subs:
            h = pool(run, scale * run.of(l, "pool.weight"), streams) if l else x
            if l < n - 1:
                streams = torch.cat([streams, run.branch(l, h)[..., None, :]], -2)
                continue
            score, bias = run.rms(streams) @ (scale * run.of(l, "gate.weight")), run.of(l, "gate.bias")
            if run.settings["gate"] == "independent":
                gates = torch.sigmoid(score + bias)
            else:
                forget = bias[:1].expand(*score.shape[:-1], 1)
                gates = torch.softmax(torch.cat([forget, score + bias[1:]], -1), -1)[..., 1:]
            widest = gates.amax(-1, keepdim=True)
            runs, exists, off = run.judge(l, widest)
            if off:
                gates = gates * ((widest - off) / widest)
            moved = streams + gates[..., None] * (run.branch(l, h, exists)[..., None, :] - streams)
            streams = torch.where(runs[..., None], moved, streams)
        return pool(run, scale * run.of("out", "pool.weight"), streams)


class NormAgnostic(Policy):
    kind = "nag"
    final_norm = block_norms = False

    def shapes(self, settings, d, blocks):
        c = settings["directions"]
        each = {"alpha": (1,), "directions": (c, d), "bias": (c,), "mix": (c,), "sharpness": (1,)}
        return {"log_gain": (1,)} | every(range(2 * blocks), each)

    def forward(self, run, x):
        unit = lambda v, eps=0.0: v * torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
        size = x.square().mean(-1, keepdim=True).sqrt().clamp_min(1e-18)
        r, s = x / size, size.log() + run.get("residual.log_gain")
        for l in run.subs:
            opened = torch.sigmoid(r @ run.of(l, "directions").T + run.of(l, "bias"))
            modulation = (opened @ torch.softmax(run.of(l, "mix"), -1))[..., None].clamp_min(1e-6)
            gain = run.of(l, "alpha") * modulation ** F.softplus(run.of(l, "sharpness"))
            runs, exists, off = run.judge(l, gain)
            gain = gain - gain.sign() * off
            write = run.sub(l, r, exists)
            write = write - write.mean(-1, keepdim=True)
            write = write - (write * r).sum(-1, keepdim=True) / (r * r).sum(-1, keepdim=True) * r
            r = torch.where(runs, unit(r + gain * unit(write, 1e-12)), r)
            s = torch.where(runs, s + 0.5 * torch.log1p(gain**2), s)
        return r * s.exp() / x.shape[-1]


class GatedResidual(Policy):
    kind = "gr"
    final_norm = block_norms = False

    def shapes(self, settings, d, blocks):
        n, rank = settings["streams"], settings.get("rank") or d // 8
        reads = {"gamma": (n, d), "read_down": (rank, n * d), "read_up": (n * d, rank)}
        return every([*range(2 * blocks), "out"], reads) | every(range(2 * blocks), {"write": (n, n * d)})

    def forward(self, run, x):
        n, streams = run.settings["streams"], streams_of(run, x)

        def read(l):
            """What is read, and all normalised streams in one row."""
            seen = run.rms(streams) * (1 + run.of(l, "gamma"))
            row = seen.flatten(-2) / n
            opened = torch.sigmoid(F.silu(row @ run.of(l, "read_down").T) @ run.of(l, "read_up").T)
            return (opened.view_as(seen) * seen).mean(-2), row

        for l in run.subs:
            h, row = read(l)
            gates = 2 * torch.sigmoid(row @ run.of(l, "write").T)
            widest = gates.amax(-1, keepdim=True)
            runs, exists, off = run.judge(l, widest)
            if off:
                gates = gates * ((widest - off) / widest)
            moved = streams + gates[..., None] * run.sub(l, h, exists)[..., None, :]
            streams = torch.where(runs[..., None], moved, streams)
        return read("out")[0]


class DeepDelta(Policy):
    kind = "ddl"

    def shapes(self, settings, d, blocks):
        n = settings.get("channels", 1)
        each = {"beta_weight": (d,), "beta_bias": (1,), "target_weight": (n, d)}
        if settings.get("target", "sigmoid") == "sigmoid":
            each["target_bias"] = (n,)
        reads = every([*range(2 * blocks), "out"], {"read": (d, n)}) if n > 1 else {}
        return every(range(2 * blocks), each) | reads

    def forward(self, run, x):
        n, linear = run.settings.get("channels", 1), run.settings.get("target", "sigmoid") == "linear"
        state = x[..., None].expand(*x.shape, n)

        def read(l):
            return (state * run.of(l, "read")).sum(-1) if n > 1 else state[..., 0]

        for l in run.subs:
            h = read(l)
            seen, weight = run.norm(l, h), run.of(l, "target_weight")
            beta = 2 * torch.sigmoid((seen @ run.of(l, "beta_weight"))[..., None] + run.of(l, "beta_bias"))
            target = seen @ weight.T if linear else 4 * torch.sigmoid(h @ weight.T + run.of(l, "target_bias"))
            runs, exists, off = run.judge(l, beta)
            write = run.sub(l, seen, exists)
            k = write * torch.rsqrt(write.square().sum(-1, keepdim=True) + 1e-10)
            step = (beta - off) * (target - (k[..., None] * state).sum(-2))
            state = torch.where(runs[..., None], state + k[..., None] * step[..., None, :], state)
        return read("out")


# ---------------------------------------------------------------- model


class HadalForCausalLM(PreTrainedModel, GenerationMixin):
    config_class = HadalConfig

    def __init__(self, config):
        super().__init__(config)
        for name, shape in shapes(config.hadal).items():
            declare(self, name, shape)
        self.post_init()

    def _init_weights(self, module):
        """Nothing: models are trained by hadal, and a file has every parameter."""

    def get_input_embeddings(self):
        return self.embed

    def get_output_embeddings(self):
        """None: transformers would tie and resize it, and a tied head is the embedding here anyway."""

    def forward(
        self, input_ids, attention_mask=None, position_ids=None, past_key_values=None, use_cache=None, labels=None, **_
    ):
        if use_cache and past_key_values is None:
            past_key_values = DynamicCache()
        past = past_key_values.get_seq_length() if past_key_values is not None else 0
        time, device = input_ids.shape[1], input_ids.device
        index = torch.arange(past + time, device=device)
        shown = torch.ones_like(index)[None] if attention_mask is None else attention_mask[:, : past + time]
        if position_ids is None:
            position_ids = (shown.cumsum(-1) - 1).clamp_min(0)[:, past:]
        ago = index[past:, None] - index
        run = Pass(self, position_ids, ago, shown.bool(), past_key_values)
        embedded = F.embedding(input_ids, self.embed.weight).float()
        policy = policy_of(run.settings)
        read = policy.forward(run, embedded)
        if policy.final_norm:
            read = run.rms(read) * run.get("norm.weight")
        head = self.embed if self.config.hadal["tie_embeddings"] else self.head
        logits = F.linear(read.to(head.weight.dtype), head.weight).float()
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten().to(device), ignore_index=-100)
        return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past_key_values)
