"""An adapter in PyTorch with gradients: prenorm and hyper-connections (`hc`) as modules, written from the contract alone.

    python check.py example_torch.py ../golden/prenorm ../golden/hc-static ../golden/hc-dynamic

Your own: give `module_for` your module. Its parameters must have the names of model.safetensors, or be renamed by
`load_state_dict` and back in `gradients`.
"""

import torch
from torch import nn
from torch.nn import functional as F

torch.set_default_dtype(torch.float64)


def rms(x, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


class Stream(nn.Module):
    """A decoder whose parameters are named as in model.safetensors."""

    def __init__(self, config, weights):
        super().__init__()
        self.config, self.eps = config, config["norm_eps"]
        # A dot in a name would be a submodule.
        self.names = {name: name.replace(".", "/") for name in weights}
        for name, value in weights.items():
            self.register_parameter(self.names[name], nn.Parameter(torch.tensor(value, dtype=torch.float64)))

    def w(self, name):
        return getattr(self, self.names[name])

    def sub_layer(self, l, h):
        """F_l(h)."""
        i, half = l // 2, "attn" if l % 2 == 0 else "mlp"
        x = rms(h, self.eps) * self.w(f"layers.{i}.{half}_norm.weight")
        w = lambda name: self.w(f"layers.{i}.{half}.{name}.weight")
        if half == "mlp":
            up = x @ w("up").T
            inner = up.relu().square() if self.config["mlp"] == "relu2" else F.silu(x @ w("gate").T) * up
            return inner @ w("down").T
        c = self.config
        split = lambda y, n: y.unflatten(-1, (n, c["head_dim"])).transpose(1, 2)
        q, k, v = (split(x @ w(n).T, c["n_heads" if n == "q" else "n_kv_heads"]) for n in "qkv")
        if c["qk_norm"]:
            q, k = rms(q, self.eps) * w("q_norm"), rms(k, self.eps) * w("k_norm")
        k, v = (y.repeat_interleave(c["n_heads"] // c["n_kv_heads"], 1) for y in (self.rotate(k), v))
        mixed = F.scaled_dot_product_attention(self.rotate(q), k, v, is_causal=True)
        return mixed.transpose(1, 2).flatten(-2) @ w("o").T

    def rotate(self, x):
        half = x.shape[-1] // 2
        angle = torch.outer(
            torch.arange(x.shape[-2], dtype=x.dtype),
            self.config["rope_theta"] ** (-torch.arange(half, dtype=x.dtype) / half),
        )
        a, b = x.split(half, -1)
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    def through_depth(self, x, seen):
        raise NotImplementedError

    def forward(self, ids):
        seen = {}
        out = self.through_depth(self.w("embed.weight")[ids], seen)
        seen["out"] = out
        head = self.w("embed.weight" if self.config["tie_embeddings"] else "head.weight")
        seen["logits"] = rms(out, self.eps) * self.w("norm.weight") @ head.T
        return seen


class PreNorm(Stream):
    """x += F_l(x)"""

    def through_depth(self, x, seen):
        for l in range(2 * self.config["n_layers"]):
            seen[f"h.{l}"] = x
            x = x + self.sub_layer(l, x)
        return x


class HyperConnections(Stream):
    """h = sum_i pre_i H_i; H'_j = sum_i res_ij H_i + post_j F_l(h); out = sum_i H_i"""

    def through_depth(self, x, seen):
        settings = self.config["residual"]
        H = x[:, :, None].expand(-1, -1, settings["streams"], -1)
        for l in range(2 * self.config["n_layers"]):
            w = lambda name: self.w(f"residual.{l}.{name}")
            pre, res, post = w("pre"), w("res"), w("post")
            if settings["dynamic"]:
                N = rms(H, self.eps) * w("norm")
                pre = pre + w("mix_scale") * torch.tanh(N @ w("pre_weight"))
                res = res + w("mix_scale") * torch.tanh(N @ w("res_weight"))
                post = post + w("post_scale") * torch.tanh(N @ w("post_weight"))
            h = (pre[..., None] * H).sum(2)
            seen[f"h.{l}"] = h
            H = res.transpose(-1, -2) @ H + post[..., None] * self.sub_layer(l, h)[:, :, None]
        return H.sum(2)


def module_for(config, weights):
    kinds = {"prenorm": PreNorm, "hc": HyperConnections}
    kind = config["residual"]["kind"]
    if kind not in kinds or config["depth_kv"] != "none":
        raise NotImplementedError(f"this example knows {', '.join(kinds)}, not {kind}")
    return kinds[kind](config, weights)


def run(config, weights, input_ids, target_ids):
    model = module_for(config, weights)
    found = model(torch.tensor(input_ids, dtype=torch.long))
    if target_ids is not None:
        targets = torch.tensor(target_ids, dtype=torch.long)
        found["loss"] = F.cross_entropy(found["logits"].flatten(0, 1), targets.flatten())
        found["loss"].backward()
        for name in model.names:
            # What has no effect has no gradient in torch, and a zero here.
            grad = model.w(name).grad
            found[f"grad.{name}"] = torch.zeros_like(model.w(name)) if grad is None else grad
    return found
