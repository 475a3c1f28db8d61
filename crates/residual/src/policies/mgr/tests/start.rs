//! Gates at the start: Eq. 14 and the table of the paper's models.

use super::*;

/// A row of the table of Eq. 14 for the paper's models.
struct Start {
    blocks: usize,
    streams: usize,
    gated: usize,
    x: f64,
    logit: f64,
    beta: f64,
    forget: f64,
    literal: f64,
    derived_bias: f64,
}

impl Start {
    const fn of(sizes: [usize; 3], [x, logit]: [f64; 2], gates: [f64; 4]) -> Self {
        let [blocks, streams, gated] = sizes;
        let [beta, forget, literal, derived_bias] = gates;
        Self { blocks, streams, gated, x, logit, beta, forget, literal, derived_bias }
    }

    fn dimensions(&self) -> Dimensions {
        dimensions(2, self.blocks)
    }
}

const STARTS: [Start; 6] = [
    Start::of([12, 4, 21], [21.085537, 2.838232], [0.047426, 0.810297, 0.055293, -3.0]),
    Start::of([12, 8, 17], [18.971404, 2.395292], [0.052711, 0.578313, 0.083532, -2.888782]),
    Start::of([24, 4, 45], [30.866066, 3.290864], [0.032398, 0.870408, 0.035886, -3.396723]),
    Start::of([24, 8, 41], [29.462320, 3.066299], [0.033942, 0.728467, 0.044519, -3.348581]),
    Start::of([36, 4, 69], [38.220781, 3.532833], [0.026164, 0.895345, 0.028392, -3.616867]),
    Start::of([36, 8, 65], [37.096394, 3.370614], [0.026957, 0.784346, 0.033227, -3.586193]),
];

/// The table has six decimals.
#[track_caller]
fn assert_printed(actual: f64, printed: f64) {
    assert!((actual - printed).abs() <= 0.6e-6, "{actual} is not {printed}");
}

#[test]
fn the_logits_of_equation_14_are_those_of_the_table() {
    for row in &STARTS {
        let config = competitive(row.streams);
        assert_eq!(config.gated(&row.dimensions()), row.gated);
        assert_printed(config.inverse_gate(&row.dimensions()), row.x);
        assert_printed(config.initial_logit(&row.dimensions()), row.logit);
        let literal = independent(row.streams).initial_logit(&row.dimensions());
        assert_printed(literal, row.logit);
        let derived = derived(row.streams).initial_logit(&row.dimensions());
        assert_printed(-derived, row.derived_bias);
    }
    let small = [(3, 4, 1.378661), (4, 4, 1.838753), (6, 4, 2.282762), (8, 4, 2.532904)];
    for (blocks, streams, logit) in small.into_iter().chain([(2, 2, 1.786677)]) {
        assert_printed(competitive(streams).initial_logit(&dimensions(2, blocks)), logit);
    }
}

#[test]
fn reported_gates_are_those_of_the_table() {
    for row in &STARTS {
        let reported = |config: MultiGateConfig| {
            config.initial_gates(&row.dimensions()).into_iter().map(|gate| {
                assert_eq!(gate.first_site, row.streams - 1);
                assert_eq!(gate.last_site, 2 * row.blocks - 1);
                let [value] = gate.values[..] else { panic!("one value for all depths") };
                (gate.name, value)
            })
        };
        let check = |config: MultiGateConfig, table: &[(&str, f64)]| {
            let reported: Vec<_> = reported(config).collect();
            assert_eq!(reported.len(), table.len());
            for ((name, value), (expected, printed)) in reported.iter().zip(table) {
                assert_eq!(name, expected);
                assert_printed(*value, *printed);
            }
        };
        check(competitive(row.streams), &[("beta", row.beta), ("forget", row.forget)]);
        check(independent(row.streams), &[("beta", row.literal)]);
        check(derived(row.streams), &[("beta", row.beta)]);
    }
}

#[test]
fn gates_of_a_fresh_policy_are_those_of_the_table() {
    for row in &STARTS {
        let gates = |config: MultiGateConfig| {
            let policy = fresh(&config, &row.dimensions());
            let gates: Vec<f32> = seen(&policy, &row.dimensions(), &[Signal::Gates])
                .seen
                .into_iter()
                .flat_map(|(_, _, gates)| values(gates))
                .collect();
            assert_eq!(gates.len(), row.gated * 6 * row.streams);
            gates
        };
        let check = |gates: &[f32], printed: f64| {
            gates.iter().for_each(|&gate| assert_printed(gate.into(), printed));
        };
        let together = gates(competitive(row.streams));
        check(&together, row.beta);
        for of_a_token in together.chunks_exact(row.streams) {
            let written: f32 = of_a_token.iter().sum();
            assert_printed(1.0 - f64::from(written), row.forget);
        }
        check(&gates(independent(row.streams)), row.literal);
        check(&gates(derived(row.streams)), row.beta);
    }
}

#[test]
fn the_papers_base_model_starts_with_its_biases() {
    let biases = |config: MultiGateConfig| {
        let policy = fresh(&config, &dimensions(2, 12));
        assert_eq!(policy.gates.len(), 21);
        let first = values(policy.gates[0].bias.val());
        assert_eq!(first, values(policy.gates[20].bias.val()));
        first
    };
    let b = 2.838_232;
    assert_near(&biases(competitive(4)), &[b, 0.0, 0.0, 0.0, 0.0], 1e-6);
    assert_near(&biases(independent(4)), &[-b; 4], 1e-6);
    assert_near(&biases(derived(4)), &[-3.0; 4], 1e-6);
}

#[test]
fn a_start_exists_where_x_exceeds_the_streams() {
    let accepts = |config: MultiGateConfig, gated: usize| {
        let sites = gated + config.streams - 1;
        assert_eq!(sites % 2, 0, "no model has this many gated sub-layers");
        let dimensions = dimensions(2, sites / 2);
        assert_eq!(config.gated(&dimensions), gated);
        config.check_start(&dimensions).is_ok()
    };
    // The fewest gated sub-layers of the table that whole blocks can have, and two less.
    for (streams, fewest) in [(4, 1), (8, 5), (16, 13), (32, 49)] {
        for config in [competitive(streams), independent(streams)] {
            assert!(accepts(config.clone(), fewest), "{config:?}");
            assert!(fewest == 1 || !accepts(config.clone(), fewest - 2), "{config:?}");
        }
        assert!(accepts(derived(streams), 1));
    }
}

#[test]
fn a_start_that_does_not_exist_is_refused_with_the_reason() {
    let dimensions = dimensions(2, 9);
    let error = competitive(16).check_start(&dimensions).unwrap_err().to_string();
    assert_eq!(
        error,
        "residual policy mgr: 16 streams leave 3 gated sub-layers in 9 blocks, and Eq. 14 has \
         no initial gate there: sqrt(3/21) (e^3 + 1) = 7.97 must exceed 16; use fewer streams \
         or more blocks"
    );
    assert_eq!(competitive(16).initial_gates(&dimensions), []);
    // A checkpoint may still hold such a model.
    assert_eq!(competitive(16).check(&dimensions), Ok(()));
}

#[test]
fn more_streams_than_sub_layers_need_no_start() {
    let dimensions = dimensions(2, 3);
    for config in [competitive(7), competitive(16), independent(7)] {
        assert_eq!(config.check_start(&dimensions), Ok(()));
        assert_eq!(config.initial_gates(&dimensions), []);
    }
    // One stream less, and the last sub-layer gates.
    assert!(competitive(6).check_start(&dimensions).is_err());
}

#[test]
fn no_streams_and_absurdly_many_are_refused() {
    assert!(competitive(0).check(&dimensions(2, 3)).is_err());
    assert!(competitive(MOST_STREAMS).check(&dimensions(2, 3)).is_ok());
    assert!(competitive(MOST_STREAMS + 1).check(&dimensions(2, 3)).is_err());
}
