//! How far each part turns the stream, seen in the common pass.
//!
//! Block Influence (ShortGPT, arXiv 2403.03853) is `1 - mean cos(x_l, x_(l+1))` over all tokens; angular distance
//! (Gromov et al., arXiv 2403.17887) is `mean arccos(..) / pi` over the last token of each sequence. Both compare what
//! sub-layers read before any norm, and at the end what the head reads before the final norm.

use crate::diagnose::{Diagnostic, Mean, Values, angle, last_tokens};
use hadal_data::Batch;
use hadal_model::Part;
use hadal_report::figure::Figure;
use hadal_residual::{Place, Signal, Site, SubLayerKind};
use std::collections::HashMap;
use std::f64::consts::PI;

/// What was found about a part.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// `1 - cos`, over all tokens.
    influence: Mean,
    /// `angle / pi`, over last tokens.
    distance: Mean,
}

/// Turns of every block, attention and MLP.
#[derive(Default)]
pub(super) struct Turns {
    last: Vec<usize>,
    /// What the previous sub-layer read.
    before: Option<(Site, Values)>,
    /// What the attention of the current block read.
    opened: Option<(usize, Values)>,
    found: HashMap<Part, Turn>,
}

impl Turns {
    pub(super) fn influence(&self, part: Part) -> Option<f64> {
        self.found.get(&part)?.influence.get()
    }

    pub(super) fn distance(&self, part: Part) -> Option<f64> {
        self.found.get(&part)?.distance.get()
    }

    fn turned(&mut self, part: Part, from: &Values, to: &Values) {
        let turn = self.found.entry(part).or_default();
        for (a, b) in from.rows(0).zip(to.rows(0)) {
            if let Some(angle) = angle(a, b) {
                // 1 - cos, without losing small angles to rounding.
                turn.influence.add(2.0 * (angle / 2.0).sin().powi(2));
            }
        }
        for &token in &self.last {
            if let Some(angle) = angle(from.row(token, 0), to.row(token, 0)) {
                turn.distance.add(angle / PI);
            }
        }
    }
}

impl Diagnostic for Turns {
    fn wants(&self, signal: Signal) -> bool {
        signal == Signal::Reading
    }

    fn begin(&mut self, batch: &Batch) {
        self.last = last_tokens(batch);
    }

    fn see(&mut self, place: Place, signal: Signal, values: &Values) {
        if signal != Signal::Reading {
            return;
        }
        if let Some((site, before)) = self.before.take() {
            self.turned(site.into(), &before, values);
        }
        let opens = match place {
            Place::Out => true,
            Place::Site(site) => site.kind() == SubLayerKind::Attention,
        };
        if opens && let Some((block, opened)) = self.opened.take() {
            self.turned(Part::Block(block), &opened, values);
        }
        if let Place::Site(site) = place {
            self.before = Some((site, values.clone()));
            if opens {
                self.opened = Some((site.block(), values.clone()));
            }
        }
    }

    fn end(&mut self) {
        (self.before, self.opened) = (None, None);
    }

    fn figures(&self) -> Vec<Figure> {
        Vec::new()
    }
}
