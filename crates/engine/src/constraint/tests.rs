//! What is refused, and that what comes out is what was asked for.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::executor::{CacheGroup, Limits};
use crate::fake::FakeExecutor;
use crate::{
    Engine, EngineConfig, Event, FinishReason, Request, RequestError, SamplingParams, Stop, SubmitError,
    TokenTable,
};

/// Bytes, some longer tokens, and one that ends texts.
fn table() -> TokenTable {
    let bytes = (0..=u8::MAX).map(|byte| vec![byte]);
    let more =
        ["\":", "\",\"", "{\"", "true", "fal", "se", "null", "12", "aa", "ab", "}}", "]}", " \"", "é", ""];
    bytes.chain(more.map(|text| text.as_bytes().to_vec())).collect()
}

const VOCAB: usize = 256 + 15;
const END: TokenId = VOCAB as TokenId - 1;

fn engine() -> Engine {
    let groups = vec![CacheGroup { blocks: 300, window: None }];
    let limits = Limits {
        vocab: VOCAB,
        context: 4096,
        max_tokens: 64,
        max_outputs: 16,
        block_tokens: 16,
        groups,
        bidirectional: false,
    };
    Engine::new(FakeExecutor::new(limits), table(), EngineConfig::default()).unwrap()
}

/// The text of a request that samples with a seed, and why it ended.
fn text(engine: &Engine, grammar: Grammar, seed: u64) -> (String, FinishReason) {
    let mut request = Request { prompt: vec![seed as TokenId % 7], ..Request::default() };
    request.sampling = SamplingParams { temperature: 4.0, seed: Some(seed), ..SamplingParams::default() };
    request.constraint = Some(Constraint { grammar, begin: Begin::Now });
    request.stop.tokens = vec![END];
    let (mut text, mut end) = (Vec::new(), FinishReason::Cancelled);
    for event in engine.submit(request).unwrap() {
        match event {
            Event::Token { bytes, .. } => text.extend(bytes),
            Event::Finished { reason, .. } => end = reason,
            _ => {}
        }
    }
    (String::from_utf8(text).unwrap(), end)
}

/// Whether a value is one that a schema describes: the keywords of [`schema`], from their definition.
fn describes(schema: &Value, value: &Value) -> bool {
    let types = |name: &Value| match name.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("integer") => value.as_f64().is_some_and(|n| n.fract() == 0.0),
        Some("number") => value.is_number(),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => panic!("{schema}"),
    };
    schema.as_object().unwrap().iter().all(|(keyword, wanted)| match keyword.as_str() {
        "type" => types(wanted),
        "const" => value == wanted,
        "enum" => wanted.as_array().unwrap().contains(value),
        "minimum" => value.as_f64().is_none_or(|n| n >= wanted.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|n| n <= wanted.as_f64().unwrap()),
        "maxLength" => value.as_str().is_none_or(|s| s.chars().count() as u64 <= wanted.as_u64().unwrap()),
        "minItems" => value.as_array().is_none_or(|a| a.len() as u64 >= wanted.as_u64().unwrap()),
        "maxItems" => value.as_array().is_none_or(|a| a.len() as u64 <= wanted.as_u64().unwrap()),
        "items" => value.as_array().is_none_or(|a| a.iter().all(|item| describes(wanted, item))),
        "anyOf" => wanted.as_array().unwrap().iter().any(|schema| describes(schema, value)),
        "required" => {
            wanted.as_array().unwrap().iter().all(|name| value.get(name.as_str().unwrap()).is_some())
        }
        "properties" => value.as_object().is_none_or(|object| {
            object.iter().all(|(name, value)| wanted.get(name).is_none_or(|schema| describes(schema, value)))
        }),
        "additionalProperties" => value
            .as_object()
            .is_none_or(|object| object.keys().all(|name| schema["properties"].get(name).is_some())),
        _ => panic!("{schema}"),
    })
}

/// Schemas of bounded texts.
fn schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(json!({"type": "null"})),
        Just(json!({"type": "boolean"})),
        (-50i64..50, 0i64..200)
            .prop_map(|(min, more)| json!({"type": "integer", "minimum": min, "maximum": min + more})),
        (-5i64..5, 0i64..3)
            .prop_map(|(min, more)| json!({"type": "number", "minimum": min, "maximum": min + more})),
        (0usize..12).prop_map(|max| json!({"type": "string", "maxLength": max})),
        proptest::collection::vec("[a-c\"\\\\é{ ]{0,6}", 1..4).prop_map(|texts| json!({"enum": texts})),
        (-9i64..9).prop_map(|n| json!({"const": n})),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        let named = |schemas: Vec<(Value, bool)>| {
            let name = |index| format!("p{index}");
            let required: Vec<String> =
                schemas.iter().enumerate().filter(|(_, (_, must))| *must).map(|(index, _)| name(index)).collect();
            let properties: serde_json::Map<String, Value> =
                schemas.into_iter().enumerate().map(|(index, (schema, _))| (name(index), schema)).collect();
            json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false})
        };
        prop_oneof![
            proptest::collection::vec((inner.clone(), any::<bool>()), 0..4).prop_map(named),
            (inner.clone(), 0usize..3, 0usize..3).prop_map(|(items, min, more)| {
                json!({"type": "array", "items": items, "minItems": min, "maxItems": min + more})
            }),
            proptest::collection::vec(inner, 1..3).prop_map(|schemas| json!({"anyOf": schemas})),
        ]
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// What is sampled from logits that know nothing of JSON is JSON, and what its schema describes.
    #[test]
    fn texts_are_what_their_schema_describes(schema in schema(), seed in any::<u64>()) {
        let engine = engine();
        for seed in [seed, seed.wrapping_add(1), seed.wrapping_add(2)] {
            let (text, reason) = text(&engine, Grammar::JsonSchema(schema.to_string()), seed);
            prop_assert!(matches!(reason, FinishReason::Stop(_)), "{schema} {text} {reason:?}");
            let value: Result<Value, _> = serde_json::from_str(&text);
            prop_assert!(value.as_ref().is_ok_and(|value| describes(&schema, value)), "{schema} {text}");
        }
    }
}

#[test]
fn the_checker_can_fail() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "integer", "maximum": 3}}, "required": ["a"],
        "additionalProperties": false});
    for (value, expected) in [
        (json!({"a": 3}), true),
        (json!({"a": 4}), false),
        (json!({}), false),
        (json!({"a": 1, "b": 1}), false),
        (json!([]), false),
    ] {
        assert_eq!(describes(&schema, &value), expected, "{value}");
    }
}

#[test]
fn json_objects_are_objects() {
    let engine = engine();
    let mut whole = 0;
    for seed in 0..30 {
        let (text, reason) = text(&engine, Grammar::JsonObject, seed);
        assert!(text.starts_with('{'), "{text}");
        if matches!(reason, FinishReason::Stop(_)) {
            match serde_json::from_str::<Value>(&text) {
                Ok(value) => assert!(value.is_object()),
                // JSON has numbers that the parser has not.
                Err(error) => assert!(error.to_string().starts_with("number out of range"), "{text}"),
            }
            whole += 1;
        }
    }
    assert!(whole > 20, "{whole}");
}

#[test]
fn a_lark_grammar_with_rules_and_a_schema_inside() {
    let engine = engine();
    let lark = "start: sum \"=\" answer\nsum: NUMBER (\"+\" sum)?\nNUMBER: /[0-9]{1,3}/\nanswer: %json {\"type\": \
        \"integer\", \"minimum\": 7, \"maximum\": 9}";
    for seed in 0..20 {
        let (text, _) = text(&engine, Grammar::Lark(lark.to_owned()), seed);
        let (sum, answer) = text.split_once('=').unwrap();
        assert!(sum.split('+').all(|n| n.parse::<u32>().unwrap() < 1000), "{text}");
        assert!((7..10).contains(&answer.parse().unwrap()), "{text}");
    }
}

#[test]
fn gbnf_says_what_its_regular_expression_says() {
    let engine = engine();
    // Rules over several lines, what one part takes and the next one needs too, and every kind of character.
    let list = "# a list\nroot ::= (item \"\\n\")+ end |\n  item{2}\nitem ::= \"- \" [a-c\\x41]{1,3} [^\\n-\\U0010FFFF]? ws\n\n\
        ws ::= [ \\t]* # blanks\nend ::= \"\\\"\\u00e9]\" | \"\"\n";
    let (mut lines, mut items) = (0, 0);
    for seed in 0..40 {
        let (text, reason) = text(&engine, Grammar::gbnf_or_lark(list.to_owned()), seed);
        if !matches!(reason, FinishReason::Stop(_)) {
            continue;
        }
        let blanks = |text: &str| text.trim_start_matches(['\t', ' ']).is_empty();
        let item = |text: &str| {
            let text = text.strip_prefix("- ").unwrap_or_else(|| panic!("{text:?}"));
            let letters = text.len() - text.trim_start_matches(['a', 'b', 'c', 'A']).len();
            assert!((1..4).contains(&letters), "{text:?}");
            let rest = &text[letters..];
            let control = rest.chars().next().filter(|&c| c < '\n').map_or(0, |_| 1);
            blanks(rest) || blanks(&rest[control..])
        };
        match text.rfind('\n') {
            Some(last) => {
                assert!(text[..last].split('\n').all(item), "{text:?}");
                assert!(["", "\"é]"].contains(&&text[last + 1..]), "{text:?}");
                lines += 1;
            }
            None => {
                assert!(text.starts_with("- ") && text[2..].contains("- "), "{text:?}");
                items += 1;
            }
        }
    }
    assert!(lines > 5 && items > 5, "{lines} {items}");
}

fn refused(grammar: Grammar) -> ConstraintError {
    let constraint = Constraint { grammar, begin: Begin::Now };
    let error = constraint.check().unwrap_err();
    let request = Request { prompt: vec![1], constraint: Some(constraint), ..Request::default() };
    assert_eq!(
        engine().submit(request).unwrap_err(),
        SubmitError::Invalid(RequestError::Constraint(error.clone()))
    );
    error
}

#[test]
fn what_a_schema_asks_for_and_is_not_there_is_refused_by_name() {
    for keyword in schema::UNSUPPORTED {
        let inside = json!({"type": "object", "properties": {"a/b": {"items": [true, {"type": "object", keyword: {}}]}}});
        let at = "/properties/a~1b/items/1".to_owned();
        let error = refused(Grammar::JsonSchema(inside.to_string()));
        assert_eq!(error, ConstraintError::Keyword { keyword: keyword.to_owned(), at });
    }
    // A property may be called so.
    let named = json!({"type": "object", "properties": {"not": {"type": "null"}}, "required": ["not"]});
    assert_eq!(
        Constraint { grammar: Grammar::JsonSchema(named.to_string()), begin: Begin::Now }.check(),
        Ok(())
    );
    for (schema, what) in [
        ("{", "is not JSON"),
        ("[]", "an object or true"),
        ("false", "an object or true"),
        (r#"{"type": "nonsense"}"#, "Invalid type: nonsense"),
        (r#"{"type": "string", "format": "nonsense"}"#, "nonsense"),
        (r#"{"type": "string", "pattern": "(?=a)b"}"#, "look-around"),
        (r##"{"$ref": "https://example.org/schema"}"##, "https://example.org/schema"),
        (r##"{"$ref": "#/$defs/nowhere"}"##, "nowhere"),
        (r#"{"type": "integer", "minimum": 3, "maximum": 2}"#, "3"),
        (r#"{"allOf": [{"type": "string"}, {"type": "null"}]}"#, "incompatible types"),
        (r#"{"oneOf": [{"type": "integer"}, {"type": "integer", "minimum": 3}]}"#, "oneOf"),
    ] {
        let error = refused(Grammar::JsonSchema(schema.to_owned())).to_string();
        assert!(error.contains(what), "{schema}: {error}");
    }
}

#[test]
fn what_is_no_grammar_is_refused() {
    for (grammar, what) in [
        (Grammar::Regex("(".into()), "the regular expression is refused"),
        (Grammar::Regex("a(?=b)".into()), "look-around"),
        (Grammar::Regex("(".repeat(100_000)), "the regular expression is refused"),
        (Grammar::Regex(String::new()), "has 0 bytes"),
        (Grammar::Regex("a".repeat(MAX_GRAMMAR_BYTES + 1)), "must have 1 to"),
        (Grammar::Lark("start: nowhere".into()), "nowhere"),
        (Grammar::Lark("rule: \"a\"".into()), "start"),
        (Grammar::Lark("start: <|nowhere|>".into()), "nowhere"),
        (Grammar::Lark(format!("start: {}\"a\"", "(".repeat(100_000))), "nested more than"),
        (
            Grammar::Gbnf("root ::= a\na ::= \"(\" b \")\"\nb ::= a | <think>".into()),
            "tokens (<…>) are not supported",
        ),
        (Grammar::Gbnf("root ::= nowhere".into()), "there is no rule \"nowhere\""),
        (Grammar::Gbnf("rule ::= \"a\"".into()), "no rule \"root\""),
        (Grammar::Gbnf("root ::= \"a\"\n\nroot ::= \"b\"".into()), "line 3: rule \"root\" is there twice"),
        (Grammar::Gbnf("root ::= <think> \"a\"".into()), "line 1: tokens (<…>) are not supported"),
        (Grammar::Gbnf("root ::= \"a\n\"".into()), "is not closed"),
        (Grammar::Gbnf("root ::= [z-a]".into()), "descends"),
        (Grammar::Gbnf("root ::= []".into()), "is empty"),
        (Grammar::Gbnf("root ::= \"\\q\"".into()), "\\q is not an escape"),
        (Grammar::Gbnf("root ::= \"\\uD800\"".into()), "4 hexadecimal digits of a character"),
        (Grammar::Gbnf("root ::= \"a\"{2,x}".into()), "is no number of times"),
        (Grammar::Gbnf("root ::= (\"a\"".into()), "a ( is not closed"),
        (Grammar::Gbnf("root ::= \"a\" )".into()), "')' in rule \"root\" is not understood"),
        (Grammar::Gbnf(format!("root ::= {}", "(".repeat(100_000))), "nested more than"),
        (Grammar::JsonSchema("[".repeat(100_000)), "is not JSON"),
    ] {
        let error = refused(grammar).to_string();
        assert!(error.contains(what) && error.len() < 3000, "{error}");
    }
    let begin = |begin| {
        let constraint = Some(Constraint { grammar: Grammar::JsonObject, begin });
        engine()
            .submit(Request { prompt: vec![1], constraint, ..Request::default() })
            .unwrap_err()
            .to_string()
    };
    assert!(begin(Begin::AfterToken(VOCAB as TokenId)).contains("after token 271, the vocabulary has 271"));
    let end = Request {
        prompt: vec![1],
        constraint: Some(Constraint { grammar: Grammar::JsonObject, begin: Begin::AfterToken(7) }),
        stop: Stop { tokens: vec![3, 7], strings: vec![] },
        ..Request::default()
    };
    let error = ConstraintError::End { id: 7 };
    assert_eq!(engine().submit(end).unwrap_err(), SubmitError::Invalid(RequestError::Constraint(error)));
    assert!(begin(Begin::AfterText(String::new())).contains("has 0 bytes"));
}

#[test]
fn a_grammar_has_schemas_and_tokens_in_it() {
    let schema = json!({"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
        "additionalProperties": false});
    let schema = Grammar::schema_in_lark(schema).unwrap();
    // The end is a token without a text of its own.
    let lark = format!("start: \"<call>\" value <[{END}]>\nvalue: {schema}");
    let engine = engine();
    for seed in 0..20 {
        let mut request = Request { prompt: vec![1], ..Request::default() };
        request.sampling.seed = Some(seed);
        request.constraint = Some(Constraint { grammar: Grammar::Lark(lark.clone()), begin: Begin::Now });
        let (mut text, mut last, mut end) = (Vec::new(), 0, None);
        for event in engine.submit(request).unwrap() {
            match event {
                Event::Token { id, bytes, .. } => {
                    text.extend(bytes);
                    last = id;
                }
                Event::Finished { reason, .. } => end = Some(reason),
                _ => {}
            }
        }
        let text = String::from_utf8(text).unwrap();
        let value: Value = serde_json::from_str(text.strip_prefix("<call>").unwrap()).unwrap();
        assert!([1, 2].map(|n| json!({"n": n})).contains(&value), "{text}");
        assert_eq!((last, end), (END, Some(FinishReason::Stop(crate::Stopped::Constraint))));
    }
    let refused = Grammar::schema_in_lark(json!({"properties": {"a": {"not": {}}}})).unwrap_err();
    assert!(matches!(refused, ConstraintError::Keyword { at, .. } if at == "/properties/a"));
    assert!(Grammar::schema_in_lark(json!("x")).is_err());
}

/// The tokens of a request with a budget.
fn with_budget(engine: &Engine, budget: Budget, grammar: Option<Constraint>, seed: u64) -> Vec<TokenId> {
    let mut request = Request { prompt: vec![1, 2], max_tokens: Some(30), ..Request::default() };
    request.sampling.seed = Some(seed);
    (request.budget, request.constraint) = (Some(budget), grammar);
    let ids = engine.submit(request).unwrap().filter_map(|event| match event {
        Event::Token { id, .. } => Some(id),
        _ => None,
    });
    ids.collect()
}

#[test]
fn a_budget_ends_a_part_at_its_bound_and_nothing_else() {
    let engine = engine();
    let mut free = Request { prompt: vec![1, 2], max_tokens: Some(30), ..Request::default() };
    free.sampling.seed = Some(3);
    let free: Vec<TokenId> = engine
        .submit(free)
        .unwrap()
        .filter_map(|event| match event {
            Event::Token { id, .. } => Some(id),
            _ => None,
        })
        .collect();
    let budget = |tokens: usize| Budget {
        tokens,
        begin: Begin::Now,
        end: Begin::AfterText("</>".to_owned()),
        forced: vec![b'<'.into(), b'/'.into(), b'>'.into()],
    };
    for tokens in [0, 1, 7] {
        let found = with_budget(&engine, budget(tokens), None, 3);
        assert_eq!(found[..tokens], free[..tokens]);
        assert_eq!(found[tokens..tokens + 3], [b'<', b'/', b'>'].map(TokenId::from));
        assert_eq!(found.len(), 30);
    }
    assert_eq!(with_budget(&engine, budget(30), None, 3), free);
    // It begins with a token that comes, and ends with one that comes by itself: nothing is forced.
    let natural = Budget { begin: Begin::AfterToken(free[2]), end: Begin::AfterToken(free[5]), ..budget(8) };
    assert_eq!(with_budget(&engine, natural.clone(), None, 3), free);
    let cut = Budget { tokens: 1, ..natural };
    let found = with_budget(&engine, cut, None, 3);
    assert_eq!(found[..4], free[..4]);
    assert_eq!(found[4..7], [b'<', b'/', b'>'].map(TokenId::from));
    // A constraint that waits for the end begins then.
    let grammar = Grammar::Regex("[ab]{4}".to_owned());
    let after = Constraint { grammar, begin: Begin::AfterText("</>".to_owned()) };
    let found = with_budget(&engine, budget(2), Some(after), 3);
    let rest: Vec<u8> = found[5..].iter().flat_map(|&id| table().bytes(id).to_vec()).collect();
    assert!(rest.len() == 4 && rest.iter().all(|b| [b'a', b'b'].contains(b)), "{rest:?}");
    let none = Request {
        prompt: vec![1],
        budget: Some(Budget { forced: vec![], ..budget(1) }),
        ..Request::default()
    };
    assert!(matches!(engine.submit(none), Err(SubmitError::Invalid(RequestError::Constraint(_)))));
}
