#!/usr/bin/env python3
"""Words that each pre-tokenizer rule cuts awkward texts into, by another regular expression engine.

Made with Python 3.11 and regex 2026.11.19, whose engine backtracks and knows lookahead, so the patterns stand here as the
models' own `tokenizer.json` files have them (as quoted in llama.cpp b11434, `src/llama-vocab.cpp`), not as this
project's table does. Where llama.cpp approximates a model's pattern, the model's own stands here.

Usage: rules.py [OUT]     writes rules.json beside this script

Format: {"texts", "rules": [{"names", "words"}]}: `words` has a text for each of `texts`, with a character for the length
of each word in characters: 1-9, a-z (10-35), A-Z (36-61), or the number in parentheses.
"""
import json
import pathlib
import sys

import regex

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
SPACES = r"\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + SPACES
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + SPACES
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"


def cased(upper=UPPER, lower=LOWER, tail=CONTRACTIONS + "?"):
    return rf"[^\r\n\p{{L}}\p{{N}}]?{upper}*{lower}+{tail}|[^\r\n\p{{L}}\p{{N}}]?{upper}+{lower}*{tail}"


GPT4O = cased() + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|" + SPACES
UPPER_NOT_HAN = r"[[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]"
LOWER_NOT_HAN = r"[[\p{Ll}\p{Lm}\p{Lo}\p{M}]&&[^\p{Han}]]"
KANA_AND_HAN = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
DEEPSEEK3 = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^""" "\r\n" r"""\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+"""
             "[\r\n]*|" r"\s*" "[\r\n]+|" + SPACES)
BLOOM = " ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"
DEEPSEEK_LETTERS = (
    "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79"
    "-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-"
    "\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-"
    "\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-"
    "\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-"
    "\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2"
    "\U000118a0-\U000118df\U0001e900-\U0001e943]+")
DEEPSEEK_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
# The third range begins at U+F900, the compatibility ideographs; U+8C48 in llama.cpp, which looks the same.
AFMOE_ASIAN = (
    "[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f"
    "\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+")

RULES = [
    (["default"], [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
    (["gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum", "modern-bert",
      "jina-v1-en", "jina-v2-code", "roberta-bpe", "exaone4", "mpt", "olmo", "jais", "trillion", "granite-docling"], [GPT2]),
    (["smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b", "mellum2"], [r"\p{N}", GPT2]),
    (["falcon"], [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"]),
    (["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano", "glm4", "glm5",
      "chatglm-bpe", "dbrx", "smaug-bpe"], [LLAMA3]),
    (["minicpm5"], [r"\p{N}{1,3}", LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}+")]),
    (["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"], [QWEN2]),
    (["qwen35"], [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|" + SPACES]),
    (["ufakzeka"], [r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + SPACES]),
    (["laguna"], [r"[^\n]+|[\n]+", QWEN2]),
    (["bailingmoe", "bailingmoe2", "llada-moe"],
     [r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|" + SPACES]),
    (["seed-coder"], [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|" + SPACES]),
    (["exaone-moe"], [CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|" + SPACES]),
    (["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2", "granite-embed-multi-97m"], [GPT4O]),
    (["tekken"], [cased(tail="") + r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|" + SPACES]),
    (["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"], [r"\p{N}{1,3}", KANA_AND_HAN, DEEPSEEK3]),
    (["spark2_5"], [r"\p{N}{1,3}", KANA_AND_HAN, DEEPSEEK3.replace("[\r\n]*|\\s*[\r\n]+", "|[\r\n]"), r"\p{N}"]),
    (["youtu"], ["[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", GPT4O.replace("{1,3}", "")]),
    (["deepseek-llm"], ["[\r\n]", DEEPSEEK_LETTERS, "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+", r"\s+\Z", DEEPSEEK_ASIAN, r"\p{N}+"]),
    (["deepseek-coder"], ["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", DEEPSEEK_ASIAN, r"\p{N}"]),
    (["poro-chat", "bloom", "gpt3-finnish"], [BLOOM]),
    (["viking"], [BLOOM, r"\p{N}"]),
    (["chameleon"], ["<sentinel:[0-9]+>", "(?:IMGIMG)(?:(?:A|B|C|D|E|F|G|H|I){1,4})Z", r"(?:[\t\n]|    |  )", r"\p{N}",
                     r"[\p{P}!-/:-@\[-`{-~]", GPT2]),
    (["superbpe"], [r"\p{N}+", r"(?=(?:\d{3})+(?!\d))"]),
    (["kimi-k2"], [r"\p{Han}+|" + cased(UPPER_NOT_HAN, LOWER_NOT_HAN) + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|" + SPACES]),
    # llama.cpp describes the first in words: digits in threes from the right.
    (["afmoe"], [r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", AFMOE_ASIAN, DEEPSEEK3]),
    (["tiny_aya", "cohere2moe"], [r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O]),
    (["jais-2"], [LLAMA3.replace(SPACES, "") + "|".join(rf"\s{{{2 ** n}}}(?!\S)" for n in range(9, 1, -1)) + r"|\s{1,2}(?!\S)|\s{1}"]),
    (["gemma4", "granite-embed-multi-311m", "sarvam-moe"], [r"[^\n]+|[\n]+"]),
    (["whitespace"], [r"\S+"]),
]


def split(pieces, pattern):
    # This engine's \s has the four control characters 1C to 1F, which Unicode's White_Space has not.
    pattern = regex.sub(r"\\s", r"\\p{White_Space}", regex.sub(r"\\S", r"\\P{White_Space}", pattern))
    compiled = regex.compile("(?V1)" + pattern)
    for piece in pieces:
        begin = 0
        for match in compiled.finditer(piece):
            yield from (part for part in (piece[begin:match.start()], match.group()) if part)
            begin = match.end()
        if begin < len(piece):
            yield piece[begin:]


def code(length):
    letters = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return letters[length] if length < len(letters) else f"({length})"


def main():
    from make import TEXTS
    from npm import MORE
    texts = [text for text in TEXTS + MORE if text and len(text) < 120] + [" " * 1030 + "x", "  1", "x \u2003 y", "12345 1234x 1,234½ ⅷ1234"]
    rows = []
    for names, patterns in RULES:
        words = []
        for text in texts:
            pieces = [text]
            for pattern in patterns:
                pieces = list(split(pieces, pattern))
            assert "".join(pieces) == text
            words.append("".join(code(len(piece)) for piece in pieces))
        rows.append(json.dumps({"names": names, "words": words}, separators=(",", ":")))
    out = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "rules.json"
    out.write_text('{"reference":' + json.dumps("regex " + regex.__version__) + ',\n"texts":' + json.dumps(texts, separators=(",", ":"))
                   + ',\n"rules":[\n' + ",\n".join(rows) + "\n]}\n")
    print(f"{out.name}: {len(rows)} rules, {len(texts)} texts, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()
