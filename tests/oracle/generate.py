"""Writes the .npz files that `test_oracle.py` replays: XLNet as Hugging Face `transformers`
computes it, in float64.

    python tests/oracle/generate.py

Needs torch and transformers (the extra `peers`). Everything is drawn from fixed seeds; on one
machine the files come out with the same bytes every time.

That library is an independent implementation of the original's graph: it has masks where we have
ranks, one flag for the whole batch where we have a direction per row, and no notion of an empty
memory slot. What it is fed is therefore made here from the original's rules and not from our ranks.
"""

from __future__ import annotations

import os
import re
import sys
import zlib
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import numpy as np
import torch
import transformers
from oracle import replay
from oracle.replay import CASES, SEGMENTS, Arrays, Case

from xlnet_jax.batch import NEVER

CLS, SEP, PAD, FIRST_TEXT = 3, 4, 5, 9
SLOTS, FIRST_PART, SECOND_SENTENCE = 5, 6, 2
DRAWS = 100
ACTIVATIONS = {"gelu": "gelu_new", "gelu_erf": "gelu", "relu": "relu"}


def build(case: Case) -> transformers.XLNetLMHeadModel:
    config = transformers.XLNetConfig(
        vocab_size=case.vocab_size,
        d_model=case.width,
        n_layer=case.layers,
        n_head=case.heads,
        d_inner=case.ff_width,
        ff_activation=ACTIVATIONS[case.activation],
        clamp_len=case.clamp_len,
        mem_len=case.memory_len or None,
        reuse_len=case.reuse_len,
        bi_data=-1 in case.direction,
        dropout=0.0,
        use_mems_train=False,
    )
    model = transformers.XLNetLMHeadModel(config).to(torch.float64).eval()
    computed = model.transformer.relative_positional_encoding

    def in_float64(*args, **kwargs):
        """Its own code, but for the `.float()` in it, which its two streams then fail on."""
        with mock.patch.object(torch.Tensor, "float", torch.Tensor.double):
            return computed(*args, **kwargs)

    model.transformer.relative_positional_encoding = in_float64
    return model


def draw_weights(case: Case, seed: int = 0) -> Arrays:
    """Large, so that attention is far from uniform, and a wrong mask or distance shows; exact in
    float32.
    """
    rng = np.random.default_rng(seed)

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        scale = 1.0 if "word_emb" in name or "mask_emb" in name else np.sqrt(2 / case.width)
        around = 1.0 if name.endswith("layer_norm.weight") else 0.0
        return (around + scale * rng.standard_normal(shape)).astype(np.float32)

    return {
        name: draw(name, tuple(tensor.shape))
        for name, tensor in sorted(build(case).named_parameters())
    }


def hidden_by_blocks(classes: str, order: list[int], first_part: int) -> np.ndarray:
    """Who may not see whom, by the original's rule for permutations within each of two parts, bool
    [T, T].

    Of every position `classes` has a letter (C context, T target, F functional: SEP and CLS), and
    `order` its place in the permutation of its own part. This is for the query stream; the content
    stream sees itself besides.
    """
    T = len(classes)
    hidden = np.ones((T, T), bool)
    for i in range(T):
        for j in range(T):
            i_second, j_second = i >= first_part, j >= first_part
            if i_second != j_second:
                # The first part sees nothing of the second, the second all of the first.
                hidden[i, j] = j_second
            elif classes[j] == "C":
                hidden[i, j] = False
            elif classes[i] == "T":
                hidden[i, j] = not order[j] < order[i]
            elif classes[i] == "F":
                hidden[i, j] = not order[j] <= order[i]
    return hidden


def draw_row(case: Case, rng: np.random.Generator, row: int, last: bool) -> Arrays:
    """One row of one segment: first part, A, SEP, B, SEP, CLS, with padding around it."""
    if case.length == 1:
        return draw_token(case, rng)
    left, right = (case.left_padding[row], case.right_padding[row]) if last else (0, 0)
    T, P, R = case.length, SLOTS, FIRST_PART
    end, positions = T - right, np.arange(T)
    padding = (positions < left) | (positions >= end)
    sentence_b = end - 2 - SECOND_SENTENCE
    tokens = rng.integers(FIRST_TEXT, case.vocab_size, T)
    tokens[[sentence_b - 1, end - 2]], tokens[end - 1], tokens[padding] = SEP, CLS, PAD
    segments = np.where(positions < sentence_b, 0, 1)
    segments[end - 1], segments[padding] = 2, 3
    functional = np.isin(tokens, (SEP, CLS))

    # Targets in both parts.
    count = case.targets[row]
    text = ~functional & ~padding
    of_first = rng.choice(np.flatnonzero(text & (positions < R)), count // 2, replace=False)
    of_second = rng.choice(
        np.flatnonzero(text & (positions >= R)), count - count // 2, replace=False
    )
    chosen = np.sort(np.concatenate([of_first, of_second]))
    target_positions = np.zeros(P, int)
    target_positions[:count] = chosen

    order = np.concatenate([rng.permutation(R), rng.permutation(T - R)])
    target = np.isin(positions, chosen)
    if case.order == "permutation":
        classes = "".join(
            "T" if t else "F" if f else "C" for t, f in zip(target, functional, strict=True)
        )
        hidden = hidden_by_blocks(classes, order.tolist(), R)
        rank = np.where(target | functional, order, -1) + np.where(positions >= R, R + 1, 0)
    elif case.order == "everything":
        hidden, rank = np.zeros((T, T), bool), np.zeros(T, int)
    else:
        hidden, rank = ~np.tri(T, dtype=bool), positions
    return dict(
        tokens=tokens,
        segments=segments if case.segments else np.zeros(T, int),
        rank=np.where(padding, NEVER, rank),
        padding=padding,
        hidden=hidden,
        target_positions=target_positions,
        target_weights=(np.arange(P) < count) * 1.0,
    )


def draw_token(case: Case, rng: np.random.Generator) -> Arrays:
    """A row of a single token, which is a target: it sees itself and the memory."""
    zero = np.zeros(1, int)
    return dict(
        tokens=rng.integers(FIRST_TEXT, case.vocab_size, 1),
        segments=zero + 1,
        rank=zero,
        padding=zero > 0,
        hidden=np.zeros((1, 1), bool),
        target_positions=np.zeros(SLOTS, int),
        target_weights=(np.arange(SLOTS) < 1) * 1.0,
    )


def draw(case: Case, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    rows = [
        [draw_row(case, rng, row, segment == SEGMENTS - 1) for row in range(len(case.direction))]
        for segment in range(SEGMENTS)
    ]
    fed = {
        name: np.stack([[row[name] for row in segment] for segment in rows]) for name in rows[0][0]
    }
    return fed | {"direction": np.array(case.direction)}


class Peer:
    """The other side with its weights: segments in, arrays in the layout of the files out."""

    def __init__(self, case: Case, weights: Arrays) -> None:
        self.case, self.model = case, build(case)
        self.parameters = dict(self.model.named_parameters())
        assert set(self.parameters) == set(weights)
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                if case.tied and name.endswith(("r_w_bias", "r_r_bias", "r_s_bias")):
                    name = re.sub(r"layer\.\d+", "layer.0", name)
                parameter.copy_(torch.tensor(weights[name], dtype=torch.float64))
        # There the first half of a batch is forward and the second backward. So that any row may
        # have any direction, every row goes in twice, once in either half, and only the one is
        # looked at.
        forward = np.array(case.direction) == 1
        rows = np.arange(len(forward))
        self.fed_rows = np.concatenate([rows, rows]) if not forward.all() else rows
        self.kept_rows = np.where(forward, rows, rows + len(rows))

    def __call__(self, fed: Arrays) -> Arrays:
        results: Arrays = {}
        memory = None
        for segment in range(SEGMENTS):
            given = self.arguments(
                {name: array[segment] for name, array in fed.items() if name != "direction"}
            )
            out = self.model(
                **given,
                mems=memory,
                use_mems=self.case.memory_len > 0,
                output_hidden_states=True,
                output_attentions=True,
            )
            memory = out.mems
            kept = np.zeros((self.case.layers, 0, len(self.fed_rows), self.case.width))
            if memory is not None:
                kept = np.stack([layer.numpy() for layer in memory])
            results[f"memory_{segment}"] = kept.swapaxes(1, 2)[:, self.kept_rows]
        out.loss.backward()
        return (
            results | self.outputs(out, fed["target_positions"][-1]) | {"gradient": self.gradient()}
        )

    def arguments(self, fed: Arrays) -> dict[str, torch.Tensor]:
        case, doubled = self.case, {name: array[self.fed_rows] for name, array in fed.items()}
        T, positions, used = (
            fed["tokens"].shape[1],
            doubled["target_positions"],
            doubled["target_weights"] > 0,
        )
        kept = np.isin(np.arange(len(self.fed_rows)), self.kept_rows)
        labels = np.take_along_axis(doubled["tokens"], positions, axis=1)
        labels[~used | ~kept[:, None]] = -100
        given = dict(input_ids=torch.tensor(doubled["tokens"]).long())
        if case.segments:
            given["token_type_ids"] = torch.tensor(doubled["segments"]).long()
        for name, mask in dict(perm_mask=doubled["hidden"], input_mask=doubled["padding"]).items():
            if mask.any():
                given[name] = torch.tensor(mask).double()
        if case.two_streams:
            given["target_mapping"] = torch.tensor(np.eye(T)[positions] * used[..., None])
        else:
            everywhere = np.full((len(labels), T), -100)
            everywhere[np.nonzero(used)[0], positions[used]] = labels[used]
            labels = everywhere
        return given | dict(labels=torch.tensor(labels).long())

    def rows(self, tensor: torch.Tensor) -> np.ndarray:
        return tensor.detach().numpy()[self.kept_rows]

    def outputs(self, out, target_positions: np.ndarray) -> Arrays:
        """`out` of the last segment."""
        rows = np.arange(len(target_positions))[:, None]
        layers = range(self.case.layers)
        results = dict(loss=out.loss.detach().numpy(), logits=self.rows(out.logits))
        if self.case.two_streams:
            # Flat: content and query of the embeddings, of the first layer, and so on.
            contents, queries = out.hidden_states[2::2], out.hidden_states[3::2]
            attention = {
                "attention_content": [a[0] for a in out.attentions],
                "attention_query": [a[1] for a in out.attentions],
            }
            results["query"] = np.stack([self.rows(queries[layer]) for layer in layers])
        else:
            contents, attention = out.hidden_states[1:], {"attention_content": out.attentions}
            results["logits"] = results["logits"][rows, target_positions]
        results["content"] = np.stack([self.rows(contents[layer]) for layer in layers])
        for name, per_layer in attention.items():
            by_row = [
                self.rows(layer).transpose(0, 2, 1, 3)[rows, target_positions]
                for layer in per_layer
            ]
            results[name] = np.stack(by_row).transpose(0, 1, 3, 2, 4)
        return results

    def gradient(self) -> np.ndarray:
        """In the order of the weights. What has no effect there, such as segments that are not
        given, has none.
        """
        tensors = [self.parameters[name] for name in sorted(self.parameters)]
        return np.concatenate(
            [np.zeros(t.numel()) if t.grad is None else t.grad.numpy().ravel() for t in tensors]
        )


def record(case: Case, weights: Arrays, fed: Arrays) -> Arrays:
    return fed | Peer(case, weights)(fed)


def small(array: np.ndarray) -> np.ndarray:
    return array.astype(np.int32) if array.dtype.kind == "i" else array


def evenness(case: Case, weights: Arrays, recorded: Arrays) -> float:
    """Largest value of the smallest gradient by that of the largest."""
    largest = [np.abs(array).max() for array in replay.gradients(case, weights, recorded).values()]
    return min(x for x in largest if x > 0) / max(largest)


def well_conditioned(name: str, case: Case, weights: Arrays) -> Arrays:
    """Of many draws the one whose gradients differ least in size.

    The gradient of a segment term is a sum whose parts all but cancel, in most draws to 1e-3 of the
    others or less: float32 then has few digits of it, and an error would say something about the
    draw instead of about the model.
    """
    draws = (draw(case, zlib.crc32(name.encode()) + attempt) for attempt in range(DRAWS))
    recordings = (
        record(case, weights, {key: small(array) for key, array in fed.items()}) for fed in draws
    )
    return max(recordings, key=lambda recorded: evenness(case, weights, recorded))


def main() -> None:
    torch.set_num_threads(1)
    weights = draw_weights(Case())
    files = {replay.WEIGHTS: weights}
    files |= {name: well_conditioned(name, case, weights) for name, case in CASES.items()}
    total = 0
    print(f"transformers {transformers.__version__}, torch {torch.__version__}")
    for name, arrays in files.items():
        np.savez_compressed(replay.path(name), **arrays)
        size = os.path.getsize(replay.path(name))
        total += size
        print(f"{name:16} {len(arrays):3} arrays {size:8} bytes")
    print(f"{'in all':16} {total:19} bytes")


if __name__ == "__main__":
    main()
