//! minfer
