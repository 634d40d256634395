"""BERT, RoBERTa, ALBERT, GPT-2 and ModernBERT as Hugging Face `transformers` computes them, in
float64; writes `families.json`.

    python tests/oracle/families_generate.py

Needs torch and transformers (the extra `peers`). Everything is drawn from fixed seeds.
"""

from __future__ import annotations

import json
import os
import sys
from unittest import mock

os.environ["HF_HUB_OFFLINE"] = "1"
sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import jax
import numpy as np
import torch
import transformers
from oracle import families
from transformers.models.modernbert import modeling_modernbert

from xlnet_jax.config import Config
from xlnet_jax.convert import peers


def model_of(config: Config) -> transformers.PreTrainedModel:
    """The class that an export names, built from the config.json that it writes."""
    said = families.config_json(config)
    settings = transformers.AutoConfig.for_model(**said)
    assert [peers.class_of(config)] == said["architectures"]
    return getattr(transformers, peers.class_of(config))(settings).to(torch.float64).eval()


def turns(
    module: torch.nn.Module, x: torch.Tensor, position_ids: torch.Tensor, layer_type: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """`ModernBertRotaryEmbedding.forward`, whose buffers are float32, in float64."""
    width: int = x.shape[-1] // module.config.num_attention_heads  # type: ignore[union-attr]
    base: float = module.config.rope_parameters[layer_type]["rope_theta"]  # type: ignore[union-attr, index]
    angle = position_ids[..., None] * base ** (-torch.arange(0, width, 2, dtype=x.dtype) / width)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def run(
    config: Config, weights: dict[str, np.ndarray], fed: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """What `families.run` gives."""
    model, task = model_of(config), config.finetune.task
    parameters = dict(model.named_parameters())
    assert {name: tuple(array.shape) for name, array in parameters.items()} == {
        name: array.shape for name, array in weights.items()
    }
    with torch.no_grad():
        for name, array in weights.items():
            parameters[name].copy_(torch.from_numpy(array))
    given = {
        "input_ids": fed["tokens"],
        "token_type_ids": fed["segments"],
        "attention_mask": fed["real"].astype(int),
    }
    if config.model.member.parts.segments == "none":
        del given["token_type_ids"]
    if task != "multiple_choice":
        given = {name: array[:, 0] for name, array in given.items()}
    labels = fed["labels"][:, 0] if fed["labels"].ndim == 3 else fed["labels"]
    if task == "question_answering":
        given |= dict(zip(("start_positions", "end_positions"), labels, strict=True))
    else:
        given["labels"] = labels
    if paired := config.data.sentence_loss:
        given[
            "next_sentence_label" if config.model.architecture == "bert" else "sentence_order_label"
        ] = fed["pairs"]
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in given.items()}
    # The loss of GPT-2, and ModernBERT's angles, would be computed in float32.
    with (
        mock.patch.object(torch.Tensor, "float", torch.Tensor.double),
        mock.patch.object(modeling_modernbert.ModernBertRotaryEmbedding, "forward", turns),
    ):
        out = model(**tensors)
    out.loss.backward()
    found = {"loss": out.loss}
    if paired:
        found["logits"] = out.prediction_logits
        pairs = (
            out.seq_relationship_logits if config.model.architecture == "bert" else out.sop_logits
        )
        found["pairs"] = torch.log_softmax(pairs, dim=1)
    elif task == "question_answering":
        found["logits"] = torch.stack([out.start_logits, out.end_logits], dim=2)
    else:
        found["logits"] = out.logits
    found |= {f"gradient of {name}": parameter.grad for name, parameter in parameters.items()}
    return {name: tensor.detach().numpy() for name, tensor in found.items()}


def main() -> None:
    made = {}
    for family in families.FAMILIES:
        config = families.draw(family, 0)
        weights, fed = families.draw_weights(config, 0), families.draw_inputs(config, 0)
        found = run(config, weights, fed)
        found["logits"] = found["logits"][fed["real"][:, 0]]
        made[family] = families.shortened(found)
    families.RECORDINGS.write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    with jax.enable_x64(True):
        main()
