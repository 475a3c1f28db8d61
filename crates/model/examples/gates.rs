//! Watches the gates of a Multi-Gate Residuals model while it reads a text:
//!
//! ```text
//! cargo run --release --example gates [MODEL]
//! ```

use hadal_model::{Device, Pass, Tokens, load};
use hadal_residual::{Place, Recorder, Signal};
use std::error::Error;
use std::io::{Write, stdout};
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let model =
        std::env::args_os().nth(1).map_or("tests/golden/mgr-competitive".into(), PathBuf::from);
    let model = load(&model, &Device::flex())?;

    let mut gates = Recorder::of(&[Signal::Gates]);
    let pass = Pass { probe: Some(&mut gates), ..Pass::default() };
    model.decoder.logits(&Tokens::row(&[1, 2, 3, 4]), pass)?;

    for (place, _, beta) in gates.seen {
        let Place::Site(site) = place else { continue };
        let [_, _, streams, _] = beta.dims();
        let widest: f32 = beta.max().into_scalar();
        writeln!(stdout(), "{site}: {streams} gates per token, the widest is {widest:.3}")?;
    }
    Ok(())
}
