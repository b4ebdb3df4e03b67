"""The decoder. Readable first: every heavy operation is one call into `kernels`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tidewheel.engine.kernels.interface import AttentionBatch, HeadAdjustment, Kernels, Linear, Shape
from tidewheel.engine.model.config import ModelConfig
from tidewheel.engine.model.rope import rope_table
from tidewheel.engine.parallel import Alone, Group


@dataclass(frozen=True, slots=True)
class Layer:
    input_norm: Tensor
    qkv: Linear
    adjustment: HeadAdjustment | None  # None: the family leaves qkv as it is
    output: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


class Llama:
    """Takes the weights (by their Hugging Face names) out of the mapping as it packs them: memory holds them once."""

    def __init__(
        self,
        config: ModelConfig,
        weights: dict[str, Tensor],
        *,
        kernels: Kernels,
        shape: Shape,
        group: Group | None = None,
    ) -> None:
        self.config = config
        self.shape = shape
        self._kernels = kernels
        self._group = group or Alone()
        self._embedding = weights.pop("model.embed_tokens.weight")
        self._norm = weights.pop("model.norm.weight")
        self._head = kernels.pack(weights.pop("lm_head.weight", self._embedding))
        self._layers = [self._layer(weights, f"model.layers.{i}") for i in range(config.num_layers)]
        self._cos_sin = rope_table(config).to(self._embedding.device)

    def logits(self, token_ids: Tensor, batch: AttentionBatch, pools: list[Tensor]) -> Tensor:
        """float32 [sampling rows, vocabulary]. Writes this step's K and V into `pools`."""
        kernels, eps = self._kernels, self.config.rms_norm_eps
        x = kernels.rows(self._embedding, token_ids)
        for layer, pool in zip(self._layers, pools, strict=True):
            qkv = kernels.linear(kernels.rms_norm(x, layer.input_norm, eps), layer.qkv)
            if layer.adjustment is not None:
                qkv = kernels.adjust_heads(qkv, layer.adjustment, self.shape)
            q = kernels.rope_and_store(qkv, self._cos_sin, pool, batch, self.shape)
            x = self._add(kernels.attention(q, pool, batch, self.shape), layer.output, x)
            wide = kernels.gate_up(kernels.rms_norm(x, layer.post_norm, eps), layer.gate_up)
            x = self._add(wide, layer.down, x)
        x = kernels.rms_norm(kernels.rows(x, batch.sample_rows), self._norm, eps)
        return kernels.logits(x, self._head)

    def _add(self, x: Tensor, weight: Linear, residual: Tensor) -> Tensor:
        """residual + the product, of which each rank of a group has computed a part."""
        if self._group.size == 1:
            return self._kernels.linear_add(x, weight, residual)
        return residual + self._group.sum(self._kernels.linear(x, weight)).to(residual.dtype)

    def _layer(self, weights: dict[str, Tensor], name: str) -> Layer:
        def weight(part: str) -> Tensor:
            return weights.pop(f"{name}.{part}.weight")

        qkv = torch.cat([weight("self_attn.q_proj"), weight("self_attn.k_proj"), weight("self_attn.v_proj")])
        return Layer(
            input_norm=weight("input_layernorm"),
            qkv=self._kernels.pack(qkv),
            adjustment=self._adjustment(weights, f"{name}.self_attn"),
            output=self._kernels.pack(weight("self_attn.o_proj")),
            post_norm=weight("post_attention_layernorm"),
            gate_up=self._kernels.pack_gate_up(weight("mlp.gate_proj"), weight("mlp.up_proj")),
            down=self._kernels.pack(weight("mlp.down_proj")),
        )

    def _adjustment(self, weights: dict[str, Tensor], name: str) -> HeadAdjustment | None:
        if not (self.config.has_qkv_bias or self.config.has_head_norms):
            return None
        bias = q_norm = k_norm = None
        if self.config.has_qkv_bias:
            bias = torch.cat([weights.pop(f"{name}.{part}_proj.bias") for part in "qkv"])
        if self.config.has_head_norms:
            q_norm, k_norm = (weights.pop(f"{name}.{part}_norm.weight") for part in "qk")
        return HeadAdjustment(bias, q_norm, k_norm, self.config.rms_norm_eps)
