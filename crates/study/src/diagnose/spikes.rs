//! How restless a run's training was, from its metrics: no pass of the model is needed.

use super::Diagnosis;
use super::draw::Words;
use super::kind::Kind;
use hadal_report::figure::{Axis, Figure, Line, Marks};
use hadal_report::run::{Run, StepPoint};
use hadal_report::statistics::{RISE, Spikes, WINDOW, running_median, spiking};
use std::path::Path;

/// Adds what the metrics of a run say, if they say anything.
pub(super) fn add(diagnosis: &mut Diagnosis, folder: &Path) {
    // Reading is lenient: what cannot be read says nothing.
    let Ok(run) = Run::read(folder) else { return };
    let clip = run.settings.get("optimizer").and_then(|optimizer| optimizer.get("clip"));
    let clip = clip.and_then(|clip| clip.as_float().or(clip.as_integer().map(|i| i as f64)));
    let Some(spikes) = Spikes::of(&run.steps, clip.unwrap_or(1.0)) else { return };
    diagnosis.figures.push(figure(&run.steps, &spikes));
    diagnosis.shown.push(Kind::Spikes);
    diagnosis.summary.spikes = Some(spikes);
}

fn figure(steps: &[StepPoint], spikes: &Spikes) -> Figure {
    let x: Vec<f64> = steps.iter().map(|step| step.step as f64).collect();
    let curve = |name: &str, y: Vec<Option<f64>>, dashed: bool| Line {
        name: name.into(),
        x: x.clone(),
        y,
        dashed,
        ..Line::default()
    };
    let losses = steps.iter().map(|step| step.loss).collect();
    let medians = running_median(steps).into_iter();
    let medians = medians.map(|median| Some(median).filter(|median| median.is_finite())).collect();
    let caption = format!(
        "{}. A step spikes if its loss is more than {RISE} nats above the median of up to {WINDOW} steps around it; norms \
         are those before clipping.",
        spikes.sentence()
    );
    let mut series = vec![curve("loss", losses, false), curve("running median", medians, true)];
    // Each from the median up to its loss: a lone point of a curve cannot be seen.
    let mut jumps = Line { name: "spikes".into(), ..Line::default() };
    let spiking = spiking(steps).into_iter().zip(running_median(steps)).zip(steps);
    for ((_, median), step) in spiking.filter(|((spikes, _), _)| *spikes) {
        jumps.x.extend([step.step as f64; 3]);
        jumps.y.extend([Some(median).filter(|m| m.is_finite()), step.loss, None]);
    }
    if jumps.y.iter().any(Option::is_some) {
        series.push(jumps);
    }
    Words { name: "spikes", title: "Spikes in training", caption: &caption }.with(
        Axis::new("step"),
        Axis::new("loss").unit("nats"),
        Marks::Lines { series },
    )
}
