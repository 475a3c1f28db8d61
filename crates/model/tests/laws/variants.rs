//! The settings that laws are tried on besides every kind's defaults: one line each, by kind.

use crate::support::ROUTED;

/// Settings other than the defaults, which are tried as well.
pub(crate) const VARIANTS: &[&str] = &[
    "mixln:post_fraction=0.5",
    "highway:gate=scalar",
    "hc:dynamic=false",
    "hc:streams=2",
    "mhc:streams=2,sinkhorn_iters=30",
    "mhc_lite:streams=3",
    "attnres:blocks=1",
    "attnres:blocks=2",
    "attnres:blocks=3",
    "attnres:block_size=4",
    "attnres:heads=2",
    "attnres:blocks=2,heads=2",
    "attnres:block_size=2,normed=true",
    "attnres:delta=true",
    "attnres:blocks=3,delta=true,heads=2",
    "attnres:delta=true,gated=true",
    "attnres:block_size=4,delta=true,gated=true",
    "mgr:gate=independent",
    "mgr:streams=1,gate=independent",
    "mgr:streams=1",
    "mgr:streams=2,gate=independent",
    "mgr:streams=2",
    // Only the last sub-layer is gated; then none is.
    "mgr:streams=6,gate=independent",
    "mgr:streams=7",
    "mgr:streams=9",
    // A threshold in the middle of the gains, so that some tokens skip and others run.
    "nag:directions=3,skip_threshold=0.25",
    "nag:directions=3,skip_threshold=0.25,skip_shrink=1.0",
    "nag:directions=3,skip_threshold=0.25,skip_kv=drop",
    "mgr:streams=2,skip_threshold=[0.0,0.34,0.36,0.4,0.22,0.34]",
    "mgr:streams=2,gate=independent,skip_threshold=0.55,skip_shrink=0.5,skip_kv=drop",
    "mgr:streams=3,skip_threshold={\"attention\":0.31,\"mlp\":0.32}",
    "mgr:streams=4,skip_threshold=0.0",
    ROUTED,
];
