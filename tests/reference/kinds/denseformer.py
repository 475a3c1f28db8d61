"""Learned averages over the outputs of all blocks."""

from .kind import ATTENTION, BOTH, Kind, around, case


class DenseFormer(Kind):
    kind = "denseformer"
    cases = [
        case(n_layers=1),
        case(n_layers=5),
        case(n_layers=3, depth_kv=BOTH, keep=True),
        case(n_layers=4, depth_kv=ATTENTION),
    ]

    def parameters(self, cfg):
        blocks = range(1, cfg["n_layers"] + 1)
        return {f"block.{i}.weights": ((i + 1,), around(0.4, 0.3)) for i in blocks}

    def forward(self, run, x):
        outputs = [x]
        for block in range(1, run.cfg["n_layers"] + 1):
            for l in (2 * block - 2, 2 * block - 1):
                x = x + run.F(l, x)
            outputs.append(x)
            x = sum(a * X for a, X in zip(run.params[f"residual.block.{block}.weights"], outputs, strict=True))
        return x
