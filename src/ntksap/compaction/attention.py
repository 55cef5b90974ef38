"""Attention with fewer heads than its features would fill."""

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention


class CompactMultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` from which heads were removed: E features, H heads of size d, H · d ≤ E.

    torch's own takes d = E ÷ H, which no longer holds. Parameters keep their names: ``in_proj_weight`` (3·H·d, E),
    ``in_proj_bias`` (3·H·d), ``out_proj.weight`` (E, H·d), ``out_proj.bias`` (E).
    """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as the class above does; masks are bool (True = not attended) or added to the scores."""
        batched = query.dim() == 3
        inputs = [x if batched else x.unsqueeze(0 if self.batch_first else 1) for x in (query, key, value)]
        if not self.batch_first:
            inputs = [x.transpose(0, 1) for x in inputs]
        weights = self.in_proj_weight.chunk(3)
        biases = self.in_proj_bias.chunk(3) if self.in_proj_bias is not None else (None, None, None)
        q, k, v = (
            linear(x, weight, bias).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for x, weight, bias in zip(inputs, weights, biases, strict=True)
        )
        mask = self._added(attn_mask, key_padding_mask, q)
        if need_weights:
            scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
            shares = (scores if mask is None else scores + mask).softmax(-1)
            shares = torch.dropout(shares, self.dropout, self.training)
            attended = shares @ v
        else:
            dropout = self.dropout if self.training else 0.0
            attended = scaled_dot_product_attention(q, k, v, mask, dropout)
        out: Tensor = self.out_proj(attended.transpose(1, 2).flatten(-2))
        out = out if self.batch_first else out.transpose(0, 1)
        if not need_weights:
            return (out if batched else out.squeeze(0 if self.batch_first else 1)), None
        shares = shares.mean(1) if average_attn_weights else shares
        return (out, shares) if batched else (out.squeeze(0 if self.batch_first else 1), shares.squeeze(0))

    @staticmethod
    def _added(attn_mask: Tensor | None, key_padding_mask: Tensor | None, like: Tensor) -> Tensor | None:
        """Return both masks as one that is added to the scores (batch, heads, targets, sources)."""
        total: Tensor | None = None
        for mask, padding in ((attn_mask, False), (key_padding_mask, True)):
            if mask is None:
                continue
            if mask.dtype == torch.bool:
                mask = torch.zeros_like(mask, dtype=like.dtype).masked_fill(mask, float("-inf"))
            mask = mask[..., None, None, :] if padding else mask
            if not padding and mask.dim() == 3:
                mask = mask.unflatten(0, (like.shape[0], -1))
            total = mask if total is None else total + mask
        return total
