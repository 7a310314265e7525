"""Published model sizes by name. A preset fills in the fields of `spec.model` that were
left out; given fields win.

Where the shapes come from: `gpt-345m` and `bert-345m` are Megatron-LM's example scripts
(24 layers, 1024 wide, 16 heads; vocabularies padded to a multiple of 128). `gpt-1.7b` and
`gpt-3.6b` are rows 1 and 2 of table 1 in "Efficient Large-Scale Language Model Training
on GPU Clusters Using Megatron-LM" (arXiv 2104.04473), with its vocabulary of 51,200 and
sequences of 2,048. That table has no 857M and no 7.1B: `gpt-857m` is 20 layers of 1,792
(861 million parameters here), `gpt-7.1b` its row of 7.5B with 34 of the 36 layers (7.06
billion). `bert-110m` is BERT-base (Devlin et al. 2019). `mixtral-8x7b` is arXiv 2401.04088,
table 1, with sequences of 4,096 as in Megatron's script.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_GPT_VOCABULARY, _SCALING_VOCABULARY, _BERT_VOCABULARY = 50_304, 51_200, 30_592


def _dense(family: str, layers: int, hidden: int, heads: int, length: int, vocabulary: int) -> Mapping[str, Any]:
    return MappingProxyType(
        {
            "family": family,
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "sequence_length": length,
            "vocab_size": vocabulary,
        }
    )


def _mixture(base: Mapping[str, Any], **changes: Any) -> Mapping[str, Any]:
    return MappingProxyType({**base, **changes})


PRESETS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "gpt-tiny": _dense("gpt", 4, 64, 4, 64, 256),
        "gpt-345m": _dense("gpt", 24, 1024, 16, 1024, _GPT_VOCABULARY),
        "gpt-857m": _dense("gpt", 20, 1792, 28, 2048, _SCALING_VOCABULARY),
        "gpt-1.7b": _dense("gpt", 24, 2304, 24, 2048, _SCALING_VOCABULARY),
        "gpt-3.6b": _dense("gpt", 30, 3072, 32, 2048, _SCALING_VOCABULARY),
        "gpt-7.1b": _dense("gpt", 34, 4096, 32, 2048, _SCALING_VOCABULARY),
        "bert-tiny": _dense("bert", 4, 64, 4, 64, 256),
        "bert-110m": _dense("bert", 12, 768, 12, 512, _BERT_VOCABULARY),
        "bert-345m": _dense("bert", 24, 1024, 16, 512, _BERT_VOCABULARY),
        "moe-tiny": _mixture(
            _dense("moe", 4, 64, 4, 64, 256), kv_heads=2, ffn_hidden=128, experts=4, experts_per_token=2
        ),
        "mixtral-8x7b": _mixture(
            _dense("moe", 32, 4096, 32, 4096, 32_000), kv_heads=8, ffn_hidden=14_336, experts=8, experts_per_token=2
        ),
    }
)


def expand(model: Mapping[str, Any], given: frozenset[str]) -> dict[str, Any]:
    """`model` (fields of `spec.model` as plain values) with the fields of its preset, but
    those that were `given`. An unknown name or none changes nothing."""
    name = model.get("preset")
    preset = PRESETS.get(name, {}) if isinstance(name, str) else {}
    return {**model, **{field: value for field, value in preset.items() if field not in given}}
