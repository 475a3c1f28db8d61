//! What is done with models: proving, and later training, comparing and diagnosing.
