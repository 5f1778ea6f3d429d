//! A server without a socket, and a model without weights.

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use minfer_engine::executor::{CacheGroup, Limits};
use minfer_engine::fake::FakeExecutor;
use minfer_engine::{Engine, EngineConfig, Pooling, TokenTable};
use minfer_tokenizer::{ChatTemplate, SpecialIds, Tokenizer, VocabSource};
use serde_json::Value;
use tower::ServiceExt;

use crate::{About, Config, Model, Single, router};

/// Templates of the families, as short as they can be and still say how calls are written.
pub(crate) const HERMES: &str = "{% if tools %}<tools>{{ tools | tojson }}</tools>{# <tool_call> #}{% endif %}\
    {% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{{ (m.tool_calls or '') | string }}<|im_end|>{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
pub(crate) const HARMONY: &str = "{{ tools }}<|channel|><|message|>{{ messages }}";
pub(crate) const FAMILIES: [(&str, &str); 8] = [
    ("hermes", HERMES),
    (
        "smollm, without tools in its template",
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}",
    ),
    ("qwen 3, which reasons", "{{ tools }}{{ messages }}{# <tool_call> #}<think>\n"),
    ("llama 3", "{{ tools }}<|start_header_id|>{{ messages }}"),
    ("mistral of a list", "{{ tools }}[INST]{{ messages }}{# [TOOL_CALLS] #}"),
    ("mistral of names", "{{ tools }}[INST]{{ messages }}{# [TOOL_CALLS][ARGS] #}"),
    ("gemma 3", "<start_of_turn>{% for m in messages %}{{ m.content }}{% endfor %}"),
    ("granite", "{{ tools }}<|start_of_role|>{{ messages }}{# <|tool_call|> #}"),
];

struct Fake {
    engine: Engine,
    tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl Model for Fake {
    fn id(&self) -> &str {
        "fake"
    }
    fn loaded(&self) -> u64 {
        1
    }
    fn engine(&self) -> &Engine {
        &self.engine
    }
    fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }
    fn template(&self) -> Option<&ChatTemplate> {
        Some(&self.template)
    }
    fn pooling(&self) -> Pooling {
        Pooling::Last
    }
    fn about(&self) -> About {
        About {
            family: "fake".to_owned(),
            parameters: 135_000_000,
            size: "135M".to_owned(),
            quantization: "Q4_1".to_owned(),
            bytes: 1000,
            embedding_width: WIDTH,
        }
    }
}

/// Bytes, and special tokens.
fn tokenizer() -> Tokenizer {
    let mut tokens: Vec<String> = Vec::new();
    let mut types: Vec<i32> = Vec::new();
    let mut next = 0x100..;
    for byte in 0..256u32 {
        let printable = matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
        let code = if printable { byte } else { next.next().unwrap() };
        tokens.push(char::from_u32(code).unwrap().to_string());
        types.push(1);
    }
    for special in ["<|im_start|>", "<|im_end|>", "[TOOL_CALLS]", "[ARGS]", "<think>", "</think>"] {
        tokens.push(special.to_owned());
        types.push(3);
    }
    let (tokens, merges) = (tokens.iter().collect(), ["h e"].iter().collect());
    let source = VocabSource {
        model: "gpt2".to_owned(),
        pre: Some("smollm".to_owned()),
        tokens: &tokens,
        scores: None,
        token_types: Some(types.into()),
        merges: Some(&merges),
        ids: SpecialIds { eos: Some(257), ..SpecialIds::default() },
        add_bos: None,
        add_eos: None,
        add_space_prefix: None,
        remove_extra_whitespaces: None,
        charsmap: None,
        lowercase: None,
        strip_accents: None,
        architecture: "llama".to_owned(),
        name: String::new(),
    };
    Tokenizer::new(&source).unwrap()
}

/// Values of an embedding.
const WIDTH: usize = 8;

pub(crate) struct Client {
    router: axum::Router,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    pub(crate) fn model(template: &str) -> Arc<dyn Model> {
        let tokenizer = tokenizer();
        let vocab = tokenizer.vocab_size();
        let limits = Limits {
            vocab,
            context: 4096,
            max_tokens: 256,
            max_outputs: 64,
            block_tokens: 16,
            groups: vec![CacheGroup { blocks: 2048, window: None }],
            bidirectional: false,
        };
        let bytes =
            |id: u32| if tokenizer.is_special(id) { Default::default() } else { tokenizer.token_bytes(id) };
        let table: TokenTable = (0..vocab as u32).map(bytes).collect();
        let engine = Engine::new(FakeExecutor::new(limits), table, EngineConfig::default()).unwrap();
        let template = ChatTemplate::new(template).unwrap();
        Arc::new(Fake { engine, tokenizer, template })
    }

    pub(crate) fn new(template: &str) -> Client {
        let host = Arc::new(Single(Client::model(template)));
        let router = router(host, &Config::default());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Client { router, runtime }
    }

    /// Status, content type and body.
    pub(crate) fn raw(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: String,
    ) -> (u16, String, String) {
        let mut request = Request::builder().method(method).uri(path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body)).unwrap();
        self.runtime.block_on(async {
            let answered = self.router.clone().oneshot(request);
            let limit = std::time::Duration::from_secs(60);
            let response = tokio::time::timeout(limit, answered).await.expect("an answer in time").unwrap();
            let status = response.status().as_u16();
            let kind = response.headers().get("content-type").map(|kind| kind.to_str().unwrap().to_owned());
            let body =
                tokio::time::timeout(limit, axum::body::to_bytes(response.into_body(), usize::MAX)).await;
            let body = String::from_utf8(body.expect("an end in time").unwrap().to_vec()).unwrap();
            (status, kind.unwrap_or_default(), body)
        })
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        let (status, kind, body) = self.raw("POST", path, &[], body.to_string());
        assert!(kind.contains("application/json"), "{kind} {body}");
        (status, serde_json::from_str(&body).unwrap())
    }

    /// The objects of a stream of server-sent events that ends with `[DONE]`.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Vec<Value> {
        let (status, kind, body) = self.raw("POST", path, &[], body.to_string());
        assert!(status == 200 && kind.contains("text/event-stream"), "{kind} {body}");
        let mut list: Vec<&str> =
            body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
        assert_eq!(list.pop(), Some("[DONE]"), "{body}");
        list.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
    }
}
