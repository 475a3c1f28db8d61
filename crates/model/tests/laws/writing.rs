//! A text that is read token by token, by kernels over slices alone, has the logits of passes through a cache.

use crate::support::{
    DESERTED, base, columns, configs, every, every_config, has_fused_form, random, text, values,
    with_policy,
};
use hadal_cpu::work::counted;
use hadal_kernels::{fuses, plainly};
use hadal_model::{
    Cache, Decoder, DepthKv, Device, MlpKind, ModelConfig, Pass, PassError, RopeScaling, Session,
    Tally, Tokens, Variant,
};
use hadal_residual::{Forced, Site, StepMode};

/// The logits after each part of a text, by passes, and what they ran and did.
fn by_passes(decoder: &Decoder, parts: &[&[u32]], variant: Variant) -> Vec<(Vec<f32>, Tally, u64)> {
    let mut cache = Cache::new(decoder.config());
    let pass = |part: &&[u32]| {
        let mut tally = Tally::default();
        let (logits, flops) = counted(|| {
            let pass = Pass {
                cache: Some(&mut cache),
                only_last: true,
                tally: Some(&mut tally),
                ..variant.pass()
            };
            values(decoder.logits(&Tokens::row(part), pass).unwrap())
        });
        (logits, tally, flops)
    };
    parts.iter().map(pass).collect()
}

/// The same by a session.
fn by_session(
    decoder: &Decoder,
    parts: &[&[u32]],
    variant: Variant,
) -> Vec<(Vec<f32>, Tally, u64)> {
    let mut session = Session::new(decoder, variant).unwrap();
    session.reserve(4);
    let read = |part: &&[u32]| {
        let mut tally = Tally::default();
        let (logits, flops) = counted(|| session.feed(part, Some(&mut tally)).unwrap().to_vec());
        (logits, tally, flops)
    };
    parts.iter().map(read).collect()
}

/// A text in parts: a prompt of this length, then single tokens.
fn parts(ids: &[u32], prompt: usize) -> Vec<&[u32]> {
    let (prompt, rest) = ids.split_at(prompt);
    std::iter::once(prompt).filter(|prompt| !prompt.is_empty()).chain(rest.chunks(1)).collect()
}

/// Whether a decode step uses the very kernels of a pass: the gated network with biases is not fused in passes.
fn same_kernels(config: &ModelConfig) -> bool {
    !(config.mlp == MlpKind::Swiglu && config.mlp_bias)
}

#[track_caller]
fn assert_same(decoder: &Decoder, parts: &[&[u32]], variant: Variant) {
    let (passes, steps) = (by_passes(decoder, parts, variant), by_session(decoder, parts, variant));
    for (token, (pass, step)) in passes.iter().zip(&steps).enumerate() {
        if same_kernels(decoder.config()) {
            assert_eq!(step.0, pass.0, "token {token}");
        } else {
            for (step, pass) in step.0.iter().zip(&pass.0) {
                assert!((step - pass).abs() < 1e-5, "token {token}: {step} is not {pass}");
            }
        }
        assert_eq!((&step.1, step.2), (&pass.1, pass.2), "what token {token} cost");
    }
}

#[test]
fn a_session_reads_what_passes_read_to_the_bit() {
    let deserted = DESERTED.map(with_policy).into_iter();
    let all: Vec<_> = configs().into_iter().chain(deserted).collect();
    every(&all, |config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(1, 12));
        for prompt in [0, 3, 9] {
            assert_same(&decoder, &parts(tokens.ids(), prompt), Variant::default());
        }
    });
}

#[test]
fn a_session_leaves_out_what_passes_leave_out() {
    every_config(|config| {
        let (decoder, tokens) = (random(config, &Device::flex()), text(1, 6));
        for absent in [&[3, 5][..], &[4, 5], &[2], &[0, 1, 2, 3, 4, 5]] {
            let absent: Vec<Site> = absent.iter().copied().map(Site::new).collect();
            let pass = Pass { absent: &absent, ..Pass::default() };
            let refused = decoder.logits(&tokens, pass).err();
            let session = Session::new(&decoder, Variant::without(&absent));
            assert_eq!(session.err(), refused);
            if refused.is_some() {
                continue;
            }
            assert_same(&decoder, &parts(tokens.ids(), 2), Variant::without(&absent));
        }
    });
}

#[test]
fn rotations_that_change_with_the_length_are_those_of_a_pass() {
    for scaling in [
        RopeScaling::Dynamic { factor: 2.0, original_max_seq_len: 4 },
        RopeScaling::Linear { factor: 2.0 },
        RopeScaling::Divided { divisors: vec![1.0, 2.0, 3.0] },
    ] {
        let config = ModelConfig { rope_scaling: Some(scaling), ..base() };
        let (decoder, tokens) = (random(&config, &Device::flex()), text(1, 12));
        assert_same(&decoder, &parts(tokens.ids(), 3), Variant::default());
    }
}

#[test]
fn a_session_keeps_the_mode_it_began_in() {
    for policy in ["nag", "nag:skip_threshold=0.2", "mgr:streams=2,skip_threshold=0.3"] {
        let config = with_policy(policy);
        let (decoder, tokens) = (random(&config, &Device::flex()), text(1, 12));
        let forced = Forced { shares: vec![0.5; 2 * config.n_layers], seed: 3 };
        let mode = StepMode { warmth: 0.5, forced, ..StepMode::default() };
        let (variant, parts) = (Variant::in_mode(&mode), parts(tokens.ids(), 3));
        assert_same(&decoder, &parts, variant);
        let [warm, full] = [variant, Variant::default()].map(|v| by_session(&decoder, &parts, v));
        assert_ne!(warm[0].0, full[0].0, "{policy} has no mode");
    }
}

/// If a decode step is silently a pass, only the clock would notice.
#[test]
fn every_model_steps_but_those_that_cannot() {
    every_config(|config| {
        let decoder = random(config, &Device::flex());
        let can = config.depth_kv == DepthKv::None && has_fused_form(config);
        let steps =
            |decoder: &Decoder| Session::new(decoder, Variant::default()).unwrap().decodes_tokens();
        assert_eq!(steps(&decoder), can && fuses(&Device::flex()));
        assert!(!plainly(|| steps(&decoder)));
        assert!(!steps(&random(config, &Device::flex().autodiff())));
    });
}

#[test]
fn a_session_refuses_what_a_pass_refuses_and_goes_on() {
    let (decoder, tokens) = (random(&base(), &Device::flex()), text(1, 32));
    let mut session = Session::new(&decoder, Variant::default()).unwrap();
    session.reserve(32);
    assert!(session.is_empty());
    session.feed(columns(&tokens, 0, 30).ids(), None).unwrap();
    for _ in 0..2 {
        assert_eq!(session.feed(&[], None), Err(PassError::Empty));
        let unknown = PassError::UnknownToken { id: 19, vocab_size: 19 };
        assert_eq!(session.feed(&[19], None), Err(unknown));
        assert_eq!(session.len(), 30);
    }
    session.feed(&tokens.ids()[30..31], None).unwrap();
    session.feed(&tokens.ids()[31..], None).unwrap();
    let too_long = PassError::TooLong { length: 33, max_seq_len: 32 };
    assert_eq!(session.feed(&[1], None), Err(too_long));
    assert_eq!(session.len(), 32);
}
