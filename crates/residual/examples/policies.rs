//! Every policy with its equation, or one in its full form:
//!
//! ```text
//! cargo run --release --example policies [mgr:streams=8]
//! ```

use hadal_residual::ResidualConfig;
use std::error::Error;
use std::io::{Write, stdout};

fn main() -> Result<(), Box<dyn Error>> {
    let policies = match std::env::args().nth(1) {
        Some(text) => vec![text.parse()?],
        None => ResidualConfig::all(),
    };
    for policy in policies {
        let about = policy.about();
        writeln!(
            stdout(),
            "{policy}\n  {}\n  {}\n  {}",
            about.summary,
            about.equation,
            about.paper
        )?;
        assert_eq!(policy.to_string().parse(), Ok(policy), "what is printed can be read");
    }
    Ok(())
}
