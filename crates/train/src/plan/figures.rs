//! Figures of several policies side by side: what a border between stages of a pipeline carries, and what is kept.

use super::{Counted, StepPlan};
use hadal_report::figure::{Axis, Bars, Figure, Line, Marks};
use hadal_residual::Memory;

/// A policy's plan.
pub struct PolicyPlan {
    /// As it was asked for.
    pub name: String,
    /// Its job.
    pub counted: Counted,
    /// What a step takes.
    pub plan: StepPlan,
}

const FLOAT: f64 = 4.0;

/// What stages of a pipeline would send each other, by place and by number, and what passes keep.
pub fn figures(plans: &[PolicyPlan]) -> Vec<Figure> {
    vec![borders(plans), stages(plans), kept(plans)]
}

/// Bytes of a token that go from the first blocks to the next.
fn sent(plan: &PolicyPlan, blocks: usize) -> f64 {
    let model = &plan.counted.job().model;
    FLOAT * model.residual.handed_over(blocks, &model.dimensions()) as f64
}

fn blocks(plan: &PolicyPlan) -> usize {
    plan.counted.job().model.n_layers
}

fn borders(plans: &[PolicyPlan]) -> Figure {
    let line = |plan: &PolicyPlan| {
        let places = 1..blocks(plan);
        Line {
            name: plan.name.clone(),
            x: places.clone().map(|place| place as f64).collect(),
            y: places.map(|place| Some(sent(plan, place) / 1e3)).collect(),
            ..Line::default()
        }
    };
    Figure {
        name: "pipeline-border".into(),
        title: "What a border between two stages carries".into(),
        caption: "Bytes of depth state that a pipeline stage sends on for each token, by the block behind which the model \
                  is cut. Gradients of the same size come back. Streams are a constant number; sources of earlier outputs \
                  grow with depth."
            .into(),
        x: Axis::new("blocks before the border"),
        y: Axis::new("sent on for each token").unit("kB").log(),
        marks: Marks::Lines { series: plans.iter().map(line).collect() },
    }
}

/// Numbers of stages that blocks can be divided into evenly enough: powers of two.
fn stage_numbers(blocks: usize) -> Vec<usize> {
    std::iter::successors(Some(2), |stages| Some(2 * stages))
        .take_while(|&stages| stages <= blocks)
        .collect()
}

/// Bytes of a token over all borders of this many stages.
fn over_all_borders(plan: &PolicyPlan, stages: usize) -> f64 {
    let blocks = blocks(plan);
    (1..stages).map(|stage| sent(plan, stage * blocks / stages)).sum()
}

fn stages(plans: &[PolicyPlan]) -> Figure {
    let line = |plan: &PolicyPlan| {
        let numbers = stage_numbers(blocks(plan));
        Line {
            name: plan.name.clone(),
            x: numbers.iter().map(|&stages| stages as f64).collect(),
            y: numbers.iter().map(|&n| Some(over_all_borders(plan, n) / 1e3)).collect(),
            ..Line::default()
        }
    };
    Figure {
        name: "pipeline-stages".into(),
        title: "What a pipeline sends in all".into(),
        caption: "Bytes of depth state that all stages together send on for each token, by the number of stages. Each is \
                  sent what the next stage needs, also if an earlier one had it: stages that keep what passed through \
                  them send less in interleaved schedules."
            .into(),
        x: Axis::new("stages").log(),
        y: Axis::new("sent on for each token, over all borders").unit("kB").log(),
        marks: Marks::Lines { series: plans.iter().map(line).collect() },
    }
}

fn kept(plans: &[PolicyPlan]) -> Figure {
    let forms = [
        ("streams computed backwards", Memory { recompute: false, ..Memory::default() }),
        ("streams kept", Memory { kept_share: None, recompute: false }),
        ("sub-layers computed again", Memory { recompute: true, ..Memory::default() }),
    ];
    let bars = |plan: &PolicyPlan| {
        let kept = |(_, memory): (&str, Memory)| Some(plan.counted.kept_per_token(memory) / 1e3);
        Bars { name: plan.name.clone(), values: forms.map(kept).into(), errors: None }
    };
    Figure {
        name: "kept".into(),
        title: "What a pass keeps of each token".into(),
        caption: "Bytes that the way forward keeps for the way back, for each token: with streams computed backwards where \
                  a policy can do that, with all streams kept, and with sub-layers computed again from their inputs."
            .into(),
        x: Axis::new("memory").categories(forms.map(|(name, _)| name)),
        y: Axis::new("kept of each token").unit("kB"),
        marks: Marks::Bars { series: plans.iter().map(bars).collect() },
    }
}
