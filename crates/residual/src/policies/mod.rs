//! The policies: one file each, and the list of them.
//!
//! A new one is a file here, its `mod` line and its line in the list.

mod attnres;
mod ddl;
mod deepnorm;
mod denseformer;
mod gr;
mod hc;
mod highway;
mod keel;
mod lambdas;
mod lns;
mod mgr;
mod mhc;
mod mhc_lite;
mod mixln;
mod mixture_of_depths;
mod mudd;
mod nag;
mod outnorm;
mod postnorm;
mod prenorm;
mod sandwich;
mod siamese;

use crate::PolicyConfig;
use crate::config::policies;

policies! {
    PreNorm(prenorm::PreNormConfig) = "prenorm",
    PostNorm(postnorm::PostNormConfig) = "postnorm",
    LayerNormScaling(lns::LayerNormScalingConfig) = "lns",
    DeepNorm(deepnorm::DeepNormConfig) = "deepnorm",
    MixLn(mixln::MixLnConfig) = "mixln",
    OutNorm(outnorm::OutNormConfig) = "outnorm",
    Sandwich(sandwich::SandwichConfig) = "sandwich",
    Keel(keel::KeelConfig) = "keel",
    Lambdas(lambdas::LambdasConfig) = "lambdas",
    Highway(highway::HighwayConfig) = "highway",
    DenseFormer(denseformer::DenseFormerConfig) = "denseformer",
    Mudd(mudd::MuddConfig) = "mudd",
    SiameseNorm(siamese::SiameseNormConfig) = "siamese",
    HyperConnections(hc::HyperConnectionsConfig) = "hc",
    ManifoldHyperConnections(mhc::ManifoldHyperConnectionsConfig) = "mhc",
    ManifoldLite(mhc_lite::ManifoldLiteConfig) = "mhc_lite",
    AttentionResiduals(attnres::AttentionResidualsConfig) = "attnres",
    MultiGate(mgr::MultiGateConfig) = "mgr",
    NormAgnostic(nag::NormAgnosticConfig) = "nag",
    GatedResidual(gr::GatedResidualConfig) = "gr",
    DeepDelta(ddl::DeepDeltaConfig) = "ddl",
    MixtureOfDepths(mixture_of_depths::MixtureOfDepthsConfig) = "mod",
}

/// PreNorm is what every other policy is compared with.
impl Default for ResidualConfig {
    fn default() -> Self {
        Self::PreNorm(prenorm::PreNormConfig::default())
    }
}

/// The kinds for which a predicate holds.
pub fn kinds_that(holds: impl Fn(&dyn PolicyConfig) -> bool) -> Vec<&'static str> {
    let all = ResidualConfig::all();
    all.iter().filter(|policy| holds(&***policy)).map(|policy| policy.about().kind).collect()
}
