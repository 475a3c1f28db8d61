"""The stream of nanochat: scaled before every block, with the embedding added again."""

from .kind import ATTENTION, BOTH, Kind, around, case


class Lambdas(Kind):
    kind = "lambdas"
    optional = {"backout": {True: "backout"}}
    cases = [
        case(n_layers=1),
        case(n_layers=4),
        case(n_layers=3, depth_kv=BOTH, keep=True),
        case({"backout": True}, n_layers=1),
        case({"backout": True}, n_layers=2, depth_kv=ATTENTION),
        case({"backout": True}, n_layers=5, mlp="swiglu", keep=True),
    ]

    def parameters(self, cfg):
        numbers = {"resid": ((1,), around(1.1, 0.2)), "x0": ((1,), around(0.3, 0.2))}
        blocks = range(1, cfg["n_layers"] + 1)
        found = {f"block.{i}.{name}": value for i in blocks for name, value in numbers.items()}
        return found | ({"out.backout": ((1,), around(0.3, 0.1))} if cfg["residual"].get("backout") else {})

    def forward(self, run, x):
        n = run.cfg["n_layers"]
        start = x = run.rms(x)
        for i in range(n):
            of = lambda name: run.params[f"residual.block.{i + 1}.{name}"]
            x = of("resid") * x + of("x0") * start
            x = x + run.F(2 * i, x)
            x = x + run.F(2 * i + 1, x)
            if i == n // 2:
                middle = x
        return x - run.params["residual.out.backout"] * middle if run.cfg["residual"].get("backout") else x
