//! How much a stream holds of each token while it is learned from, in floats.

/// What a stream holds of each token during a pass that goes back. It follows from the declarations by which memory is
/// taken, so there is no second count to keep true.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Footprint {
    /// Held from the first junction to the end of the way back.
    pub state: f64,
    /// What each junction adds, in order.
    pub junctions: Vec<Held>,
    /// Gradients that are carried from junction to junction on the way back.
    pub carried: f64,
}

/// What a junction adds to what is held.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Held {
    /// From the way forward until the junction is gone back through.
    pub kept: f64,
    /// From then on, for junctions before it.
    pub left: f64,
    /// While it is gone back through.
    pub working: f64,
}

impl Footprint {
    /// Everything that the way forward leaves.
    pub fn kept(&self) -> f64 {
        self.state + self.junctions.iter().map(|held| held.kept).sum::<f64>()
    }
}
