//! What makes a run here and now: its data, this program, and how it computes.

use super::config::RunConfig;
use hadal_cpu::machine::cpu_model;
use hadal_cpu::pool::threads;
use hadal_cpu::{Form, Precision, Unit};
use hadal_data::tasks::GENERATOR_VERSION;
use hadal_data::{Feed, FeedError};
use hadal_files::{FileError, hash, pretty_json, read_text, write_whole};
use hadal_kernels::fuses;
use hadal_model::{CPU, Device};
use hadal_report::provenance::{Provenance, differences};
use std::path::Path;
use std::sync::OnceLock;

static COMMIT: OnceLock<&str> = OnceLock::new();

/// Says from which commit the program was built. Only the program itself can know; the directory that it happens to be
/// started in says nothing about it, and must not be asked: its repository may name programs to run.
pub fn set_commit(commit: &'static str) {
    // A program is built once, so a second call has nothing new to say.
    let _ = COMMIT.set(commit);
}

static THREADS: OnceLock<usize> = OnceLock::new();

/// Says that another number of threads computes than `hadal_cpu::pool::threads` would take.
pub fn set_threads(threads: usize) {
    // A program makes its threads once.
    let _ = THREADS.set(threads);
}

/// What would make a run with these settings. This opens the data, but does not read it.
pub fn of(config: &RunConfig) -> Result<Provenance, FeedError> {
    let feed = config.open_feed()?;
    let (data, task_generator) = match feed {
        // Every seed has instances of its own, but they are one task.
        Feed::Task { task, .. } => {
            (Feed::Task { task, seed: 0 }.fingerprint()?, Some(GENERATOR_VERSION))
        }
        text => (text.fingerprint()?, None),
    };
    let data = blake3::hash(data.as_bytes()).to_hex().to_string();
    let here = Provenance { data: Some(data), task_generator, ..here() };
    let device = &config.train.device;
    Ok(match device == CPU {
        true => Provenance { simd: Some(simd(config.train.precision)), ..here },
        false => Provenance {
            simd: Some("plain".into()),
            backend: Some(format!("burn 0.22.1 {device}, f32")),
            device: Some(device.clone()),
            inexact: INEXACT.map(str::to_owned).to_vec(),
            ..here
        },
    })
}

/// Why a run on another device than the CPU need not come out the same twice: see docs/backends.md.
const INEXACT: [&str; 2] = [
    "autotune: the kernels of a product or a sum are those that were fastest when they were first needed",
    "atomics: a kernel of the tensor library may add in any order; sums of the loss, of norms and of the optimiser do not",
];

/// Records that this program goes on with a run, if it is another one than the last, and says in what it differs.
pub fn resumed(run: &Path, config: &RunConfig) -> Result<Vec<String>, ResumedError> {
    let now = of(config)?;
    let path = run.join(Provenance::FILE);
    let mut about: serde_json::Value = match read_text(&path) {
        Ok(text) => serde_json::from_str(&text).unwrap_or_default(),
        Err(_) => serde_json::Value::Null,
    };
    let recorded = Provenance::read(run);
    let differ = differences(recorded.all().last().unwrap_or(&recorded), &now);
    if differ.is_empty() {
        return Ok(differ);
    }
    let entry = serde_json::to_value(&now).unwrap_or_default();
    // What a later version has written stays. If nothing can be read, nothing says who began it.
    if !about.is_object() {
        about = serde_json::json!({});
    }
    match about.get_mut("resumed_by") {
        Some(serde_json::Value::Array(list)) => list.push(entry),
        _ => about["resumed_by"] = serde_json::Value::Array(vec![entry]),
    }
    write_whole(&path, pretty_json(&path, &about)? + "\n")?;
    Ok(differ)
}

/// Why it cannot be recorded who goes on with a run.
#[derive(Debug, thiserror::Error)]
pub enum ResumedError {
    /// The data cannot be opened.
    #[error(transparent)]
    Data(#[from] FeedError),
    /// `run.json` cannot be written.
    #[error(transparent)]
    File(#[from] FileError),
}

/// This program in words.
pub(crate) fn build() -> String {
    here().build()
}

/// This program, and how it computes.
fn here() -> Provenance {
    Provenance {
        version: Some(env!("CARGO_PKG_VERSION").into()),
        commit: COMMIT.get().map(|&commit| commit.to_owned()),
        executable: executable(),
        cpu: cpu_model(),
        // Asking rayon itself would start its threads.
        threads: Some(THREADS.get().copied().unwrap_or_else(threads)),
        backend: Some("burn 0.22.1 flex, f32".into()),
        os: Some(std::env::consts::OS.into()),
        architecture: Some(std::env::consts::ARCH.into()),
        ..Provenance::default()
    }
}

/// The form of the kernels in this process, and what multiplies rounded operands: `avx512 with amx`.
pub fn simd(precision: Precision) -> String {
    if !fuses(&Device::flex()) {
        return "plain".into();
    }
    let unit = if precision == Precision::F32 { None } else { Unit::best() };
    match unit {
        Some(unit) => format!("{} with {unit}", Form::best()),
        None => Form::best().to_string(),
    }
}

/// The beginning of this program's blake3. It takes some hundredths of a second, once.
fn executable() -> Option<String> {
    const DIGITS: usize = 16;
    static HASH: OnceLock<Option<String>> = OnceLock::new();
    let compute = || {
        // On Linux this is the running program even if another one has taken its name since.
        let itself = Path::new("/proc/self/exe");
        let hash = hash(itself).ok().or_else(|| hash(&std::env::current_exe().ok()?).ok());
        hash.map(|(hash, _)| hash[..DIGITS].to_owned())
    };
    HASH.get_or_init(compute).clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;

    #[test]
    fn what_multiplies_rounded_operands_is_named_where_there_is_something() {
        let (whole, rounded) = (simd(Precision::F32), simd(Precision::Bf16));
        assert!(!whole.contains(' '), "{whole}");
        match Unit::best().filter(|_| whole != "plain") {
            Some(unit) => assert_eq!(rounded, format!("{whole} with {unit}")),
            None => assert_eq!(rounded, whole),
        }
    }

    fn config(seed: u64, length: usize) -> RunConfig {
        let text = format!(
            "seed = {seed}\n[train]\nsteps = 4\nbatch = 2\n[model]\nd_model = 16\nn_layers = 2\nn_heads = 2\n\
             [residual]\nkind = \"prenorm\"\n[data.generated]\ntask = \"khop\"\nlength = {length}\n"
        );
        RunConfig::parse(&text, "test").unwrap()
    }

    #[test]
    fn data_is_the_same_for_every_seed_but_not_for_every_task() {
        let made = |seed, length| of(&config(seed, length)).unwrap();
        assert_eq!(made(0, 24), made(1, 24));
        assert_ne!(made(0, 24).data, made(0, 32).data);
        assert_eq!(made(0, 24).task_generator, Some(GENERATOR_VERSION));
        assert!(made(0, 24).executable.is_some_and(|hash| hash.len() == 16));
    }

    #[test]
    fn another_program_that_goes_on_with_a_run_is_recorded_once() {
        let folder = tempfile::tempdir().unwrap();
        let (path, config) = (folder.path().join(Provenance::FILE), config(0, 24));
        let now = of(&config).unwrap();
        let then = Provenance { simd: Some("other".into()), ..now.clone() };
        let mut about = serde_json::to_value(&then).unwrap();
        about["later"] = json!("kept");
        fs::write(&path, about.to_string()).unwrap();
        let said = resumed(folder.path(), &config).unwrap();
        assert!(said.len() == 1 && said[0].starts_with("SIMD form: other then, "), "{said:?}");
        let recorded = Provenance::read(folder.path());
        assert_eq!(recorded, Provenance { resumed_by: vec![now], ..then });
        assert!(fs::read_to_string(&path).unwrap().contains("kept"));
        assert!(resumed(folder.path(), &config).unwrap().is_empty());
        assert_eq!(Provenance::read(folder.path()), recorded);
    }

    #[test]
    fn a_run_that_does_not_say_who_began_it_is_gone_on_with() {
        let folder = tempfile::tempdir().unwrap();
        for before in [None, Some("{"), Some("7")] {
            if let Some(before) = before {
                fs::write(folder.path().join(Provenance::FILE), before).unwrap();
            }
            let said = resumed(folder.path(), &config(0, 24)).unwrap();
            assert!(said[0].starts_with("data: unknown then"), "{said:?}");
            let recorded = Provenance::read(folder.path());
            assert_eq!((recorded.data, recorded.resumed_by.len()), (None, 1));
        }
    }
}
