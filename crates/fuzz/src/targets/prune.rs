//! Plans of cuts, and cuts.

use crate::{folder, scratch};
use hadal_model::Part;
use hadal_study::prune::{apply, read_plan};

/// Any bytes are a plan, or are refused.
pub(super) fn plan(bytes: &[u8]) {
    match read_plan(&scratch::file("plan.json", bytes)) {
        Ok(plan) => {
            let parts = Part::of_sites(&Part::all_sites(&plan.remove));
            let _ = Part::list(&parts);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Block 0 of any model is cut out, or that is refused; the first byte of a file `parts` chooses others.
pub(super) fn cut(bytes: &[u8]) {
    let model = scratch::empty("whole");
    let files = folder::split(bytes);
    folder::write(&files, &model);
    let parts = match files.iter().find(|(name, _)| name == "parts") {
        Some((_, text)) => {
            let text = String::from_utf8_lossy(text);
            text.split(',').take(8).filter_map(|part| part.trim().parse().ok()).collect()
        }
        None => vec![Part::Block(0)],
    };
    let gguf = model.join("model.gguf");
    let path = if gguf.is_file() { gguf } else { model };
    let out = scratch::directory().join("cut");
    let _ = std::fs::remove_dir_all(&out);
    match apply(&path, &parts, None, &out, "hadal prune apply") {
        Ok(manifest) => assert!(!manifest.kept.is_empty()),
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(!out.exists(), "a refused cut leaves nothing");
        }
    }
}
