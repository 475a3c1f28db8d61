//! What every policy adds to a model, counted without building one:
//!
//! ```text
//! cargo run --release --example cost [CONFIG]
//! ```

use hadal_model::{ModelCost, read_config};
use hadal_residual::ResidualConfig;
use std::error::Error;
use std::io::{Write, stdout};
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).map_or("tests/models/stories260K".into(), PathBuf::from);
    let mut config = read_config(&path)?;
    writeln!(
        stdout(),
        "{:<12}{:>14}{:>16}{:>21}",
        "policy",
        "parameters",
        "FLOPs/token",
        "bytes of state/token"
    )?;
    for policy in ResidualConfig::all() {
        config.residual = policy;
        let name = config.residual.about().kind;
        match ModelCost::of(&config) {
            Ok(cost) => writeln!(
                stdout(),
                "{name:<12}{:>14}{:>16}{:>21}",
                cost.parameters.residual,
                cost.residual_flops_per_token,
                cost.state_bytes_per_token
            )?,
            Err(refusal) => writeln!(stdout(), "{name:<12}{refusal}")?,
        }
    }
    Ok(())
}
