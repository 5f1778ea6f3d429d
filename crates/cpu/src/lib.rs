//! minfer-cpu
