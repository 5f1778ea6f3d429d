"""The tiny models of make.py: one row a variant, with what it tests and how a test of it would notice.

Sizes: SMALL has head size x heads = 64 over hidden size 32, so that the two cannot be confused; WIDE is for
families whose attention width must equal the hidden size. WINDOW and ORIGINAL are small enough for the
sequences to pass them.
"""
from dataclasses import dataclass, field

VOCAB = 64
WINDOW = 16     # sliding window
ORIGINAL = 256  # original context of the rope scalings
FACTOR = 4      # their factor; the context is ORIGINAL * FACTOR

SMALL = dict(hidden_size=32, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2, head_dim=16)
WIDE = dict(hidden_size=64, intermediate_size=32, num_attention_heads=4, num_key_value_heads=2)
LARGE = dict(hidden_size=256, intermediate_size=256, num_attention_heads=4, num_key_value_heads=2)
LONG = dict(max_position_embeddings=ORIGINAL * FACTOR)


@dataclass
class Variant:
    name: str
    model: str    # transformers' class name without "ForCausalLM"
    config: dict  # config arguments beyond those every variant has
    # What to leave out of the model to see that the golden would notice: {"config": {...}} other config values,
    # {"identity": text} modules whose name has the text do nothing, {"zero": text} parameters that have it are 0.
    ablations: dict = field(default_factory=dict)
    lengths: tuple = (8, 40, 96)
    edges: tuple = ()          # positions that must be among those kept
    embed_std: float = 0.5
    layers: int = 2
    quantize: str | None = None      # store as this llama-quantize type, not as F16
    reference_layers: int | None = None  # llama.cpp refuses `layers`; compare it on a model of this many


def rope(theta, **more):
    return dict(rope_type="default", rope_theta=theta) | more


WINDOWED = dict(edges=(WINDOW - 1, WINDOW, WINDOW + 1))
FAR = dict(lengths=(8, 96, 900), edges=(ORIGINAL - 1, ORIGINAL, ORIGINAL + 1))
UNSCALED = {"rope scaling": {"config": dict(rope_parameters=rope(10000.0))}}
BIASES = {"biases": {"zero": "bias"}}
QK_NORM = {"q and k norm": {"identity": "self_attn.q_norm|self_attn.k_norm"}}

VARIANTS = [
    Variant("llama", "Llama", WIDE | dict(intermediate_size=96, rope_parameters=rope(10000.0), rms_norm_eps=1e-5)),
    Variant("llama-llama3-rope", "Llama", SMALL | LONG | dict(rope_parameters=rope(
        10000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
        original_max_position_embeddings=ORIGINAL)), ablations=UNSCALED, **FAR),
    Variant("llama-linear-rope", "Llama", SMALL | LONG | dict(rope_parameters=rope(
        10000.0, rope_type="linear", factor=float(FACTOR))), ablations=UNSCALED, **FAR),
    Variant("llama-bias-tied", "Llama", SMALL | dict(
        rope_parameters=rope(500000.0), attention_bias=True, tie_word_embeddings=True), ablations=BIASES),
    Variant("llama-q4_k_m", "Llama", LARGE | dict(rope_parameters=rope(10000.0)), layers=1, quantize="Q4_K_M"),
    Variant("mistral", "Mistral", SMALL | dict(rope_parameters=rope(1000000.0), sliding_window=None)),
    Variant("gemma2", "Gemma2", SMALL | dict(
        rope_parameters=rope(10000.0), query_pre_attn_scalar=16, sliding_window=WINDOW,
        attn_logit_softcapping=3.0, final_logit_softcapping=6.0), layers=3, embed_std=0.35, ablations={
            "sliding window": {"config": dict(sliding_window=512)},
            "attention soft cap": {"config": dict(attn_logit_softcapping=None)},
            "logit soft cap": {"config": dict(final_logit_softcapping=None)},
            "post norms": {"identity": "post_attention_layernorm|post_feedforward_layernorm"},
        }, **WINDOWED),
    Variant("gemma3", "Gemma3", SMALL | dict(
        query_pre_attn_scalar=16, sliding_window=WINDOW, rope_parameters=dict(
            full_attention=rope(1000000.0), sliding_attention=rope(10000.0))),
        layers=6, embed_std=0.35, ablations={
            "sliding window": {"config": dict(sliding_window=512)},
            "local rope base": {"config": dict(rope_parameters=dict(
                full_attention=rope(1000000.0), sliding_attention=rope(1000000.0)))},
            "global rope base": {"config": dict(rope_parameters=dict(
                full_attention=rope(10000.0), sliding_attention=rope(10000.0)))},
            "post norms": {"identity": "post_attention_layernorm|post_feedforward_layernorm"},
        } | QK_NORM, **WINDOWED),
    Variant("qwen2", "Qwen2", WIDE | dict(rope_parameters=rope(1000000.0)), ablations=BIASES),
    Variant("qwen2-q4_k_m", "Qwen2", LARGE | dict(
        num_key_value_heads=1, rope_parameters=rope(1000000.0), tie_word_embeddings=True),
        layers=1, quantize="Q4_K_M", ablations=BIASES),
    Variant("qwen3", "Qwen3", SMALL | dict(rope_parameters=rope(1000000.0)), ablations=QK_NORM),
    Variant("qwen3-yarn-rope", "Qwen3", SMALL | LONG | dict(tie_word_embeddings=True, rope_parameters=rope(
        10000.0, rope_type="yarn", factor=float(FACTOR), original_max_position_embeddings=ORIGINAL)),
        ablations=UNSCALED | {"rope attention factor": {"config": dict(rope_parameters=rope(
            10000.0, rope_type="yarn", factor=float(FACTOR), original_max_position_embeddings=ORIGINAL,
            attention_factor=1.0))}}, **FAR),
    Variant("phi3", "Phi3", WIDE | dict(rope_parameters=rope(10000.0), original_max_position_embeddings=512)),
    Variant("phi3-longrope", "Phi3", WIDE | LONG | dict(
        tie_word_embeddings=True, original_max_position_embeddings=ORIGINAL,
        rope_parameters=rope(
            10000.0, rope_type="longrope", partial_rotary_factor=0.75, original_max_position_embeddings=ORIGINAL,
            short_factor=[1.0, 1.0625, 1.125, 1.25, 1.5, 1.75], long_factor=[1.0, 1.25, 2.0, 3.5, 6.0, 8.0])),
        ablations={
            "long factors": {"config": dict(rope_parameters=rope(
                10000.0, rope_type="longrope", partial_rotary_factor=0.75,
                original_max_position_embeddings=ORIGINAL,
                short_factor=[1.0, 1.0625, 1.125, 1.25, 1.5, 1.75],
                long_factor=[1.0, 1.0625, 1.125, 1.25, 1.5, 1.75]))},
            "rope attention factor": {"config": dict(rope_parameters=rope(
                10000.0, rope_type="longrope", partial_rotary_factor=0.75, attention_factor=1.0,
                original_max_position_embeddings=ORIGINAL,
                short_factor=[1.0, 1.0625, 1.125, 1.25, 1.5, 1.75],
                long_factor=[1.0, 1.25, 2.0, 3.5, 6.0, 8.0]))},
        }, **FAR),
    Variant("olmo2", "Olmo2", WIDE | dict(rope_parameters=rope(500000.0)),
            ablations=QK_NORM | {"post norms": {"identity": "post_attention_layernorm|post_feedforward_layernorm"}}),
    Variant("granite", "Granite", WIDE | dict(
        rope_parameters=rope(10000.0), tie_word_embeddings=True, embedding_multiplier=6.0,
        attention_multiplier=0.375, residual_multiplier=0.5, logits_scaling=0.75), embed_std=0.25, ablations={
            "embedding scale": {"config": dict(embedding_multiplier=1.0)},
            "attention scale": {"config": dict(attention_multiplier=0.25)},
            "residual scale": {"config": dict(residual_multiplier=1.0)},
            "logit scale": {"config": dict(logits_scaling=1.0)},
        }),
    Variant("smollm3", "SmolLM3", SMALL | dict(rope_parameters=rope(2000000.0)), layers=4,
            ablations={"layers without rope": {"config": dict(no_rope_layers=[1, 1, 1, 1])}}),
    Variant("command-r", "Cohere", WIDE | dict(rope_parameters=rope(500000.0), logit_scale=0.25),
            ablations={"logit scale": {"config": dict(logit_scale=1.0)}}),
    Variant("command-r-qk-norm", "Cohere", WIDE | dict(
        rope_parameters=rope(500000.0), logit_scale=0.25, use_qk_norm=True),
        reference_layers=64, ablations=QK_NORM),
    Variant("starcoder2", "Starcoder2", WIDE | dict(
        intermediate_size=96, rope_parameters=rope(100000.0), sliding_window=None), ablations=BIASES),
    Variant("glm4", "Glm4", SMALL | dict(rope_parameters=rope(10000.0, partial_rotary_factor=0.5)),
            ablations=BIASES | {
                "partial rope": {"config": dict(rope_parameters=rope(10000.0, partial_rotary_factor=1.0))},
                "post norms": {"identity": "post_self_attn_layernorm|post_mlp_layernorm"},
            }),
]
