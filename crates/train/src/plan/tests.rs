use super::*;
use crate::layers::ConfigLayers;

fn job(preset: &str, residual: &str) -> Job {
    let residual = residual.parse().unwrap();
    let config = ConfigLayers::from_preset(preset)
        .and_then(|layers| layers.with_residual(&residual))
        .and_then(ConfigLayers::finish)
        .unwrap();
    let seq_len = config.train.seq_len.unwrap();
    let model = config.model.resolve(&residual, 257, seq_len);
    Job::of(&config, model, seq_len)
}

fn machine(devices: u64, memory: u64) -> Machine {
    Machine { devices, memory: Some(memory), bandwidth: 1e10, flops: 1e13, wire: Wire::F32 }
}

fn plan(preset: &str, residual: &str, devices: u64) -> StepPlan {
    Counted::new(job(preset, residual)).unwrap().plan(&machine(devices, 80_000_000_000))
}

/// Table 2 of the MGR paper: 0.12, 0.35 and 0.77B; Llama 2's 6.7B and 69B.
#[test]
fn bodies_have_their_published_sizes() {
    for (preset, billions, near) in [
        ("s", 0.1236, 1e-3),
        ("m", 0.3535, 1e-3),
        ("l", 0.7722, 1e-3),
        ("7b", 6.738, 1e-3),
        ("70b", 68.977, 1e-3),
    ] {
        let parameters = plan(preset, "prenorm", 1).parameters as f64 / 1e9;
        assert!((parameters / billions - 1.0).abs() < near, "{preset}: {parameters}");
    }
    // 34,665 parameters are the policy's in scale S, as the spec of the paper counts them.
    assert_eq!(
        plan("s", "mgr:streams=4", 1).parameters - plan("s", "prenorm", 1).parameters,
        34_665
    );
}

#[test]
fn weights_gradients_and_slots_are_sums_by_hand() {
    let plan = plan("s", "prenorm", 1);
    let (d, blocks, words) = (768, 12, 50_304);
    let hidden = blocks * 12 * d * d;
    let norms = (2 * blocks + 1) * d;
    assert_eq!(plan.parameters, hidden + words * d + norms);
    assert_eq!(plan.memory.weights, 4 * plan.parameters);
    // Muon remembers one number of each, AdamW two.
    assert_eq!(plan.memory.optimiser, 4 * (hidden + 2 * (words * d + norms)));
    assert_eq!(plan.passes, Passes { count: 32, batch: 16 });
}

#[test]
fn the_traffic_is_two_times_p_minus_one_by_p_of_the_parameters() {
    let one = Traffic::of(1000, 1, Wire::F32);
    assert_eq!(one.total(), 0);
    let four = Traffic::of(1000, 4, Wire::F32);
    assert_eq!((four.gradients, four.parameters), (3000, 3000));
    let rounded = Traffic::of(1000, 4, Wire::Bf16);
    assert_eq!((rounded.gradients, rounded.parameters), (1500, 3000));
    assert!(Traffic::of(u64::MAX, u64::MAX, Wire::F32).total() > 0);
}

#[test]
fn a_step_takes_what_its_operations_and_bytes_take() {
    let job = job("s", "prenorm");
    let counted = Counted::new(job.clone()).unwrap();
    let forward = counted.cost.forward_flops_per_token as f64;
    let time = counted.plan(&machine(4, 1)).time;
    let tokens = 128.0 * 1024.0;
    let near =
        |found: f64, wanted: f64| assert!((found / wanted - 1.0).abs() < 1e-6, "{found} {wanted}");
    near(time.forward, tokens * forward / 1e13);
    near(time.backward, 2.0 * tokens * forward / 1e13);
    let sent = 0.75 * 4.0 * counted.cost.parameters.total() as f64 / 1e10;
    near(time.gradients, sent);
    near(time.parameters, sent);
    near(time.apart(), time.forward + time.backward + time.optimiser + 2.0 * sent);
    assert!(time.overlapped() < time.apart());
    // Muon over matrices of 768: four square ones and two of four times that, twelve times.
    let square = 5.0 * (3.0 + 1.0) * 768f64.powi(3);
    let wide = 5.0 * (12.0 + 1.0) * 768f64.powi(3);
    let alone = counted.plan(&machine(1, 1)).time;
    near(alone.optimiser, 12.0 * (4.0 * square + 2.0 * wide) / 1e13);
    assert_eq!(alone.gradients + alone.parameters, 0.0);
    // What is computed again is computed once more, but for the head.
    let again = Job { memory: Memory { recompute: true, ..job.memory }, ..job };
    let again = Counted::new(again).unwrap().plan(&machine(4, 1)).time;
    assert!(again.backward > 1.2 * time.backward && again.backward < 1.5 * time.backward);
}

#[test]
fn more_devices_never_need_more_of_each_and_more_sequences_never_less() {
    for residual in ["prenorm", "mgr", "attnres", "hc", "nag", "siamese", "gr"] {
        let counted = Counted::new(job("s", residual)).unwrap();
        let mut before = u64::MAX;
        for devices in [2, 3, 4, 5, 7, 8, 16, 31, 64, 100, 512, 5000] {
            let memory = counted.plan(&machine(devices, 1)).memory;
            assert!(memory.total() <= before, "{residual}: {devices} devices");
            before = memory.total();
        }
        let mut least = 0;
        for batch in [1, 2, 3, 8, 50] {
            // As many passes: sums of more of them wait for the last one.
            let job = Job { batch, sequences: 8 * batch, ..counted.job().clone() };
            let total = Counted::new(job).unwrap().plan(&machine(1, 1)).memory.total();
            assert!(total >= least, "{residual}: {batch} sequences");
            least = total;
        }
    }
}

#[test]
fn the_largest_batch_fits_and_one_more_does_not() {
    let counted = Counted::new(job("s", "mgr")).unwrap();
    let machine = machine(4, 24_000_000_000);
    let largest = counted.plan(&machine).largest_batch.unwrap() as usize;
    let total = |batch| {
        let job = Job { batch, sequences: 4 * batch, ..counted.job().clone() };
        // As many passes as the plan has, whose sums take room.
        Counted::new(job).unwrap().plan(&machine).memory.total()
    };
    assert!(total(largest) <= 24_000_000_000 && total(largest + 1) > 24_000_000_000, "{largest}");
    assert_eq!(largest_of(|n| n <= 777), Some(777));
    assert_eq!(largest_of(|n| n <= 1), Some(1));
    assert_eq!(largest_of(|_| false), None);
    assert!(largest_of(|_| true).unwrap() >= 1 << 40, "it ends");
}

fn largest_of(fits: impl Fn(u64) -> bool) -> Option<u64> {
    super::largest(fits)
}

#[test]
fn what_nothing_fits_into_is_said_with_the_least() {
    let counted = Counted::new(job("70b", "mgr")).unwrap();
    let plan = counted.plan(&machine(4096, 80_000_000_000));
    assert_eq!(plan.largest_batch, None);
    assert!(plan.least > 2 * plan.memory.weights);
}

/// What the MGR paper argues with: streams are a constant number, sources grow with depth.
#[test]
fn borders_carry_streams_sources_or_blocks() {
    let sent = |residual: &str, blocks: usize| {
        let model = job("l", residual).model;
        model.residual.handed_over(blocks, &model.dimensions()) as usize / model.d_model
    };
    for blocks in [2, 9, 18, 35] {
        assert_eq!(sent("prenorm", blocks), 1);
        assert_eq!(sent("mgr:streams=4", blocks), 4);
        assert_eq!(sent("mgr:streams=8", blocks), 8.min(2 * blocks + 1));
        assert_eq!(sent("hc", blocks), 4);
        assert_eq!(sent("attnres", blocks), 2 * blocks + 1);
        // Eight blocks of nine sub-layers.
        assert_eq!(sent("attnres:blocks=8", blocks), 1 + (2 * blocks).div_ceil(9));
        assert_eq!(sent("siamese", blocks), 2);
    }
    for residual in hadal_residual::ResidualConfig::all() {
        let model = job("l", &residual.to_string()).model;
        let dimensions = model.dimensions();
        let state = residual.cost(&dimensions).state;
        for blocks in 1..model.n_layers {
            let sent = residual.handed_over(blocks, &dimensions);
            assert!(sent >= model.d_model as u64 && sent <= state, "{residual}: {sent} of {state}");
        }
    }
}

#[test]
fn figures_hold_what_was_counted() {
    let plans: Vec<PolicyPlan> = ["mgr:streams=4", "attnres"]
        .map(|residual| {
            let counted = Counted::new(job("s", residual)).unwrap();
            let plan = counted.plan(&machine(1, 1));
            PolicyPlan { name: residual.into(), counted, plan }
        })
        .into();
    let all = figures(&plans);
    let names: Vec<&str> = all.iter().map(|figure| &*figure.name).collect();
    assert_eq!(names, ["pipeline-border", "pipeline-stages", "kept"]);
    let hadal_report::figure::Marks::Lines { series } = &all[0].marks else { panic!("lines") };
    // 4 x 768 floats everywhere; 2 b + 1 sources.
    assert_eq!(series[0].y[6], Some(4.0 * 768.0 * 4.0 / 1e3));
    assert_eq!(series[1].y[6], Some(15.0 * 768.0 * 4.0 / 1e3));
    let hadal_report::figure::Marks::Lines { series } = &all[1].marks else { panic!("lines") };
    // Four stages of three blocks: 7, 13 and 19 sources.
    assert_eq!(series[1].y[1], Some(39.0 * 768.0 * 4.0 / 1e3));
}
