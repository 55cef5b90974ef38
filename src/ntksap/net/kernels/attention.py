"""Torch's self-attention with projections that go the fastest way, see `ntksap.net.kernels.chosen`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from ntksap.net.kernels.choice import KEPT, TORCH, Chooser
from ntksap.net.kernels.chosen import chosen_linear
from ntksap.net.kernels.compiler import Unscriptable, refuse_recording, usable


class ChosenAttention(Unscriptable, nn.MultiheadAttention):
    """What torch's attention becomes for a while.

    Only self-attention whose attention weights are not returned has its own way here; torch's transformers use that.
    """

    chooser: Chooser
    kept: Tensor

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *arguments: Any, **options: Any) -> Any:
        """Take and return what torch's own does."""
        refuse_recording(query)
        alone = query is key and key is value and query.dim() == 3 and not query.is_nested and not arguments
        plain = self.bias_k is None and not self.add_zero_attn and options.get("need_weights", True) is False
        if not (alone and plain and usable(query, self.in_proj_weight)):
            return super().forward(query, key, value, *arguments, **options)
        return self._attend(query, **options), None

    def _attend(
        self,
        x: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        **_: Any,
    ) -> Tensor:
        """(N, L, E) → (N, L, E), or with the first two swapped if the batch does not come first."""
        if is_causal and attn_mask is None:
            raise RuntimeError("Need attn_mask if specifying the is_causal hint.")
        x = x if self.batch_first else x.transpose(0, 1)
        count, length, width = x.shape
        causal = is_causal and key_padding_mask is None
        mask = None if causal else self._mask(attn_mask, key_padding_mask, x)
        inside = chosen_linear(self.chooser, x, self.in_proj_weight, self.in_proj_bias, self.kept)
        q, k, v = inside.view(count, length, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        dropped = self.dropout if self.training else 0.0
        seen = scaled_dot_product_attention(q, k, v, mask, dropped, causal)
        # Laid out as torch does it, which decides how dropout that follows draws.
        y: Tensor = self.out_proj(seen.permute(2, 0, 1, 3).reshape(length, count, width))
        return y.transpose(0, 1) if self.batch_first else y

    def _mask(self, attn_mask: Tensor | None, key_padding_mask: Tensor | None, x: Tensor) -> Tensor | None:
        """Return what is added to the products of queries and keys, (…, L, L): −∞ where a bool mask is True."""
        (count, length, _), found = x.shape, None
        if attn_mask is not None:
            found = _added(attn_mask, x.dtype)
            found = (
                found.view(-1, self.num_heads if len(found) > 1 else 1, length, length) if found.dim() == 3 else found
            )
        if key_padding_mask is not None:
            padding = _added(key_padding_mask, x.dtype).view(count, 1, 1, length)
            found = padding if found is None else found + padding
        return found


class ChosenEncoderLayer(Unscriptable, nn.TransformerEncoderLayer):
    """What an encoder layer becomes for a while: in evaluation torch has a fused way, which calls no inner layers."""

    chooser: Chooser

    def forward(self, src: Tensor, *arguments: Any, **options: Any) -> Tensor:
        """Take and return what torch's own does."""
        if not self.training and not src.is_nested and self.chooser.leaves_to_torch(src, src):
            return super().forward(src, *arguments, **options)
        refuse_recording(src)
        evaluated = not self.training and not torch.is_grad_enabled() and not src.is_nested
        if not evaluated or not usable(src, self.linear1.weight) or not torch.backends.mha.get_fastpath_enabled():
            return super().forward(src, *arguments, **options)
        ordinary = super().forward

        def apart() -> Tensor:
            with _layers_apart():
                return ordinary(src, *arguments, **options)

        def whole() -> Tensor:
            return ordinary(src, *arguments, **options)

        ways = {TORCH: whole, KEPT: apart}
        return ways[self.chooser.way(src, (False, False), lambda: ways)]()


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -torch.inf) if mask.dtype == torch.bool else mask


@contextmanager
def _layers_apart() -> Iterator[None]:
    """Inside the block, torch's transformers call their layers one by one."""
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
