//! Lists a GGUF file, or converts it row by row:
//!
//! ```text
//! cargo run --release -p hadal-gguf --example convert -- IN.gguf
//! cargo run --release -p hadal-gguf --example convert -- IN.gguf OUT.gguf F32|F16|BF16|Q8_0|copy
//! ```
//!
//! Vectors, and rows that the type cannot pack, stay as they are.

use hadal_gguf::{Gguf, TensorInfo, TensorType, Value, Writer};
use std::error::Error;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // If stderr is closed, there is nowhere to report to.
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [input] => list(&Gguf::open(Path::new(input))?),
        [input, output, "copy"] => convert(&Gguf::open(Path::new(input))?, Path::new(output), None),
        [input, output, kind] => {
            let named = TensorType::ALL.iter().find(|known| known.name() == kind);
            let kind = named.ok_or_else(|| format!("`{kind}` is not a type"))?;
            convert(&Gguf::open(Path::new(input))?, Path::new(output), Some(*kind))
        }
        _ => Err("usage: convert IN.gguf [OUT.gguf F32|F16|BF16|Q8_0|copy]".into()),
    }
}

fn list(file: &Gguf) -> Result<(), Box<dyn Error>> {
    let mut out = io::stdout().lock();
    writeln!(out, "version {}, alignment {}", file.version(), file.alignment())?;
    for (key, value) in file.metadata().iter() {
        match value {
            Value::Array(array) => writeln!(out, "{key}: {} values", array.len())?,
            value => writeln!(out, "{key}: {value:?}")?,
        }
    }
    for tensor in file.tensors() {
        let info = tensor.info();
        writeln!(out, "{} {} {:?}", info.name(), info.kind(), info.dimensions())?;
    }
    Ok(())
}

fn convert(file: &Gguf, output: &Path, kind: Option<TensorType>) -> Result<(), Box<dyn Error>> {
    let target = |info: &TensorInfo| match kind {
        Some(kind) if info.rows() > 1 => {
            TensorInfo::new(info.name(), info.dimensions(), kind).unwrap_or_else(|_| info.clone())
        }
        _ => info.clone(),
    };
    let targets: Vec<_> = file.tensors().map(|tensor| target(tensor.info())).collect();
    let mut writer = Writer::create(output, file.metadata(), targets.clone())?;
    for (tensor, target) in file.tensors().zip(&targets) {
        let info = tensor.info();
        if target == info {
            writer.raw(info.name(), tensor.bytes())?;
            continue;
        }
        // About a million numbers at a time, whatever the size of the tensor.
        let step = (1usize << 20).div_ceil(info.row_length());
        let mut buffer = Vec::new();
        for first in (0..info.rows()).step_by(step) {
            let rows = first..info.rows().min(first + step);
            buffer.resize(rows.len() * info.row_length(), 0.0);
            tensor.dequantise_rows(rows, &mut buffer)?;
            writer.rows(info.name(), &buffer)?;
        }
    }
    Ok(writer.finish()?)
}
