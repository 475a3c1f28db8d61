"""Makes tests/golden-hf: tiny random models of `transformers` with their logits on fixed tokens.

    python tests/reference/make_hf_goldens.py tests/golden-hf

Needs torch, transformers and safetensors. The committed files were made with transformers 5.22.2 and torch 2.15;
tests read them and need no Python. Weights are far larger than at a usual start, so that attention is not flat and
positions matter; logits are computed in f32 whatever the weights are stored as.
"""

import json
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import (
    LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM,
    Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM,
)

FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
SIZES = dict(
    vocab_size=64, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, head_dim=8, max_position_embeddings=64, rms_norm_eps=1e-5,
    bos_token_id=1, eos_token_id=[2, 3], tie_word_embeddings=False,
)
TOKENS = [(7 * i * i + 3 * i + 5) % 64 for i in range(24)]


def rope(kind, **settings):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 1000.0, **settings}}


YARN = dict(factor=4.0, original_max_position_embeddings=16)
LLAMA3 = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
# Name: family, settings, how it is stored.
CASES = {
    "llama": ("llama", {}, {}),
    "llama-tied-mha": ("llama", dict(tie_word_embeddings=True, num_key_value_heads=2), {}),
    "llama-biases": ("llama", dict(attention_bias=True, mlp_bias=True), {}),
    "llama-wide-heads": ("llama", dict(head_dim=12), {}),
    "llama-linear": ("llama", rope("linear", factor=2.5), {}),
    "llama-dynamic": ("llama", dict(max_position_embeddings=10, **rope("dynamic", factor=3.0)), {}),
    "llama-llama3": ("llama", rope("llama3", **LLAMA3), {}),
    "llama-yarn": ("llama", rope("yarn", **YARN), {}),
    "llama-yarn-all-settings": (
        "llama",
        rope("yarn", beta_fast=4.0, beta_slow=0.5, mscale=1.0, mscale_all_dim=0.5, truncate=False, **YARN),
        {},
    ),
    "llama-older-keys": ("llama", rope("llama3", **LLAMA3), {"older": True}),
    "llama-sharded": ("llama", {}, {"shard": "12KB"}),
    "llama-bf16": ("llama", {}, {"dtype": torch.bfloat16}),
    "llama-f16": ("llama", dict(tie_word_embeddings=True), {"dtype": torch.float16}),
    "mistral": ("mistral", dict(sliding_window=5), {}),
    "mistral-no-window": ("mistral", dict(sliding_window=None), {}),
    "qwen2": ("qwen2", {}, {}),
    "qwen2-window": ("qwen2", dict(use_sliding_window=True, sliding_window=4, max_window_layers=1), {}),
    "qwen3": ("qwen3", {}, {}),
    "qwen3-biases": ("qwen3", dict(attention_bias=True), {}),
}


def randomise(model, seed):
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        with torch.no_grad():
            if "norm" in name:
                parameter.copy_(1.0 + 0.3 * noise)
            elif parameter.dim() == 1:
                parameter.copy_(0.5 * noise)
            else:
                parameter.copy_(noise * (1.0 if "embed" in name else 2.0 / parameter.shape[1] ** 0.5))


def older_keys(path):
    """Rewrites a config the way transformers 4 wrote it."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope
    path.write_text(json.dumps(config, indent=2) + "\n")


def make(out, name, seed):
    family, settings, storage = CASES[name]
    config_class, model_class = FAMILIES[family]
    config = config_class(**{**SIZES, **settings})
    config._attn_implementation = "eager"
    model = model_class(config).eval()
    randomise(model, seed)
    dtype = storage.get("dtype", torch.float32)
    model = model.to(dtype)
    directory = out / name
    shutil.rmtree(directory, ignore_errors=True)
    model.save_pretrained(directory, max_shard_size=storage.get("shard", "5GB"))
    with torch.no_grad():
        # As stored, computed in f32; a model turned to f32 would keep rotations of the narrow type.
        stored = model_class.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()
        logits = stored(torch.tensor([TOKENS])).logits[0]
    assert logits.isfinite().all()
    tokens = torch.tensor(TOKENS, dtype=torch.int32)
    save_file({"input_ids": tokens, "logits": logits.contiguous()}, directory / "logits.safetensors")
    if storage.get("older"):
        older_keys(directory / "config.json")
    return logits


def main():
    out = Path(sys.argv[1])
    found = {name: make(out, name, seed) for seed, name in enumerate(CASES, start=1)}
    for name, logits in found.items():
        size = sum(file.stat().st_size for file in (out / name).iterdir())
        print(f"{name:26} {size:6} bytes, logits from {logits.min():.2f} to {logits.max():.2f}")


if __name__ == "__main__":
    main()
