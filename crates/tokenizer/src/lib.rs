//! minfer-tokenizer
