//! Everything above one model step: requests, scheduling, KV block accounting, sampling.
pub mod executor;
pub mod sampling;
