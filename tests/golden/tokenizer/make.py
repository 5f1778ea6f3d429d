#!/usr/bin/env python3
"""Token ids of awkward texts, as llama.cpp's tokenizer gives them.

Made with: Python 3.11 and libllama of llama.cpp build 11434; see
../reference/llama_reference.py for how that library is built and asked.

Usage: make.py LIB NAME=MODEL.gguf [NAME=MODEL.gguf ...] [--out FOLDER]
writes FOLDER/NAME.json (default: beside this script).

Format: {"model", "reference", "cases": [{"text" | "hex", "ids", "plain"}]}. `text` is a JSON
string in escaped ASCII; `hex` holds the bytes of an input that is not valid UTF-8. `ids` is
with special tokens parsed in the text, `plain` without (absent when it is the same list).
No token is added before or after (add_special = false).
"""
import argparse
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "reference"))
from llama_reference import Reference  # noqa: E402

SPACES = ["", " ", "  ", "   ", "    ", " " * 7, " " * 16, " " * 31, " " * 33, " " * 100,
          "\n", "\n\n", "\n\n\n", "\n" * 9, "\n" * 40, "\t", "\t\t\t", "\t \t ", "\r\n", "\r",
          "\r\n\r\n\r\n", " \n", "\n ", " \n \n ", "a\n\n\nb", "a \n b", "a  b", "a   b    c",
          "  leading", "trailing  ", " both ", "\u00a0nbsp\u00a0", "\u3000wide\u3000space",
          "a\u200bb\u200cc\u200dd\u2060e\ufefff", "\u2028line\u2029paragraph", "\x0b\x0c\x1c\x85"]

WORDS = ["Hello world", "Hello, world!", " Hello", "hello HELLO HeLLo", "don't can't we'll I'm they've "
         "he'd it's", "DON'T CAN'T WE'LL I'M THEY'VE", "don\u2019t it\u2019s", "'s 't 're 've 'm 'll 'd",
         "o'clock rock'n'roll ''quoted''", "supercalifragilisticexpialidocious",
         "a" * 65, "ab" * 40, "aaa aaa aaa", "camelCaseWords and snake_case_words and kebab-case-words",
         "e.g. i.e. etc... \u2026 -- \u2014 \u2013 -", "Mr. O'Neil-Smith (Jr.) & Co., Ltd.",
         "na\u00efve caf\u00e9 r\u00e9sum\u00e9 co\u00f6perate", "nai\u0308ve cafe\u0301 re\u0301sume\u0301",
         "\u2581under\u2581bar", "\u2581", "\u2581\u2581\u2581", "_ __ ___ ____", "\u0120\u010a\u0109"]

DIGITS = ["0", "7", "42", "123", "1234", "12345", "1234567", "12345678901234567890",
          "3" * 64, "3.14159265358979", "-1.5e-10", "1,234,567.89", "0x1F 0b1010 0o17",
          "2024-02-29T23:59:60Z", "+1 (555) 010-9999", "a1b2c3", "1a 2b 3c", " 1 2 3", "v1.2.3-rc.4+5",
          "\u0661\u0662\u0663\u0664", "\u0967\u0968\u0969", "\u00bd\u00b2\u2077\u2084", "\u2167 \u2460 \u3289",
          "\uff11\uff12\uff13"]

CODE = ["def f(x):\n    return x + 1\n", "def f(x):\n\treturn x+1\n\n\n\tpass",
        "for (int i = 0; i < n; ++i) { a[i] += b[i] * c[i]; }", "#include <stdio.h>\n#define X(a) #a\n",
        "fn main() -> Result<(), Box<dyn Error>> { Ok(()) }", "let v: Vec<&'static str> = vec![\"a\", \"b\"];",
        "SELECT * FROM t WHERE a='x' AND b<>\"y\";", "<div class=\"a b\">&nbsp;&lt;x&gt;</div><!-- c -->",
        "{\"a\":[1,2,{\"b\":null}],\"c\":\"\\u00e9\\n\"}", "if (a&&b||!c) return a?b:c;",
        "x==y!=z<=w>=v===u!==t=>s->r<=>q", "a+=b-=c*=d/=e%=f**=g//=h>>=i<<=j", "\\begin{align} \\frac{a}{b} &= \\sum_{i=0}^{n} x_i \\end{align}",
        "https://example.com/a/b?c=d&e=f%20g#h", "user.name+tag@example.co.uk", "C:\\Users\\x\\file.txt /usr/bin/env",
        "```python\nprint('hi')\n```\n", "| a | b |\n|---|:-:|\n| 1 | 2 |", "# Title\n\n* item\n  * sub\n1. one\n> quote\n---\n***",
        "$ ls -la | grep '^d' > out 2>&1 &", "!!!???...,,,;;;:::", "((((([[[[[{{{{{<<<<<", ")]}>)]}>", "@#$%^&*~`|\\/",
        "==========", "----------", "**********", "//////////", "##########", "\"\"\"doc\"\"\" '''doc'''"]

SCRIPTS = ["Stra\u00dfe \u00c4\u00d6\u00dc \u1e9e", "\u0141\u00f3d\u017a \u017b\u00f3\u0142w", "\u010ce\u0161tina p\u0159\u00edli\u0161",
           "\u0130stanbul \u0131\u015f\u0131k \u011f", "Ti\u1ebfng Vi\u1ec7t c\u00f3 d\u1ea5u", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u0401\u0436\u0438\u043a",
           "\u0423\u043a\u0440\u0430\u0457\u043d\u0430 \u0491\u0454\u0456", "\u0393\u03b5\u03b9\u03ac \u03c3\u03bf\u03c5 \u039a\u03cc\u03c3\u03bc\u03b5 \u03c2",
           "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd", "\u05e9\u05c1\u05b8\u05dc\u05d5\u05b9\u05dd", "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645\u060c \u061f",
           "\u0627\u0644\u0633\u0651\u064e\u0644\u064e\u0627\u0645\u064f \u0639\u064e\u0644\u064e\u064a\u0652\u0643\u064f\u0645", "\u0641\u0627\u0631\u0633\u06cc \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
           "\u0928\u092e\u0938\u094d\u0924\u0947 \u0926\u0941\u0928\u093f\u092f\u093e", "\u09ac\u09be\u0982\u09b2\u09be \u09ad\u09be\u09b7\u09be", "\u0ba4\u0bae\u0bbf\u0bb4\u0bcd",
           "\u0c24\u0c46\u0c32\u0c41\u0c17\u0c41", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01", "\u0ea5\u0eb2\u0ea7", "\u1019\u103c\u1014\u103a\u1019\u102c\u1018\u102c\u101e\u102c",
           "\u1797\u17b6\u179f\u17b6\u1781\u17d2\u1798\u17c2\u179a", "\u10e5\u10d0\u10e0\u10d7\u10e3\u10da\u10d8", "\u0540\u0561\u0575\u0565\u0580\u0565\u0576", "\u12a0\u121b\u122d\u129b", "\u0f56\u0f7c\u0f51\u0f0b\u0f66\u0f90\u0f51\u0f0b",
           "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\u7e41\u9ad4\u4e2d\u6587\u300c\u5f15\u865f\u300d", "\u3053\u3093\u306b\u3061\u306f\u4e16\u754c", "\u30ab\u30bf\u30ab\u30ca \uff76\uff80\uff76\uff85 \u30fc", "\uc548\ub155\ud558\uc138\uc694 \uc138\uacc4",
           "\u1112\u1161\u11ab\u1100\u1173\u11af", "mixed \u4e2d\u6587 and English\u6df7\u5408text", "\U00020000\U0002a6d6", "\U0001d5db\U0001d5f2\U0001d5f9\U0001d5f9\U0001d5fc", "\U00010330\U00010331 \U00013000", "\uff28\uff45\uff4c\uff4c\uff4f"]

MARKS = ["e\u0301\u0301\u0301", "Z\u0351\u036b\u0343\u036a\u0302\u036b\u033d\u034f\u0334\u0319\u0324", "\u0301", " \u0301a", "a\u20dd", "\u202eright to left\u202c",
         "\U0001f642", "\U0001f642\U0001f642\U0001f642", "\U0001f44d\U0001f3fd", "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f3f4\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f",
         "\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", "\u2764\ufe0f\u200d\U0001f525", "1\ufe0f\u20e3#\ufe0f\u20e3", "text\U0001f680with\U0001f4a9emoji", "\u2713 \u2717 \u2192 \u221e \u2260 \u2211 \u20ac \u00a3 \u00a5 \u20bf", "\u2500\u2502\u250c\u2588\u2592 \u25cf\u25cb", "\ufffd\ufffd", "\ue000\uf8ff\U000f0000", "\uffff\ufdd0\U0010ffff", "\u0378\U000e0fff"]

CONTROL = ["\x00", "a\x00b", "\x01\x02\x03\x1f\x7f", "\x1b[31mred\x1b[0m", "bell\x07back\x08space", "\x80\x9f"]

SPECIAL = ["<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<|im_start|>", " <|im_end|> ", "<|im_end|><|im_end|>",
           "<|endoftext|>", "a<|endoftext|>b", "<|im_start |>", "<|IM_START|>", "<|im_start|", "<<|im_start|>>",
           "<repo_name>x<file_sep>y<issue_start>", "<bos>", "<eos>text<bos>", "<pad><unk><mask>", "<start_of_turn>user\nHi<end_of_turn>\n<start_of_turn>model\n",
           " <start_of_turn> ", "<unused0> <unused98>", "<0x0A><0xFF>", "<s></s>", "[INST] x [/INST]", "<table><tr><td>x</td></tr></table>",
           "<h1>T</h1><strong>b</strong><i>i</i>", "[multimodal]", "<empty_output><jupyter_start>", "<|im_start|>\n\n<|im_end|>\n\n\n"]

# A four-byte form above U+10FFFF (f4 90 80 80) is left out: that build's BPE aborts the process on it.
INVALID = [b"\xff", b"\x80abc", b"abc\xc3", b"\xc3\x28", b"\xe2\x82", b"a\xe2\x82b", b"\xf0\x9f\x98", b"\xf0\x9f\x98 \xf0\x9f",
           b"\xc0\xaf", b"\xed\xa0\x80", b"ok \xfe\xfe\xff\xff end"]

TEXTS = SPACES + WORDS + DIGITS + CODE + SCRIPTS + MARKS + CONTROL + SPECIAL


def case(ref, raw, field):
    row = field
    row["ids"] = ref.tokenize(raw)
    plain = ref.tokenize(raw, special=False)
    if plain != row["ids"]:
        row["plain"] = plain
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lib")
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL.gguf")
    parser.add_argument("--out", default=HERE)
    args = parser.parse_args()
    assert len(set(TEXTS)) == len(TEXTS)
    for spec in args.models:
        name, path = spec.split("=", 1)
        ref = Reference(args.lib, path, vocab_only=True)
        cases = [case(ref, t.encode(), {"text": t}) for t in TEXTS]
        cases += [case(ref, b, {"hex": b.hex()}) for b in INVALID]
        head = f'"model":{json.dumps(name)},\n"reference":{json.dumps("llama.cpp " + ref.version)},\n"cases":[\n'
        rows = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
        out = pathlib.Path(args.out) / f"{name}.json"
        out.write_text("{\n" + head + rows + "\n]\n}\n")
        print(f"{out.name}: {len(cases)} cases, {out.stat().st_size} bytes")
        ref.close()


if __name__ == "__main__":
    main()
