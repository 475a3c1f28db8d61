use super::replace::replacing;
use super::*;
use hadal_kernels::read_back;
use hadal_model::{Device, ModelConfig, Variant, apart, load, some_tokens};
use hadal_residual::{Init, Weights};
use hadal_train::quality::mean_loss;
use std::path::PathBuf;
use tempfile::TempDir;

/// A model of bytes whose mixers depend on the token, and a text.
fn model(residual: &str) -> (TempDir, PathBuf, PathBuf) {
    let folder = TempDir::new().unwrap();
    let (place, text) = (folder.path().join("model"), folder.path().join("text.txt"));
    let config = ModelConfig {
        vocab_size: 257,
        max_seq_len: 32,
        residual: residual.parse().unwrap(),
        ..ModelConfig::tiny()
    };
    let mut stored = |name: &str, shape: &[usize]| {
        let fresh = ["norm", "post_scale", "pre_scale", ".post", ".pre"];
        if fresh.iter().any(|part| name.contains(part)) && !name.ends_with("_weight") {
            return None;
        }
        let count = shape.iter().product();
        let mut weights = Weights::fresh(5, &Device::flex());
        let drawn = weights.param(name, [count], Init::Normal { std: 0.3 }).val();
        let values: Vec<f32> = drawn.try_into_vec_as().unwrap();
        match name.rsplit('.').next() {
            Some("res_scale" | "mix_scale") => Some(vec![0.5]),
            // Around the identity, as in a trained model.
            Some("res") => Some(
                values
                    .iter()
                    .enumerate()
                    .map(|(k, v)| v * 0.3 + f32::from(u8::from(k % (shape[0] + 1) == 0)))
                    .collect(),
            ),
            _ => Some(values),
        }
    };
    let decoder = Decoder::stored(&config, &mut stored, &Device::flex()).unwrap();
    hadal_model::save(&decoder, &place).unwrap();
    let words: String = (0..700u32).map(|i| format!("{} ", i * i % 997)).collect();
    std::fs::write(&text, words).unwrap();
    (folder, place, text)
}

fn request<'a>(
    model: &'a Path,
    data: &'a Path,
    by: StandIn,
    which: Which,
    out: Option<&'a Path>,
) -> MixersRequest<'a> {
    MixersRequest { model, data: Some(data), batches: Some(2), by, which, out, command: "test" }
}

fn done(request: &MixersRequest) -> Result<MixersCut, PruneError> {
    mixers(request, &AtomicBool::new(false), &mut |_, _| ())
}

const MIXING: [&str; 5] = [
    "hc:streams=3",
    "hc:streams=3,dynamic=false",
    "mhc:streams=3",
    "mhc:streams=2,readout=gated,epsilon=1e-6",
    "mhc_lite:streams=3",
];

/// What is written computes what was measured while the mixers were replaced.
#[test]
fn what_is_written_predicts_as_well_as_was_measured() {
    for residual in MIXING {
        let (folder, place, text) = model(residual);
        for (i, by) in [StandIn::Identity, StandIn::Mean].into_iter().enumerate() {
            for (j, which) in [Which::All, Which::Of(vec![Part::Block(1)]), Which::AllBut(2)]
                .into_iter()
                .enumerate()
            {
                let out = folder.path().join(format!("{i}{j}"));
                let found = done(&request(&place, &text, by, which.clone(), Some(&out))).unwrap();
                assert!(found.difference < 1e-4, "{residual} {by:?}: {}", found.difference);
                let cut = load(&out, &Device::flex()).unwrap().decoder;
                assert_eq!(cut.config().residual.to_string(), found.result);
                // Steered again by hand, on the same batches.
                let whole = load(&place, &Device::flex()).unwrap().decoder;
                let subject = Subject::open(&place).unwrap();
                let data = Halves::read(&subject, Some(&text), Some(2)).unwrap();
                let n = whole.config().residual.to_string().contains("streams=2");
                let identity: BTreeMap<usize, Vec<f64>> = (0..6)
                    .filter(|&site| {
                        found.replaced.iter().any(|part| part.sites().contains(&Site::new(site)))
                    })
                    .map(|site| (site, super::identity(if n { 2 } else { 3 })))
                    .collect();
                let stand_ins = match by {
                    StandIn::Identity => identity,
                    StandIn::Mean => {
                        let mut passed = |_, _| ();
                        let stop = AtomicBool::new(false);
                        let mut course = Course::new(&mut passed, &stop, Ledger::default());
                        let all = means(&whole, Variant::default(), &data.choice, &mut course);
                        all.unwrap()
                            .into_iter()
                            .filter(|(site, _)| identity.contains_key(site))
                            .collect()
                    }
                };
                let mut probe = replacing(&stand_ins);
                let pass = Pass { probe: Some(&mut probe), ..Pass::default() };
                let wanted = mean_loss(&whole, &data.judge[0], pass).unwrap();
                let read = mean_loss(&cut, &data.judge[0], Pass::default()).unwrap();
                assert!(
                    (read - wanted).abs() < 1e-4,
                    "{residual} {by:?} {which:?}: {read} {wanted}"
                );
                assert!((found.cut.loss - wanted).abs() < 1e-4);
                // What does not depend on the token is its own mean.
                let same = by == StandIn::Mean && residual.ends_with("dynamic=false");
                let change = (found.cut.loss - found.whole.loss).abs();
                assert!(found.held_out && same == (change < 1e-7), "{residual} {by:?}: {change}");
            }
        }
    }
}

#[test]
fn without_any_mixer_their_parameters_are_gone() {
    for (residual, result) in [
        ("hc:streams=3", "hc:streams=3,dynamic=true,identity=true"),
        ("mhc:streams=3", "mhc:streams=3,identity=true"),
        ("mhc_lite:streams=3", "mhc:streams=3,identity=true"),
    ] {
        let (folder, place, text) = model(residual);
        let out = folder.path().join("out");
        let all = request(&place, &text, StandIn::Identity, Which::All, Some(&out));
        let found = done(&all).unwrap();
        assert_eq!(found.result, result);
        assert!(found.parameters_after < found.parameters_before);
        assert!(found.kept.is_empty() && found.files.iter().any(|f| f.name == "model.safetensors"));
        // It has no mixers any more.
        let again = folder.path().join("again");
        let error = done(&MixersRequest { model: &out, out: Some(&again), ..all }).unwrap_err();
        assert!(error.is_usage() && error.to_string().contains("identity=true"), "{error}");
        assert!(!again.exists());
    }
}

#[test]
fn those_that_cost_most_stay() {
    let (folder, place, text) = model("mhc:streams=3");
    let found = done(&request(&place, &text, StandIn::Identity, Which::AllBut(2), None)).unwrap();
    let kept = Part::all_sites(&found.kept);
    assert_eq!(kept.len(), 2);
    let least =
        kept.iter().map(|site| found.worth[site.index].loss_change).fold(f64::INFINITY, f64::min);
    for (index, worth) in found.worth.iter().enumerate() {
        assert!(kept.contains(&Site::new(index)) || worth.loss_change <= least, "{found:?}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing was written");
}

#[test]
fn means_stand_in_for_the_mixers_of_these_tokens_alone() {
    let (_folder, place, text) = model("mhc:streams=3");
    let found = |which| done(&request(&place, &text, StandIn::Mean, which, None)).unwrap();
    let decoder = load(&place, &Device::flex()).unwrap().decoder;
    let tokens = some_tokens(decoder.config()).unwrap();
    let logits = |pass| read_back(decoder.logits(&tokens, pass).unwrap()).unwrap();
    let none = BTreeMap::new();
    let mut probe = replacing(&none);
    let same = logits(Pass { probe: Some(&mut probe), ..Pass::default() });
    assert!(apart(&logits(Pass::default()), &same) < 1e-5);
    let (all, one) = (found(Which::All), found(Which::Of(vec![Part::Attention(0)])));
    assert_ne!(all.cut.loss, one.cut.loss);
    assert_eq!(one.kept, [Part::Mlp(0), Part::Block(1), Part::Block(2)]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (folder, place, text) = model("hc:streams=2");
    let refused = |model: &Path, which| {
        let error = done(&request(model, &text, StandIn::Mean, which, None)).unwrap_err();
        assert!(error.is_usage(), "{error}");
        error.to_string()
    };
    assert!(refused(&place, Which::Of(vec![Part::Block(3)])).contains("0 to 2"));
    assert!(refused(&place, Which::AllBut(6)).contains("--keep is 6"));
    let (_other, prenorm, _) = model("prenorm");
    assert!(refused(&prenorm, Which::All).contains("the stream of this model is prenorm"));
    let out = folder.path().join("model");
    let error = done(&request(&place, &text, StandIn::Mean, Which::All, Some(&out))).unwrap_err();
    assert!(error.to_string().contains("exists already"), "{error}");
}
