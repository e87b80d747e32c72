"""Cross-entropy of a linear layer, with or without the matrix behind it, that never holds the logits."""

from maxsep.ops.fused.rows import row_losses

__all__ = ["row_losses"]
