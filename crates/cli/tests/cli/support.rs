//! Starting the real binary, and copies of models that a test may damage.

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

pub(crate) const CONFIG: &str = "config.json";
pub(crate) const WEIGHTS: &str = "model.safetensors";
pub(crate) const TRACE: &str = "trace.safetensors";
pub(crate) const FILES: [&str; 3] = [CONFIG, WEIGHTS, TRACE];

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests")
}

pub(crate) fn golden(name: &str) -> PathBuf {
    data().join("golden").join(name)
}

pub(crate) fn goldens() -> Vec<PathBuf> {
    let entries = fs::read_dir(data().join("golden")).unwrap();
    let mut found: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    found.sort();
    found
}

pub(crate) fn stories() -> PathBuf {
    data().join("models/stories260K")
}

pub(crate) fn copy_of(directory: &Path) -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        // Not fs::copy: it would keep a read-only mode.
        fs::write(copy.path().join(entry.file_name()), fs::read(entry.path()).unwrap()).unwrap();
    }
    copy
}

/// `hadal SUBCOMMAND` in an environment that does not ask for colours, but asks for backtraces, so that none of them
/// can hide.
pub(crate) fn command(subcommand: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_hadal"));
    command.arg(subcommand);
    plain_environment(&mut command);
    command
}

/// The same, with two gigabytes of address space.
pub(crate) fn command_of_little_memory(subcommand: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -v 2000000 && exec \"$0\" \"$@\""]);
    command.args([env!("CARGO_BIN_EXE_hadal"), subcommand]);
    plain_environment(&mut command);
    command
}

fn plain_environment(command: &mut Command) {
    command.stdin(Stdio::null()).env("RUST_BACKTRACE", "1");
    // No test writes to the user's cache, nor to another test's: this place can hold none.
    command.env("HADAL_CACHE", "/dev/null/cache").env_remove("HADAL_VERIFY");
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        command.env_remove(name);
    }
}

/// The result of a run.
pub(crate) struct Run {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) fn run(command: &mut Command) -> Run {
    Run::of(&command.output().unwrap())
}

pub(crate) fn run_with_stdin(command: &mut Command, input: &[u8]) -> Run {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    Run::of(&child.wait_with_output().unwrap())
}

impl Run {
    /// Whatever the command, there is an exit code, no panic and no colour.
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("output is UTF-8");
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        let code = output.status.code().unwrap_or_else(|| panic!("{}: {stderr}", output.status));
        assert!((0..=2).contains(&code), "exit code {code}: {stderr}");
        for trouble in ["panicked", "bug in hadal", "backtrace", "\x1b["] {
            assert!(!stderr.contains(trouble), "{trouble:?} in {stderr}");
        }
        assert!(!stdout.contains("\x1b["), "{stdout}");
        Self { code, stdout, stderr }
    }

    pub(crate) fn succeeded(self) -> Self {
        assert_eq!(self.code, 0, "{}{}", self.stdout, self.stderr);
        self
    }

    /// One message that says all of `reasons`, and nothing on stdout.
    pub(crate) fn refused(&self, code: i32, reasons: &[&str]) {
        let Self { stdout, stderr, .. } = self;
        assert_eq!(self.code, code, "{reasons:?}: {stdout}{stderr}");
        assert_eq!(stdout, "", "{stderr}");
        assert!(stderr.starts_with("error: "), "{stderr:?}");
        assert_eq!(stderr.matches("error: ").count(), 1, "more than one message: {stderr}");
        for reason in reasons {
            assert!(stderr.contains(reason), "no {reason:?} in: {stderr}");
        }
    }

    /// The same, where the documentation does not promise which of the two codes it is.
    pub(crate) fn failed(&self, reasons: &[&str]) {
        assert_ne!(self.code, 0, "{reasons:?}: {}{}", self.stdout, self.stderr);
        self.refused(self.code, reasons);
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|e| panic!("{e}: {}", self.stdout))
    }
}

/// A tensor as it is in a file.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Tensor {
    pub(crate) fn floats(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { dtype: Dtype::F32, shape: shape.to_vec(), bytes }
    }

    pub(crate) fn integers(shape: &[usize], values: &[i32]) -> Self {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self { dtype: Dtype::I32, shape: shape.to_vec(), bytes }
    }

    pub(crate) fn to_floats(&self) -> Vec<f32> {
        assert_eq!(self.dtype, Dtype::F32);
        self.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    pub(crate) fn magnitude(&self) -> f32 {
        self.to_floats().into_iter().fold(0.0, |most, value| value.abs().max(most))
    }

    pub(crate) fn set(&mut self, index: usize, change: impl FnOnce(f32) -> f32) {
        let mut values = self.to_floats();
        values[index] = change(values[index]);
        *self = Self::floats(&self.shape, &values);
    }
}

pub(crate) type Tensors = BTreeMap<String, Tensor>;

pub(crate) fn read_tensors(path: &Path) -> Tensors {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = |view: TensorView| Tensor {
        dtype: view.dtype(),
        shape: view.shape().to_vec(),
        bytes: view.data().to_vec(),
    };
    file.tensors().into_iter().map(|(name, view)| (name, tensor(view))).collect()
}

pub(crate) fn write_tensors(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, tensor)| {
        (name, TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes).unwrap())
    });
    fs::write(path, safetensors::serialize(views, None).unwrap()).unwrap();
}

pub(crate) fn edit_tensors(path: &Path, change: impl FnOnce(&mut Tensors)) {
    let mut tensors = read_tensors(path);
    change(&mut tensors);
    write_tensors(path, &tensors);
}

/// Parameters as the header of a safetensors file counts them.
pub(crate) fn count_parameters(path: &Path) -> u64 {
    read_tensors(path).values().map(|t| t.shape.iter().product::<usize>() as u64).sum()
}

pub(crate) fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

pub(crate) fn edit_json(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut json = read_json(path);
    change(&mut json);
    fs::write(path, json.to_string()).unwrap();
}

/// Numbers without a pattern that are the same in every run (xorshift64).
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }

    /// Between -1 and 1.
    pub(crate) fn float(&mut self) -> f32 {
        self.below(2001) as f32 / 1000.0 - 1.0
    }
}
