//! minfer-model
