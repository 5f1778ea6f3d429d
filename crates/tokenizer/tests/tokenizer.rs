//! Tokenizers of two small hand-made vocabularies. Whole vocabularies are compared with llama.cpp elsewhere
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
    let (bpe, spm) = (bpe(), spm());
    for (character, bytes) in
        [('a', 10_000_000), ('語', 10_000_000), (' ', 1_000_000), ('1', 1_000_000), ('\n', 1_000_000)]
    {
        let text = character.to_string().repeat(bytes / character.len_utf8());
        assert_eq!(bpe.decode(&bpe.encode(&text, PLAIN), Special::Hide), text.as_bytes());
        assert_eq!(spm.decode(&spm.encode(&text, PLAIN), Special::Hide), text.as_bytes());
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
    let message = refused(|metadata| {
        metadata.set("tokenizer.ggml.bos_token_id", 70_000u32);
        metadata.set("tokenizer.ggml.add_bos_token", true);
    });
    assert!(message.contains("add_bos_token"), "{message}");
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
