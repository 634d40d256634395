"""What `gpu.sh` asks of a card itself: is fused attention right there, and does a resumed run go on
as it was.

    python benchmarks/_gpu.py check             fused against XLA: output, all gradients, dropout
                                                bits
    python benchmarks/_gpu.py resume CORPUS WORKDIR [--config.KEY=VALUE ...]

`check` compares with float32 products on the same device, relative to the largest element. `resume`
trains the quick start's model once undisturbed and once with SIGTERM and a second call, and
compares the losses of all steps.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LIMITS = {"float32": 1e-4, "bfloat16": 4 * 2.0**-7}
"""As in tests/kernels; the sum of three products of TF32 is a few roundoffs from that of
float32.
"""


def check() -> int:
    import jax
    import jax.numpy as jnp
    import numpy as np

    sys.path.append(os.path.join(ROOT, "tests"))
    from attention_cases import cast, draw, draw_documents, without_positions

    from xlnet_jax.kernels import fused, xla
    from xlnet_jax.kernels.dropout import AttentionDropout

    device, wrong = jax.devices()[0], 0
    kernel = fused.KERNELS[fused.device_family(device.device_kind)]
    run = jax.jit(lambda attend, a: xla.differentiated(attend, a)[::2], static_argnums=0)

    def widened(x):
        return x.astype(jnp.float32) if jnp.result_type(x) == jnp.bfloat16 else x

    def exact(a):
        with jax.default_matmul_precision("highest"):
            return run(xla.attend, jax.tree.map(widened, a))

    def bits(attend, a):
        """Which keys each query keeps: the values of E keys at a time are the unit vectors."""
        K, E = a.v_BKHE.shape[1::2]
        forward, units = jax.jit(lambda a: attend(a)[0]), np.eye(E, dtype=np.float32)[:, None]
        found = []
        for first in range(0, K, E):
            v_BKHE = np.zeros(a.v_BKHE.shape, np.float32)
            v_BKHE[:, first : first + E] = units[: K - first]
            found.append(
                np.asarray(forward(dataclasses.replace(a, v_BKHE=v_BKHE.astype(a.v_BKHE.dtype))))
                != 0
            )
        return np.concatenate(found, axis=-1)

    documents = draw_documents, dict(T=512, lengths=[(130, 250, 70), (300, 200)], H=4, E=64)
    large = draw, dict(T=512, M=384, H=4, E=64)
    small = draw, dict(T=130, M=20, H=3, E=100, tables=2)
    for (made, sizes), dtype, chosen, near in [
        *((large, dtype, chosen, None) for dtype in LIMITS for chosen in (None, 85)),
        *((large, dtype, chosen, 64) for dtype in LIMITS for chosen in (None, 85)),
        *((documents, "float32", chosen, 64) for chosen in (None, 85)),
        (small, "float32", None, None),
        (small, "float32", 37, None),
    ]:
        arguments = made(**sizes, chosen=chosen)
        if near:
            arguments = without_positions(arguments, near)
        arguments, dropout = (
            cast(arguments, jnp.dtype(dtype)),
            AttentionDropout(jnp.uint32(4), 0.1, 1),
        )
        arguments = dataclasses.replace(
            arguments, dropout=dropout, max_distance=50 if "tables" in sizes else None
        )
        began = time.perf_counter()
        ours, theirs = jax.device_get(run(kernel, arguments)), jax.device_get(exact(arguments))
        errors = {}
        for (path, x), y in zip(
            jax.tree.leaves_with_path(ours), jax.tree.leaves(theirs), strict=True
        ):
            x, y = np.float32(x), np.float32(y)
            errors[jax.tree_util.keystr(path)] = float(
                np.abs(x - y).max() / max(np.abs(y).max(), 1)
            )
        # Scores of 0: every visible key of a query has the same probability, which does not vanish.
        flat = dataclasses.replace(
            arguments,
            q_BQHE=0 * arguments.q_BQHE,
            k_BKHE=0 * arguments.k_BKHE,
            biases={name: 0 * x for name, x in arguments.biases.items()},
        )
        kept, expected = bits(kernel, flat), bits(xla.attend, flat)
        good = max(errors.values()) <= LIMITS[dtype] and bool(np.array_equal(kept, expected))
        wrong += not good
        print(
            json.dumps(
                {
                    "sizes": sizes,
                    "dtype": dtype,
                    "targets": chosen,
                    "window": near,
                    "ok": good,
                    "limit": LIMITS[dtype],
                    "largest": max(errors.values()),
                    "keys_kept": int(expected.sum()),
                    "keys_that_differ": int((kept != expected).sum()),
                    "seconds": round(time.perf_counter() - began, 1),
                    "errors": {name: float(f"{error:.2e}") for name, error in errors.items()},
                }
            ),
            flush=True,
        )
    print(f"{device.device_kind}, jax {jax.__version__}: {wrong} cases are wrong")
    return wrong


def resume(corpus: str, workdir: str, *words: str) -> int:
    config = os.path.join(ROOT, "configs", "quickstart.py")
    train = [
        sys.executable,
        "-m",
        "xlnet_jax",
        "train",
        f"--config={config}",
        f"--config.data.corpus={corpus}",
        *words,
    ]
    whole, parts = (os.path.join(workdir, name) for name in ("undisturbed", "stopped"))
    subprocess.run([*train, f"--workdir={whole}"], check=True)
    stopped = subprocess.Popen([*train, f"--workdir={parts}"])
    metrics = os.path.join(parts, "metrics.jsonl")
    while stopped.poll() is None and not (os.path.exists(metrics) and os.path.getsize(metrics)):
        time.sleep(0.02)
    stopped.send_signal(signal.SIGTERM)
    code = stopped.wait()
    at = losses(parts)
    subprocess.run([*train, f"--workdir={parts}"], check=True)
    one, two = losses(whole), losses(parts)
    different = [step for step in one if one[step] != two.get(step)]
    result = {
        "words": words,
        "exit_code": code,
        "stopped_at": max(at, default=0),
        "steps": len(one),
        "steps_resumed": len(two),
        "different": len(different),
        "first_different": different[0] if different else None,
        "largest_difference": max(
            (abs(one[step] - two[step]) for step in one if step in two), default=None
        ),
        "last_losses": [one[max(one)], two[max(two)]],
    }
    print(json.dumps(result))
    return len(different)


def losses(workdir: str) -> dict[int, float]:
    with open(os.path.join(workdir, "metrics.jsonl"), encoding="utf-8") as lines:
        return {line["step"]: line["loss"] for line in map(json.loads, lines)}


if __name__ == "__main__":
    verb, *arguments = sys.argv[1:]
    sys.exit(min(1, {"check": check, "resume": resume}[verb](*arguments)))
