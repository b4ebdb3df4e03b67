"""A random decoder of one small layer, for what depends on lengths and not on weights."""

import torch

from tidewheel.engine.kernels.interface import Shape
from tidewheel.engine.model.config import ModelConfig
from tidewheel.engine.model.llama import Llama
from tidewheel.engine.settings import Settings, available_cores
from tidewheel.engine.torch_runner import TorchRunner
from tidewheel.engine.torch_start import choose_kernels

CONFIG = ModelConfig(
    vocab_size=512, hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=16,
    rms_norm_eps=1e-5, rope_theta=1e6, max_position=1 << 17,
)  # fmt: skip


def tiny_runner(*, num_blocks: int, block_size: int = 16) -> TorchRunner:
    """On this machine's own kernels, in bfloat16."""
    dtype, device = torch.bfloat16, torch.device("cpu")
    shape = Shape(CONFIG.num_heads, CONFIG.num_kv_heads, CONFIG.head_dim, block_size)
    torch.set_num_threads(available_cores())
    kernels = choose_kernels(Settings(model="tiny"), dtype, device, shape)
    per_block = 2 * block_size * CONFIG.num_kv_heads * CONFIG.head_dim * dtype.itemsize * CONFIG.num_layers
    model = Llama(CONFIG, _weights(), kernels=kernels, shape=shape)
    return TorchRunner(model, kernels=kernels, dtype=dtype, device=device, kv_memory=num_blocks * per_block)


def _weights() -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return (torch.randn(rows, columns, generator=draw) * columns**-0.5).bfloat16()

    hidden, wide = CONFIG.hidden_size, CONFIG.intermediate_size
    heads, kv = CONFIG.num_heads * CONFIG.head_dim, CONFIG.num_kv_heads * CONFIG.head_dim
    ones = torch.ones(hidden).bfloat16()
    weights = {"model.embed_tokens.weight": matrix(CONFIG.vocab_size, hidden), "model.norm.weight": ones}
    for index in range(CONFIG.num_layers):
        layer = f"model.layers.{index}"
        weights |= {
            f"{layer}.self_attn.q_proj.weight": matrix(heads, hidden),
            f"{layer}.self_attn.k_proj.weight": matrix(kv, hidden),
            f"{layer}.self_attn.v_proj.weight": matrix(kv, hidden),
            f"{layer}.self_attn.o_proj.weight": matrix(hidden, heads),
            f"{layer}.mlp.gate_proj.weight": matrix(wide, hidden),
            f"{layer}.mlp.up_proj.weight": matrix(wide, hidden),
            f"{layer}.mlp.down_proj.weight": matrix(hidden, wide),
            f"{layer}.input_layernorm.weight": ones,
            f"{layer}.post_attention_layernorm.weight": ones,
        }
    return weights
