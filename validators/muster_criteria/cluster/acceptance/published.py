"""Figures of trainings that others published, by the SKU whose name begins so. A published best is no limit."""

from __future__ import annotations

TITAN = "torchtitan, benchmarks/llama3_h100_202412"
BRIDGE = "NVIDIA Megatron-Bridge performance summary 25.11"
CVS = "ROCm CVS floors"

FIGURES = (
    ("h100", f"Llama 3.1 8B bf16, FSDP, s 8,192: 5,762 tokens/s a GPU on 8 H100 and 5,605 on 128, scaling 97 %, "
             f"MFU 33 to 39 % ({TITAN})"),
    ("h100", f"Llama 3 8B fp8 on 8 H100: 744 TFLOPS and 14,451 tokens/s a GPU ({BRIDGE})"),
    ("b200", f"Llama 3 8B fp8 on 8 B200: 1,576 TFLOPS a GPU ({BRIDGE})"),
    ("gb200", f"Llama 3 8B fp8 on 8 GB200: 1,622 TFLOPS a GPU ({BRIDGE})"),
    ("mi300x", f"Llama 3.3 70B by MaxText: at least 260 to 300 TFLOPS a GPU ({CVS})"),
)  # fmt: skip
MANY = "MFU of large jobs: 38 to 43 % (Llama 3 405B, arXiv:2407.21783), 55 % on 12,288 GPUs (MegaScale)"


def published(sku: str) -> tuple[str, ...]:
    """Sentences about hardware of this SKU; none for CPUs."""
    found = tuple(sentence for model, sentence in FIGURES if sku.startswith(model))
    return (*found, MANY) if found else ()
