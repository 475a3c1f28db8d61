//! Every target, given its seeds and mutations of them.

use crate::{TARGETS, Target, helped, mutate, target};
use std::fs;
use std::panic::{set_hook, take_hook};
use std::path::Path;
use std::sync::{Mutex, Once, PoisonError};

/// Memory is counted for the whole process, so one target at a time.
static ONE: Mutex<()> = Mutex::new(());

/// What is caught on purpose is not told: backtraces take time, and memory that would count.
fn keep_quiet_when_guarded() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let told = take_hook();
        set_hook(Box::new(move |panic| {
            if !hadal_tokenizer::is_guarded() {
                told(panic);
            }
        }));
    });
}

fn seeds(target: &Target) -> Vec<Vec<u8>> {
    let place = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds").join(target.name);
    let mut paths: Vec<_> =
        fs::read_dir(&place).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} holds no seed", place.display());
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn replay(name: &str) {
    let _guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    keep_quiet_when_guarded();
    let target = target(name).unwrap();
    let seeds = seeds(target);
    for seed in &seeds {
        target.run(seed);
    }
    let each = target.replays.div_ceil(seeds.len());
    for (i, seed) in seeds.iter().enumerate() {
        let mut input = seed.clone();
        for j in 0..each {
            // Changes pile up for a while, since some faults need several at once.
            let base = if j % 8 == 0 { seed } else { &input };
            input = mutate(target, base, (i * each + j) as u64);
            input.truncate(target.longest);
            target.run(&input);
        }
    }
}

#[test]
#[ignore = "the target `template` starts it"]
fn computes_a_template() {
    keep_quiet_when_guarded();
    assert!(helped());
    // Before anything else is said.
    std::process::exit(0);
}

/// Otherwise every template would be refused alike.
#[test]
fn a_helper_computes_templates_and_is_stopped() {
    let _guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("seeds/template");
    let outcome =
        |name: &str| crate::targets::outcome(&fs::read_to_string(seeds.join(name)).unwrap());
    let ids = outcome("headers").unwrap();
    assert!(ids.len() > 50, "{ids:?}");
    let stopped = outcome("doubling").unwrap_err();
    assert!(matches!(stopped, hadal_tokenizer::ChatError::Stopped { .. }), "{stopped}");
}

macro_rules! replays {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            replay(stringify!($name));
        })*

        #[test]
        fn every_target_is_replayed() {
            let replayed = [$(stringify!($name)),*];
            assert_eq!(replayed.to_vec(), TARGETS.map(|target| target.name).to_vec());
        }
    };
}

replays! {
    gguf vocabulary gguf_model config model safetensors tokenizer template plan cut suite run_config run report serve documents parquet
}
