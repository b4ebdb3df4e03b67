"""Which part of each weight a rank of a tensor-parallel group holds (Megatron's split: two sums a layer).

q, k, v, gate and up are cut by outputs, so each rank has whole heads; the output and down projections by inputs, so
their products are partial sums. Embedding, head and norms are whole everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidewheel.engine.errors import StartError

_BY_OUTPUTS = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
_BY_INPUTS = ("o_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Shards:
    rank: int = 0
    size: int = 1

    def part(self, name: str, shape: Sequence[int]) -> tuple[slice, ...]:
        """Of the tensor with this Hugging Face name and its whole shape."""
        module = name.rsplit(".", 2)[-2] if "." in name else name
        cut = 0 if module in _BY_OUTPUTS else 1 if module in _BY_INPUTS else None
        return tuple(self._range(length) if axis == cut else slice(0, length) for axis, length in enumerate(shape))

    def shape(self, name: str, shape: Sequence[int]) -> tuple[int, ...]:
        return tuple(piece.stop - piece.start for piece in self.part(name, shape))

    def check(self, **counts: int) -> None:
        """Raises StartError if one of the counts (of heads, of outputs) cannot be cut evenly."""
        for name, count in counts.items():
            if count % self.size:
                raise StartError(
                    f"--tensor-parallel {self.size}: the model's {name} = {count} cannot be cut into {self.size} equal "
                    f"parts; use a divisor of {count}."
                )

    def _range(self, length: int) -> slice:
        return slice(length * self.rank // self.size, length * (self.rank + 1) // self.size)


WHOLE = Shards()
