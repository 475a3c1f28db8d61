//! A decoder-only Transformer whose residual stream is a policy.
