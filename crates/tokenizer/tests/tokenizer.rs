//! Tokenizers of small hand-made vocabularies. Whole vocabularies are compared with llama.cpp elsewhere
//! (`tests/golden/tokenizer`, `examples/check_golden.rs`).

use minfer_gguf::{Array, Metadata, Strings, Value};
use minfer_tokenizer::{EncodeOptions, Error, Overrides, Special, Tokenizer};
use proptest::prelude::*;

const PLAIN: EncodeOptions = EncodeOptions { add_special: false, parse_special: false };
const PARSE: EncodeOptions = EncodeOptions { add_special: false, parse_special: true };
const FULL: EncodeOptions = EncodeOptions { add_special: true, parse_special: true };

fn strings<S: AsRef<str>>(items: &[S]) -> Value {
    Value::Array(Array::Strings(items.iter().map(|item| item.as_ref().as_bytes()).collect::<Strings>()))
}

/// GPT-2's spelling of a byte, as its authors define it: the printable ones in order, then the others from U+0100.
fn gpt2_alphabet() -> Vec<String> {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 0x100..;
    (0..256)
        .map(|byte| if printable(byte) { byte } else { next.next().unwrap() })
        .map(|code| char::from_u32(code).unwrap().to_string())
        .collect()
}

const MERGES: [&str; 10] = ["h e", "l l", "he ll", "hell o", "Ġ w", "o r", "Ġw or", "l d", "Ġwor ld", "a a"];

/// 256 bytes, 10 merged tokens, a control token 266, a user-defined 267, and a token 268 that is typed as text but
/// known as the end of a turn.
fn bpe_metadata(pre: &str) -> Metadata {
    let mut tokens = gpt2_alphabet();
    tokens.extend(MERGES.iter().map(|merge| merge.replace(' ', "")));
    tokens.extend(["<|start|x>", "<tool>", "<|im_end|>"].map(str::to_owned));
    let mut types = vec![1i32; tokens.len()];
    types[266] = 3;
    types[267] = 4;
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.model", Value::string("gpt2"));
    metadata.set("tokenizer.ggml.pre", Value::string(pre));
    metadata.set("tokenizer.ggml.tokens", strings(&tokens));
    metadata.set("tokenizer.ggml.token_type", types);
    metadata.set("tokenizer.ggml.merges", strings(&MERGES));
    metadata.set("tokenizer.ggml.bos_token_id", 266u32);
    metadata.set("tokenizer.ggml.eos_token_id", 268u32);
    metadata
}

/// All but the keys that end so.
fn without(metadata: &Metadata, end: &str) -> Metadata {
    let mut rest = Metadata::new();
    for (key, value) in metadata.iter().filter(|(key, _)| !key.ends_with(end)) {
        rest.set(key, value.clone());
    }
    rest
}

fn bpe() -> Tokenizer {
    Tokenizer::from_gguf(&bpe_metadata("gpt-2")).unwrap()
}

/// `<unk> <s> </s>`, 256 byte tokens, then scored pieces; the space sign and a few words.
fn spm_metadata() -> Metadata {
    let mut tokens = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
    let mut types = vec![2i32, 3, 3];
    let mut scores = vec![0f32; 3];
    for byte in 0..256 {
        tokens.push(format!("<0x{byte:02X}>"));
        types.push(6);
        scores.push(0.0);
    }
    let pieces = ["▁", "a", "b", "c", "ab", "bc", "▁a", "▁ab", "語", "abc", "aa", "aaaa", "<tag>"];
    for (index, piece) in pieces.into_iter().enumerate() {
        tokens.push(piece.to_owned());
        types.push(if piece == "<tag>" { 4 } else { 1 });
        scores.push(-(index as f32));
    }
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.model", Value::string("llama"));
    metadata.set("tokenizer.ggml.tokens", strings(&tokens));
    metadata.set("tokenizer.ggml.token_type", types);
    metadata.set("tokenizer.ggml.scores", scores);
    metadata
}

fn spm() -> Tokenizer {
    Tokenizer::from_gguf(&spm_metadata()).unwrap()
}

fn pieces(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| tokenizer.piece(id).unwrap().into_owned()).collect()
}

/// Pieces by id: types, texts and scores.
fn vocabulary(model: &str, pieces: &[(i32, &str, f32)]) -> Metadata {
    let mut metadata = Metadata::new();
    metadata.set("tokenizer.ggml.model", Value::string(model));
    metadata.set("tokenizer.ggml.tokens", strings(&pieces.iter().map(|piece| piece.1).collect::<Vec<_>>()));
    metadata.set("tokenizer.ggml.token_type", pieces.iter().map(|piece| piece.0).collect::<Vec<i32>>());
    metadata.set("tokenizer.ggml.scores", pieces.iter().map(|piece| piece.2).collect::<Vec<f32>>());
    metadata
}

fn wpm_metadata() -> Metadata {
    let words =
        ["▁un", "▁unaffable", "aff", "able", "▁.", "▁語", "▁e", "▁x", "▁한", "▁ᄒ", "ᅡ", "ᆫ", "▁1", "1", "▁~"];
    let mut pieces = vec![(3, "[PAD]", 0.0), (2, "[UNK]", 0.0), (3, "[CLS]", 0.0), (3, "[SEP]", 0.0)];
    pieces.extend(words.map(|word| (1, word, 0.0)));
    let mut metadata = vocabulary("bert", &pieces);
    for (key, id) in [("bos", 2u32), ("seperator", 3), ("unknown", 1), ("padding", 0)] {
        metadata.set(&format!("tokenizer.ggml.{key}_token_id"), id);
    }
    metadata
}

fn wpm() -> Tokenizer {
    Tokenizer::from_gguf(&wpm_metadata()).unwrap()
}

fn unigram_metadata() -> Metadata {
    let mut metadata = vocabulary(
        "t5",
        &[
            (3, "<pad>", 0.0),
            (3, "</s>", 0.0),
            (2, "<unk>", 0.0),
            (1, "▁", -2.0),
            (1, "a", -3.0),
            (1, "b", -3.5),
            (1, "ab", -5.0),
            (1, "▁a", -4.0),
            (1, "▁ab", -9.0),
            (1, "ba", -6.0),
            (1, "語", -7.0),
            (4, "<tag>", 0.0),
            (5, "▁aba", -1.0),
        ],
    );
    metadata.set("tokenizer.ggml.add_space_prefix", true);
    metadata
}

fn unigram() -> Tokenizer {
    Tokenizer::from_gguf(&unigram_metadata()).unwrap()
}

/// Gemma 4's form: characters, `▁` for spaces, `<0xNN>` for what is unknown.
fn raw_bpe_metadata(pre: &str) -> Metadata {
    let mut metadata = spm_metadata();
    let Some(Value::Array(Array::Strings(tokens))) = metadata.get("tokenizer.ggml.tokens") else {
        unreachable!()
    };
    let mut tokens: Vec<String> =
        tokens.iter().map(|token| String::from_utf8_lossy(token).into_owned()).collect();
    tokens.extend(["\n", "\n\n", "▁b", "▁▁", "<mask>"].map(str::to_owned));
    let mut types = vec![2i32, 3, 3];
    types.extend([6; 256]);
    types.extend([1; 12]);
    types.push(4);
    types.extend([1, 1, 1, 1, 3]);
    metadata.set("tokenizer.ggml.scores", vec![0f32; tokens.len()]);
    metadata.set("tokenizer.ggml.model", Value::string("gpt2"));
    metadata.set("tokenizer.ggml.pre", Value::string(pre));
    metadata.set("tokenizer.ggml.tokens", strings(&tokens));
    metadata.set("tokenizer.ggml.token_type", types);
    metadata.set("tokenizer.ggml.merges", strings(&["▁ ▁", "▁ a", "a b", "▁ b", "▁a b", "a a", "aa aa"]));
    metadata.set("tokenizer.ggml.bos_token_id", 1u32);
    metadata
}

fn raw_bpe(pre: &str) -> Tokenizer {
    Tokenizer::from_gguf(&raw_bpe_metadata(pre)).unwrap()
}

#[test]
fn wordpiece_takes_the_longest_token_first() {
    let tokenizer = wpm();
    let of = |text: &str| pieces(&tokenizer, &tokenizer.encode(text, PLAIN));
    assert_eq!(of("unaffable"), ["▁unaffable"]);
    assert_eq!(of("UnAff un-able"), ["▁un", "aff", "▁un", "[UNK]", "[UNK]"]); // No "-", no "▁able".
    assert_eq!(of("unaffx un"), ["[UNK]", "▁un"]); // A word is taken apart wholly or not at all.
    // Punctuation, symbols of ASCII and Han are words of their own.
    assert_eq!(of("un.un~x語x"), ["▁un", "▁.", "▁un", "▁~", "▁x", "▁語", "▁x"]);
    // Accents go, and Hangul is taken apart with them; what does not print vanishes.
    assert_eq!(of("É e\u{301}\u{0}x\u{200B}"), ["▁e", "[UNK]"]);
    assert_eq!(of("한"), ["▁ᄒ", "ᅡ", "ᆫ"]);
    assert_eq!(of(&"1".repeat(100)).len(), 100);
    assert_eq!(of(&"1".repeat(101)), ["[UNK]"]);
    assert_eq!(of("a▁x ▁x \u{FFFD}"), ["[UNK]", "[UNK]"]);
    // Always CLS and SEP.
    assert_eq!(
        pieces(&tokenizer, &tokenizer.encode("x[SEP]x", FULL)),
        ["[CLS]", "▁x", "[SEP]", "▁x", "[SEP]"]
    );
    assert_eq!(tokenizer.decode(&tokenizer.encode("un x", FULL), Special::Hide), b"un x");
}

#[test]
fn wordpiece_flags() {
    let mut metadata = wpm_metadata();
    metadata.set("tokenizer.ggml.normalizer.lowercase", false);
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    // Accents stay where case does, unless the file says otherwise.
    assert_eq!(pieces(&tokenizer, &tokenizer.encode("Un 한 é", PLAIN)), ["[UNK]", "▁한", "[UNK]"]);
    metadata.set("tokenizer.ggml.normalizer.strip_accents", true);
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(pieces(&tokenizer, &tokenizer.encode("é", PLAIN)), ["▁e"]);
}

#[test]
fn unigram_takes_the_best_sum() {
    let tokenizer = unigram();
    let of = |text: &[u8]| pieces(&tokenizer, &tokenizer.encode_bytes(text, PLAIN));
    assert_eq!(of(b"a"), ["▁a"]); // -4 beats "▁" "a" (-5).
    assert_eq!(of(b"ab"), ["▁", "ab"]); // -7; "▁a" "b" is -7.5, "▁ab" -9.
    assert_eq!(of(b"aba"), ["▁aba"]); // Unused tokens count.
    assert_eq!(of(b"abab"), ["▁aba", "b"]);
    assert_eq!(of("語é\u{301}語".as_bytes()), ["▁", "語", "<unk>", "語"]); // One for both.
    assert_eq!(of(b"\xFFa"), ["▁", "<unk>", "a"]);
    assert_eq!(of(b"a  a"), ["▁a", "▁", "▁a"]);
    assert_eq!(of(b"a<tag>a"), ["▁a", "<tag>", "▁a"]); // Each part of a text begins with a space.
    assert_eq!(of(b""), [""; 0]);
    assert_eq!(pieces(&tokenizer, &tokenizer.encode("a", FULL)), ["▁a", "</s>"]);
    assert_eq!(tokenizer.decode(&tokenizer.encode("ab a", FULL), Special::Hide), b"ab a");
}

#[test]
fn unigram_flags() {
    let mut metadata = unigram_metadata();
    metadata.set("tokenizer.ggml.remove_extra_whitespaces", true);
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(pieces(&tokenizer, &tokenizer.encode("  a   a ", PLAIN)), ["▁a", "▁a"]);
    let mut metadata = unigram_metadata();
    metadata.set("tokenizer.ggml.add_space_prefix", false);
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(pieces(&tokenizer, &tokenizer.encode("a a", PLAIN)), ["a", "▁a"]);
}

/// A map of "A" to "a" and "é" (two bytes) to "b", laid out by hand: a node's children are at its offset xor their byte.
#[test]
fn unigram_normalizes_by_its_map() {
    let offset = |offset: u32| offset << 10;
    let (label, has_value) = (|byte: u8| u32::from(byte), 1u32 << 8);
    let mut nodes = vec![0u32; 1024];
    nodes[0] = offset(256);
    nodes[256 ^ 0x41] = label(0x41) | has_value | offset(600); // "A": its value is at 321 xor 600.
    nodes[(256 ^ 0x41) ^ 600] = 1 << 31; // Text 0.
    nodes[256 ^ 0xC3] = label(0xC3) | offset(512);
    let at = (256 ^ 0xC3) ^ 512 ^ 0xA9;
    nodes[at] = label(0xA9) | has_value | offset(1);
    nodes[at ^ 1] = 1 << 31 | 2; // Text at byte 2.
    let mut map = 4096u32.to_le_bytes().to_vec();
    map.extend(nodes.iter().flat_map(|node| node.to_le_bytes()));
    map.extend(b"a\0b\0");
    let mut metadata = unigram_metadata();
    metadata.set("tokenizer.ggml.precompiled_charsmap", Value::Array(Array::U8(map.clone().into())));
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(pieces(&tokenizer, &tokenizer.encode("Aéa", PLAIN)), ["▁aba"]);
    assert_eq!(pieces(&tokenizer, &tokenizer.encode("ìA", PLAIN)), ["▁", "<unk>", "a"]);
    let signed: Vec<i8> = map.iter().map(|byte| byte.cast_signed()).collect();
    metadata.set("tokenizer.ggml.precompiled_charsmap", Value::Array(Array::I8(signed.into())));
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(pieces(&tokenizer, &tokenizer.encode("Aéa", PLAIN)), ["▁aba"]);
    for damaged in [&map[..3], &map[..400], &map[..map.len() - 1], &map[..4100]] {
        metadata.set("tokenizer.ggml.precompiled_charsmap", Value::Array(Array::U8(damaged.into())));
        let error = Tokenizer::from_gguf(&metadata).unwrap_err().to_string();
        assert!(error.contains("precompiled_charsmap") && error.contains("damaged"), "{error}");
    }
}

#[test]
fn byte_pairs_of_characters() {
    let tokenizer = raw_bpe("gemma4");
    let of = |text: &[u8]| pieces(&tokenizer, &tokenizer.encode_bytes(text, PLAIN));
    assert_eq!(of(b"ab ab"), ["ab", "▁ab"]);
    assert_eq!(of("a  語é".as_bytes()), ["a", "▁▁", "語", "<0xC3>", "<0xA9>"]);
    assert_eq!(of(b"a\n\nb\n"), ["a", "\n\n", "b", "\n"]);
    assert_eq!(of(b"a\xFF"), ["a", "<0xEF>", "<0xBF>", "<0xBD>"]);
    assert_eq!(of(b"a<tag> b"), ["a", "<tag>", "▁b"]);
    let ids = tokenizer.encode(" ab é\n\n", PLAIN);
    assert_eq!(tokenizer.decode(&ids, Special::Hide), " ab é\n\n".as_bytes());
    // BOS whatever the file says.
    let mut metadata = raw_bpe_metadata("gemma4");
    metadata.set("tokenizer.ggml.add_bos_token", false);
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert!(
        tokenizer.adds_bos() && tokenizer.warnings().iter().any(|warning| warning.contains("add_bos_token"))
    );
    // `tokenizer.ggml.model = gemma4` implies the rule.
    metadata.set("tokenizer.ggml.model", Value::string("gemma4"));
    metadata.set("tokenizer.ggml.pre", Value::string("anything"));
    assert_eq!(Tokenizer::from_gguf(&metadata).unwrap().encode("a b", PLAIN).len(), 2);
}

#[test]
fn byte_pairs_of_characters_in_other_rules() {
    // No token for line ends but its bytes' merges; each word begins with a space sign; white space is dropped.
    let tokenizer = raw_bpe("sarvam-moe");
    assert_eq!(pieces(&tokenizer, &tokenizer.encode("a\n\nb", PLAIN)), ["a", "\n", "\n", "b"]);
    let tokenizer = raw_bpe("mmbert");
    let of = |text: &str| pieces(&tokenizer, &tokenizer.encode(text, PARSE));
    assert_eq!(of("ab ab\n\nb"), ["▁ab", "▁ab", "\n\n", "▁b"]);
    assert_eq!(of("  a"), ["▁", "▁a"]);
    assert_eq!(of("a <mask>b"), ["▁a", "<mask>", "▁b"]); // The mask takes the space before it.
    let mut metadata = raw_bpe_metadata("whitespace");
    metadata.set("tokenizer.ggml.model", Value::string("whitespace"));
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(pieces(&tokenizer, &tokenizer.encode(" ab \n\tA語", PLAIN)), ["ab", "<0x41>", "語"]);
    metadata.set("tokenizer.ggml.normalizer.lowercase", true);
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(pieces(&tokenizer, &tokenizer.encode("aB", PLAIN)), ["ab"]);
}

#[test]
fn models_that_compose_do_so() {
    let composed = Tokenizer::from_gguf(&bpe_metadata("qwen2")).unwrap();
    assert_eq!(composed.encode("e\u{301}\u{212B}", PLAIN), composed.encode("éÅ", PLAIN));
    let plain = Tokenizer::from_gguf(&bpe_metadata("llama3")).unwrap();
    assert_ne!(plain.encode("e\u{301}", PLAIN), plain.encode("é", PLAIN));
}

#[test]
fn an_end_tag_is_html_where_the_model_has_another_end() {
    let html = |types: [i32; 2]| {
        let mut metadata = without(&bpe_metadata("gpt-2"), "_token_id");
        let mut tokens = gpt2_alphabet();
        tokens.extend(["</s>", "<|im_end|>"].map(str::to_owned));
        let mut all = vec![1i32; 256];
        all.extend(types);
        metadata.set("tokenizer.ggml.tokens", strings(&tokens));
        metadata.set("tokenizer.ggml.token_type", all);
        metadata.set("tokenizer.ggml.merges", strings(&["a a"]));
        let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
        (
            tokenizer.is_control(256),
            tokenizer.is_end_of_generation(256),
            tokenizer.encode("</s>", PARSE) == [256],
        )
    };
    assert_eq!(html([1, 3]), (false, false, false)); // qwen: text.
    assert_eq!(html([4, 3]), (false, false, true)); // gemma: a token for the tag.
    assert_eq!(html([3, 3]), (true, true, true));
    assert_eq!(html([1, 1]), (true, true, true)); // A file that types nothing.
}

#[test]
fn tokenizer_is_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Tokenizer>();
    shared::<minfer_tokenizer::ChatTemplate>();
}

#[test]
fn merges_apply_in_order_of_rank() {
    let tokenizer = bpe();
    let of = |text| pieces(&tokenizer, &tokenizer.encode(text, PLAIN));
    assert_eq!(of("hello world"), ["hello", "Ġworld"]);
    assert_eq!(of("hell"), ["hell"]);
    assert_eq!(of("help"), ["he", "l", "p"]);
    assert_eq!(of("aaaaa"), ["aa", "aa", "a"]);
    assert_eq!(of(""), [""; 0]);
}

#[test]
fn special_tokens_are_parsed_only_on_request_and_added_ones_always() {
    let tokenizer = bpe();
    let of = |text, options| pieces(&tokenizer, &tokenizer.encode(text, options));
    assert_eq!(of("<|start|x>a<tool>", PARSE), ["<|start|x>", "a", "<tool>"]);
    let plain = of("<|start|x><tool>", PLAIN);
    assert_eq!(plain.last().unwrap(), "<tool>");
    assert_eq!(plain[..plain.len() - 1].concat(), "<|start|x>");
    assert!(plain.len() > 2);
    // Token 268 has the type of ordinary text, but it ends turns: llama.cpp's correction by text.
    assert_eq!(of("a<|im_end|>", PARSE), ["a", "<|im_end|>"]);
    assert!(of("a<|im_end|>", PLAIN).len() > 2);
    assert!(tokenizer.is_control(268) && tokenizer.is_end_of_generation(268));
    assert_eq!(tokenizer.warnings().len(), 1);
}

#[test]
fn hidden_tokens_are_not_part_of_the_text() {
    let tokenizer = bpe();
    let ids = tokenizer.encode("<|start|x>hello<tool><|im_end|>", PARSE);
    assert_eq!(tokenizer.decode(&ids, Special::Hide), b"hello<tool>");
    assert_eq!(tokenizer.decode(&ids, Special::Show), b"<|start|x>hello<tool><|im_end|>");
    assert_eq!(tokenizer.decode(&[1_000_000], Special::Show), b"");
}

#[test]
fn bos_and_eos_are_added_as_the_file_says() {
    let mut metadata = bpe_metadata("gpt-2");
    assert_eq!(bpe().encode("a", FULL), [u32::from(b'a')]);
    metadata.set("tokenizer.ggml.add_bos_token", true);
    metadata.set("tokenizer.ggml.add_eos_token", true);
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(tokenizer.encode("a", FULL), [266, u32::from(b'a'), 268]);
    assert_eq!(tokenizer.encode("a", PARSE), [u32::from(b'a')]);
    assert_eq!(tokenizer.encode("", FULL), [266, 268]);
    // SentencePiece: BOS unless the file says no.
    assert_eq!(spm().encode("", FULL), [1]);
}

#[test]
fn sentencepiece_takes_the_highest_score_first_and_spells_the_rest_in_bytes() {
    let tokenizer = spm();
    let of = |text: &[u8]| pieces(&tokenizer, &tokenizer.encode_bytes(text, PARSE));
    assert_eq!(of(b"ab"), ["▁ab"]);
    assert_eq!(of(b"abc"), ["▁ab", "c"]); // "ab" (-4) before "bc" (-5), then "▁ab" (-7) before "abc" (-9).
    assert_eq!(of("語é".as_bytes()), ["▁", "語", "<0xC3>", "<0xA9>"]);
    assert_eq!(of(b"\x80a\xE8"), ["▁", "<0x80>", "a", "<0xE8>"]);
    assert_eq!(of(b"\xC3ab"), ["▁", "<0xC3>", "<0x61>", "b"]); // llama.cpp counts characters by first bytes.
    assert_eq!(of(b"  a"), ["▁", "▁", "▁a"]);
    // A new text begins after a special token, and so a space.
    assert_eq!(of(b"a<s>b<tag>c"), ["▁a", "<s>", "▁", "b", "<tag>", "▁", "c"]);
}

#[test]
fn sentencepiece_without_a_space_before_the_text() {
    let mut metadata = spm_metadata();
    metadata.set("tokenizer.ggml.add_space_prefix", false);
    let tokenizer = Tokenizer::from_gguf(&metadata).unwrap();
    assert_eq!(pieces(&tokenizer, &tokenizer.encode("ab ab", PLAIN)), ["ab", "▁ab"]);
    let ids = tokenizer.encode(" a", PLAIN);
    assert_eq!(tokenizer.decode(&ids, Special::Hide), b" a");
}

#[test]
fn the_space_before_a_text_is_taken_off_once() {
    let tokenizer = spm();
    for text in ["ab", " ab", "  ab c", "語"] {
        let ids = tokenizer.encode(text, FULL);
        assert_eq!(tokenizer.decode(&ids, Special::Hide), text.as_bytes(), "{ids:?}");
    }
    let ids = tokenizer.encode("ab", PLAIN);
    let mut later = tokenizer.detokenizer(Special::Hide).continuing();
    assert_eq!(later.push(ids[0]), " ab");
}

#[test]
fn token_bytes_are_what_a_token_adds_to_a_text() {
    let tokenizer = bpe();
    assert_eq!(&*tokenizer.token_bytes(tokenizer.token_id("Ġworld").unwrap()), b" world");
    assert_eq!(&*tokenizer.token_bytes(tokenizer.token_id("Ċ").unwrap()), b"\n");
    assert_eq!(&*tokenizer.token_bytes(267), b"<tool>");
    let tokenizer = spm();
    assert_eq!(&*tokenizer.token_bytes(tokenizer.token_id("▁ab").unwrap()), b" ab");
    assert_eq!(&*tokenizer.token_bytes(tokenizer.token_id("<0x0A>").unwrap()), b"\n");
    assert_eq!(&*tokenizer.token_bytes(99_999), b"");
}

#[test]
fn a_character_in_pieces_is_held_back_until_it_is_whole() {
    let tokenizer = bpe();
    let mut detokenizer = tokenizer.detokenizer(Special::Hide);
    let ids = "é語".as_bytes().iter().map(|&byte| u32::from(byte)).collect::<Vec<_>>();
    let texts: Vec<String> = ids.iter().map(|&id| detokenizer.push(id).to_owned()).collect();
    assert_eq!(texts, ["", "é", "", "", "語"]);
    assert_eq!(detokenizer.push(0xE8), "");
    assert_eq!(detokenizer.push(u32::from(b'a')), "\u{FFFD}a");
    assert_eq!(detokenizer.push(0xF0), "");
    assert_eq!(detokenizer.finish(), "\u{FFFD}");
}

#[test]
fn ten_megabytes_of_one_character_are_no_trap() {
    // Quadratic work would take hours here; no time is asserted.
    let (bpe, spm, raw, unigram, wpm) = (bpe(), spm(), raw_bpe("gemma4"), unigram(), wpm());
    let all = [&bpe, &spm, &raw, &unigram, &wpm];
    for tokenizer in all {
        tokenizer.encode(&"a".repeat(10_000_000), PLAIN);
    }
    for character in ["語", " ", "1", "\n"] {
        let text = character.repeat(500_000);
        for tokenizer in all {
            let ids = tokenizer.encode(&text, PLAIN);
            if [&bpe, &spm, &raw].iter().any(|exact| std::ptr::eq(*exact, tokenizer)) {
                assert_eq!(tokenizer.decode(&ids, Special::Hide), text.as_bytes());
            }
        }
    }
    for tokenizer in [bpe, spm, raw, unigram, wpm] {
        tokenizer.encode_bytes(&vec![0xFF; 1_000_000], PLAIN);
    }
    for pre in ["jais-2", "superbpe", "afmoe", "tiny_aya", "kimi-k2", "deepseek-llm"] {
        let tokenizer = Tokenizer::from_gguf(&bpe_metadata(pre)).unwrap();
        for character in ["1", " ", "a", "語", "\u{301}", "'"] {
            tokenizer.encode(&character.repeat(100_000), PLAIN);
        }
    }
}

#[test]
fn every_rule_compiles_and_covers_the_text() {
    let text =
        "Hello, it's 1234567 o'clock\r\n\n  \t x = (a+b)*c;  é語🙂\u{301}\u{a0}\u{3000} ¼Ⅷ <|x|> $~^` ";
    // Four rules spell text as it is, and this vocabulary spells bytes; one of them is tried below.
    let as_it_is = ["gemma4", "granite-embed-multi-311m", "sarvam-moe", "mmbert", "whitespace"];
    for pre in minfer_tokenizer::supported_pre_tokenizers().filter(|pre| !as_it_is.contains(pre)) {
        let tokenizer = Tokenizer::from_gguf(&bpe_metadata(pre)).unwrap();
        let ids = tokenizer.encode(text, PLAIN);
        assert_eq!(String::from_utf8_lossy(&tokenizer.decode(&ids, Special::Hide)), text, "{pre}");
    }
}

fn refused(change: impl FnOnce(&mut Metadata)) -> String {
    let mut metadata = bpe_metadata("gpt-2");
    change(&mut metadata);
    Tokenizer::from_gguf(&metadata).unwrap_err().to_string()
}

#[test]
fn bad_vocabularies_are_refused_by_name() {
    let message = refused(|metadata| metadata.set("tokenizer.ggml.model", Value::string("rwkv")));
    assert!(message.contains("rwkv") && message.contains("gpt2"), "{message}");
    let message = refused(|metadata| metadata.set("tokenizer.ggml.pre", Value::string("nonesuch")));
    assert!(
        message.contains("nonesuch") && message.contains("smollm") && message.contains("--pre"),
        "{message}"
    );
    let message = refused(|metadata| metadata.set("tokenizer.ggml.token_type", vec![1i32; 7]));
    assert!(message.contains("7 entries for 269 tokens"), "{message}");
    let message = refused(|metadata| metadata.set("tokenizer.ggml.merges", strings(&["a a", "bb"])));
    assert!(message.contains("merge 1 is \"bb\""), "{message}");
    let message = refused(|metadata| metadata.set("tokenizer.ggml.tokens", strings(&["a", "b", "a"])));
    assert!(message.contains("tokens 0 and 2 have the same text \"a\""), "{message}");
    let message = refused(|metadata| metadata.set("tokenizer.ggml.tokens", strings::<&str>(&[])));
    assert!(message.contains("0 tokens"), "{message}");
    let message = refused(|metadata| metadata.set("tokenizer.ggml.tokens", 5u32));
    assert!(message.contains("tokenizer.ggml.tokens"), "{message}");
    for name in ["bos", "eos", "eot", "eom"] {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let message = refused(|metadata| metadata.set(&key, 269u32));
        assert!(
            message.contains(&key) && message.contains("is 269, but the vocabulary has 269"),
            "{message}"
        );
    }
    let message = refused(|metadata| {
        *metadata = without(metadata, "bos_token_id");
        metadata.set("tokenizer.ggml.add_bos_token", true);
    });
    assert!(message.contains("add_bos_token"), "{message}");
    // Padding beyond the vocabulary occurs, and does no harm.
    let mut padded = bpe_metadata("gpt-2");
    padded.set("tokenizer.ggml.padding_token_id", 269u32);
    let warnings = Tokenizer::from_gguf(&padded).unwrap().warnings().join("\n");
    assert!(warnings.contains("padding token 269"), "{warnings}");
    assert!(matches!(
        Tokenizer::from_gguf(&Metadata::new()),
        Err(Error::MissingKey { key: "tokenizer.ggml.model", .. })
    ));
}

#[test]
fn the_rule_can_be_chosen_by_the_caller() {
    let metadata = bpe_metadata("nonesuch");
    let tokenizer = Tokenizer::from_gguf_with(&metadata, Overrides { pre: Some("smollm") }).unwrap();
    assert_eq!(pieces(&tokenizer, &tokenizer.encode("12", PLAIN)), ["1", "2"]);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn text_comes_back(text in "(hello world|aa|[a-z ]{1,40}|\\PC{1,20}|<tool>|<\\|im_end\\|>|[\\r\\n\\t ]{1,4}){0,6}") {
        let bpe = bpe();
        for options in [PLAIN, PARSE, FULL] {
            let ids = bpe.encode(&text, options);
            prop_assert_eq!(bpe.decode(&ids, Special::Show), text.as_bytes());
        }
        let spm = spm();
        // SentencePiece does not tell a space from its sign.
        let ids = spm.encode(&text, PLAIN);
        let expected = text.replace('▁', " ");
        prop_assert_eq!(spm.decode(&ids, Special::Show), expected.as_bytes());
        let raw = raw_bpe("gemma4");
        prop_assert_eq!(raw.decode(&raw.encode(&text, PLAIN), Special::Show), expected.as_bytes());
    }

    #[test]
    fn bytes_never_panic_and_sentencepiece_keeps_them(text in proptest::collection::vec(any::<u8>(), 0..80)) {
        bpe().encode_bytes(&text, FULL);
        let spm = spm();
        let ids = spm.encode_bytes(&text, PLAIN);
        // A space may end up inside a broken character, and then stays a sign (as in llama.cpp).
        let decoded = spm.decode(&ids, Special::Hide);
        let plain = |bytes: &[u8]| bytes.utf8_chunks().flat_map(|chunk| {
            [chunk.valid().replace('▁', " ").into_bytes(), chunk.invalid().to_vec()].concat()
        }).collect::<Vec<u8>>();
        prop_assert_eq!(plain(&decoded), plain(&text));
    }

    #[test]
    fn incremental_is_whole(ids in proptest::collection::vec(0u32..280, 0..60)) {
        for tokenizer in [bpe(), spm()] {
            for special in [Special::Hide, Special::Show] {
                let mut detokenizer = tokenizer.detokenizer(special);
                let mut text = String::new();
                for &id in &ids {
                    text.push_str(detokenizer.push(id));
                }
                text.push_str(&detokenizer.finish());
                let whole = tokenizer.decode(&ids, special);
                prop_assert_eq!(&text, &String::from_utf8_lossy(&whole));
            }
        }
    }
}
