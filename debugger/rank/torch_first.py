"""Imports torch before anything else of this package: importing it may install the layer, which
must not find a half of itself imported already."""

from __future__ import annotations

import torch.distributed

__all__ = ["torch"]
